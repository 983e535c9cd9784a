"""Key pairs of servers and clients (CURVE), in files; who may connect; what needs no keys.

`NAME.secret` holds a pair and is for its owner alone; `NAME.public` is one line, key and name. An allow-list is a file of
such lines.
"""

import ipaddress
import os
import re
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

import zmq

from reroll.errors import InvalidArgument, InvalidConfig

_KEY: Final = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class KeyPair(NamedTuple):
    """A public key and its secret, as text of 40 characters each."""

    public: str
    secret: str


def keygen(name: str, directory: str | PathLike[str] = ".") -> tuple[Path, Path]:
    """Make a key pair; return the files of secret and public key. Raises InvalidArgument if there are such files."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    secret_file, public_file = folder / f"{name}.secret", folder / f"{name}.public"
    for file in (secret_file, public_file):
        if file.exists():
            raise InvalidArgument(f"{file} is there already; choose another name, or remove it")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    descriptor = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as written:
        written.write(f"{public}\n{secret}\n")
    public_file.write_text(f"{public} {name}\n")
    return secret_file, public_file


def read_pair(path: str | PathLike[str]) -> KeyPair:
    """Return the pair in a `.secret` file. Raises InvalidArgument."""
    lines = _lines(path)
    if len(lines) != 2 or not all(map(_KEY.fullmatch, lines)):
        raise InvalidArgument(f"{os.fspath(path)} holds no key pair; make one with `reroll keygen`")
    return KeyPair(*lines)


def read_public(key: str | PathLike[str]) -> str:
    """Return a public key that is given as text, or by its `.public` file. Raises InvalidArgument."""
    if isinstance(key, str) and _KEY.fullmatch(key):
        return key
    return next(iter(read_allowed(key)))


def read_allowed(path: str | PathLike[str]) -> dict[str, str]:
    """Return names by public key, as a file lists them, a key and a name in each line. Raises InvalidArgument."""
    allowed = {}
    for line in _lines(path):
        key, _, name = line.partition(" ")
        if not _KEY.fullmatch(key):
            raise InvalidArgument(
                f"{os.fspath(path)}: {line[:20]!r}... does not start with a public key of 40 characters"
            )
        allowed[key] = name.strip() or key
    if not allowed:
        raise InvalidArgument(f"{os.fspath(path)} names no key, so nobody could connect")
    return allowed


def check_can_be_open(bind: str) -> None:
    """Raise InvalidConfig for an address that others can reach, and that must not be served without keys."""
    if not is_local(bind):
        raise InvalidConfig(
            f"{bind} can be reached from other hosts, and everybody there could read and write. Give the server a key pair "
            "and a list of those who may connect (`reroll keygen`, --key, --allow), or bind to 127.0.0.1 or ipc://"
        )


def is_local(address: str) -> bool:
    """Return whether only processes of this host can reach an address."""
    if address.startswith("ipc://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _lines(path: str | PathLike[str]) -> list[str]:
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{os.fspath(path)} cannot be read as keys: {error}") from None
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
