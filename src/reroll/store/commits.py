"""The last acknowledged commit of a store, in a small file beside the database.

To SQLite, a log that was cut, altered or removed is a shorter log, and no error. So each commit has a number and a random
stamp in the database; before it is acknowledged, both are also written to this file, alternately into one of two slots. The
file may be behind the database, after a kill between the two writes. It is ahead only if commits are missing.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from reroll.errors import StoreFailed

_SLOT: Final = struct.Struct("<8sqq")
_MAGIC: Final = b"RRLcomm\x01"
_CRC: Final = struct.Struct("<I")
_SLOT_BYTES: Final = 512
_BINARY: Final = getattr(os, "O_BINARY", 0)


class Commit(msgspec.Struct, frozen=True):
    """The last commit of a database, as its record says."""

    number: int = 0
    """From 1; 0 in a snapshot."""
    stamp: int = 0
    """Random: two histories of one length differ in it."""
    in_use: bool = False
    """The store was not closed since: the file of acknowledged commits must be there."""
    totals: dict[str, int] = {}
    """How many records of a kind there are: a reader finds missing ones by it."""


class Mark(NamedTuple):
    """Number and stamp of a commit."""

    number: int
    stamp: int


UNREADABLE: Final = Mark(-1, 0)
"""The content of a damaged file."""


def marker_of(path: Path) -> Path:
    """Return the file of acknowledged commits of a database."""
    return Path(f"{path}-commits")


def read_marker(path: Path) -> Mark | None:
    """Return the last acknowledged commit of a database: UNREADABLE for a damaged file, None without a file.

    Read it before the database: a store in use commits first, and writes this file afterwards. Raises StoreFailed.
    """
    try:
        data = marker_of(path).read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return UNREADABLE
    except OSError as error:
        raise StoreFailed(
            f"{marker_of(path)} cannot be read ({error}): check the disk and the permissions"
        ) from error
    slots = (_unpacked(data[start : start + _SLOT_BYTES]) for start in (0, _SLOT_BYTES))
    return max((mark for mark in slots if mark is not None), default=UNREADABLE)


def find_missing(path: Path, last: Commit, acknowledged: Mark | None) -> str | None:
    """Return why a database lacks acknowledged commits, or why that cannot be decided; None for a whole one."""
    marker = marker_of(path)
    remedy = (
        f"restore {path.name}, {path.name}-wal and {marker.name} together from a copy, or open the buffer with "
        'on_corrupt="skip" to continue with the groups that are there'
    )
    if acknowledged is None:
        counts = f"it counts the acknowledged commits of {path.name}, which has {last.number}"
        return f"{marker} is missing: {counts}; {remedy}" if last.in_use else None
    if acknowledged == UNREADABLE:
        return f"{marker} is damaged: it counts the acknowledged commits of {path.name}; {remedy}"
    if (missing := acknowledged.number - last.number) > 0:
        return (
            f"{path} is not whole: the last {missing} of {acknowledged.number} acknowledged commits are missing, since its log "
            f"{path.name}-wal was cut, altered or removed; {remedy}"
        )
    if missing == 0 and last.stamp != acknowledged.stamp:
        return f"{path} is not whole: its commit {last.number} is another one than the acknowledged commit; {remedy}"
    return None


class Marker:
    """The file of acknowledged commits, open for its only writer. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = marker_of(path)
        self._descriptor: int | None = None

    def create(self, mark: Mark, *, sync: bool) -> None:
        """Replace the file as a whole: a crash leaves the old one or the new one."""
        self.close()
        temporary = Path(f"{self.path}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, 0o644)
        try:
            os.write(descriptor, _packed(mark).ljust(_SLOT_BYTES, b"\0") + _packed(mark))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(self.path)
        self.open()

    def open(self) -> None:
        """Open the existing file."""
        self._descriptor = os.open(self.path, os.O_RDWR | _BINARY)

    def advance(self, mark: Mark) -> None:
        """Write a commit before it is acknowledged; the other slot keeps the one before."""
        assert self._descriptor is not None  # noqa: S101  (created with the first commit)
        os.lseek(self._descriptor, mark.number % 2 * _SLOT_BYTES, os.SEEK_SET)
        os.write(self._descriptor, _packed(mark))

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the file: the store is closed, and the database holds every commit."""
        self.close()
        with suppress(OSError):  # a file that stays agrees with the database
            self.path.unlink()


def _packed(mark: Mark) -> bytes:
    content = _SLOT.pack(_MAGIC, *mark)
    return content + _CRC.pack(crc32(content))


def _unpacked(slot: bytes) -> Mark | None:
    if len(slot) < _SLOT.size + _CRC.size:
        return None
    magic, number, stamp = _SLOT.unpack_from(slot)
    (crc,) = _CRC.unpack_from(slot, _SLOT.size)
    return Mark(number, stamp) if magic == _MAGIC and crc == crc32(slot[: _SLOT.size]) else None
