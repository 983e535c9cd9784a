"""Who may connect: CURVE key pairs in files, lists of permitted keys, and the handshakes of a server.

`NAME.secret` holds a key pair and belongs to its owner alone; `NAME.public` is one line, key and name. A list of permitted
keys is a file of such lines.
"""

import ipaddress
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from reroll.errors import InvalidArgument, InvalidConfig

log: Final = logging.getLogger("reroll.server")
HANDSHAKES_AT: Final = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a key may connect."""
_KEY: Final = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_DENIAL_INTERVAL_S: Final = 10.0
_MAX_DENIALS: Final = 1024
"""Kinds of denials that are counted at a time."""


class KeyPair(NamedTuple):
    """A public key and its secret, as text of 40 characters each."""

    public: str
    secret: str


def keygen(name: str, directory: str | PathLike[str] = ".") -> tuple[Path, Path]:
    """Create a key pair, and return the files of the secret and of the public key.

    Args:
        name: of the files, without suffix.
        directory: of the files.

    Raises:
        InvalidArgument: one of the files exists.

    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    secret_file, public_file = folder / f"{name}.secret", folder / f"{name}.public"
    for file in (secret_file, public_file):
        if file.exists():
            raise InvalidArgument(f"{file} exists already; choose another name, or remove it")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    descriptor = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as written:
        written.write(f"{public}\n{secret}\n")
    public_file.write_text(f"{public} {name}\n")
    return secret_file, public_file


def read_key_pair(path: str | PathLike[str]) -> KeyPair:
    """Return the pair in a `.secret` file. Raises InvalidArgument."""
    lines = _lines(path)
    if len(lines) != 2 or not all(map(_KEY.fullmatch, lines)):
        raise InvalidArgument(f"{os.fspath(path)} holds no key pair; create one with `reroll keygen`")
    return KeyPair(*lines)


def read_public_key(key: str | PathLike[str]) -> str:
    """Return a public key that is given as text, or by its `.public` file. Raises InvalidArgument."""
    if isinstance(key, str) and _KEY.fullmatch(key):
        return key
    return next(iter(read_allowed(key)))


def read_allowed(path: str | PathLike[str]) -> dict[str, str]:
    """Return the names of permitted clients by public key: each line of the file is a key and a name."""
    allowed = {}
    for line in _lines(path):
        key, _, name = line.partition(" ")
        if not _KEY.fullmatch(key):
            raise InvalidArgument(
                f"{os.fspath(path)}: line {line[:20]!r}... does not start with a public key of 40 characters"
            )
        allowed[key] = name.strip() or key
    if not allowed:
        raise InvalidArgument(f"{os.fspath(path)} lists no key, so no client could connect; add a public key")
    return allowed


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


def require_keys(bind: str) -> None:
    """Raise InvalidConfig for an address that other hosts can reach, and that must not be served without keys."""
    if not is_local(bind):
        raise InvalidConfig(
            f"{bind} can be reached from other hosts without keys; create a key pair and a list of permitted keys "
            "(`reroll keygen`, --key, --allow), or bind to 127.0.0.1 or ipc://"
        )


def _lines(path: str | PathLike[str]) -> list[str]:
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{os.fspath(path)} cannot be read as keys: {error}") from None
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]


class Authenticator:
    """Answers ZeroMQ's question whether a key may connect, and logs denials."""

    def __init__(self, allowed: Mapping[str, str], denials: "DenialLog") -> None:
        self._allowed = allowed
        self._denials = denials

    def answer(self, frames: Sequence[zmq.Frame]) -> list[bytes]:
        """Return the answer to a request of the ZeroMQ Authentication Protocol."""
        version, request, _, address, _, mechanism, *credentials = [frame.bytes for frame in frames]
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
        name = self._allowed.get(key)
        if name is None:
            self._denials.add(reason="its key is not on the list", peer=address.decode(), key=key)
            return [version, request, b"400", b"not on the list", b"", b""]
        log.info("admitted", extra={"peer": address.decode(), "key_of": name})
        return [version, request, b"200", b"", name.encode(), b""]


class DenialLog:
    """Logs denied connections: each kind once in ten seconds, with a count, since a denied client tries again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, ...], tuple[float, int]] = {}

    def add(self, **facts: str) -> None:
        """Log a denial, or count it."""
        now, kind = self._clock(), tuple(facts.values())
        silent_until, unlogged = self._kinds.get(kind, (0.0, 0))
        if now < silent_until:
            self._kinds[kind] = (silent_until, unlogged + 1)
            return
        if len(self._kinds) >= _MAX_DENIALS:
            self._kinds = {other: seen for other, seen in self._kinds.items() if now < seen[0]}
        if len(self._kinds) < _MAX_DENIALS:
            self._kinds[kind] = (now + _DENIAL_INTERVAL_S, 0)
        log.warning("denied", extra={**facts, **({"times": unlogged + 1} if unlogged else {})})
