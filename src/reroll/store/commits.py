"""The number of the last acknowledged commit, in a small file beside the database.

A log that was cut, altered or removed is a shorter log to SQLite, and no error. So each commit has a number and a random
stamp in the database, and before it is acknowledged both are written to this file too, into one of two slots in turn.
The file may be behind the database, after a kill between the two writes; it is never ahead unless commits are missing.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from reroll.errors import CorruptData, StoreFailed

SUFFIX = "-commits"

_SLOT = struct.Struct("<8sqq")
_MAGIC = b"RRLcomm\x01"
_CRC = struct.Struct("<I")
_SLOT_BYTES = 512
_BINARY = getattr(os, "O_BINARY", 0)


class Mark(NamedTuple):
    """One commit: its number, from 1, and a random stamp by which histories of one length differ."""

    number: int
    stamp: int


UNREADABLE = Mark(-1, 0)
"""What a damaged file says."""


class LastCommit(NamedTuple):
    """The last commit that a database holds."""

    mark: Mark
    is_in_use: bool
    """Whether the store was not closed since: then the file of acknowledged commits must be there."""


def marker_of(path: Path) -> Path:
    """Return the file of acknowledged commits of a database."""
    return Path(f"{path}{SUFFIX}")


def read_marker(path: Path) -> Mark | None:
    """Return the last acknowledged commit of a database; UNREADABLE if the file is damaged, None if there is none.

    Read it before the database: a store in use commits first, and writes this afterwards. Raises StoreFailed.
    """
    try:
        data = marker_of(path).read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return UNREADABLE
    except OSError as error:
        raise StoreFailed(
            f"{marker_of(path)} cannot be read ({error}): see to the disk and to the permissions"
        ) from error
    slots = (_unpacked(data[start : start + _SLOT_BYTES]) for start in (0, _SLOT_BYTES))
    return max((mark for mark in slots if mark is not None), default=UNREADABLE)


def check_commits(path: Path, last: LastCommit, acknowledged: Mark | None) -> None:
    """Raise CorruptData if a database lacks commits that were acknowledged, or if that cannot be found out."""
    mark = last.mark
    if acknowledged is None:
        if last.is_in_use:
            raise CorruptData(
                f"{marker_of(path)} is missing: it says how many commits of {path.name} were acknowledged, and "
                f"{mark.number} are there; {_remedy(path)}"
            )
    elif acknowledged == UNREADABLE:
        raise CorruptData(
            f"{marker_of(path)} is damaged: it does not say how many commits of {path.name} were acknowledged; "
            f"{_remedy(path)}"
        )
    elif mark.number < acknowledged.number:
        raise CorruptData(
            f"{path} is not whole: the last {acknowledged.number - mark.number} of {acknowledged.number} acknowledged "
            f"commits are missing, since its log {path.name}-wal was cut, altered or removed; {_remedy(path)}"
        )
    elif mark.number == acknowledged.number and mark != acknowledged:
        raise CorruptData(
            f"{path} is not whole: its commit {mark.number} is another one than the acknowledged commit of this number; "
            f"{_remedy(path)}"
        )


def _remedy(path: Path) -> str:
    return (
        f"restore {path.name}, {path.name}-wal and {marker_of(path).name} together from a copy, or open the buffer with "
        'on_corrupt="skip" to go on with the groups that are there'
    )


class Marker:
    """The file of acknowledged commits, open for its only writer. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = marker_of(path)
        self._descriptor: int | None = None

    def create(self, mark: Mark, *, sync: bool) -> None:
        """Make the file anew with this commit, as a whole: a crash leaves the old one or the new one."""
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
        """Open the file that is there."""
        self._descriptor = os.open(self.path, os.O_RDWR | _BINARY)

    def advance(self, mark: Mark) -> None:
        """Write the number of a commit, before it is acknowledged; the other slot keeps the one before."""
        assert self._descriptor is not None  # noqa: S101  (made with the first commit)
        os.lseek(self._descriptor, mark.number % 2 * _SLOT_BYTES, os.SEEK_SET)
        os.write(self._descriptor, _packed(mark))

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the file: the store is closed, and all of it is in the database."""
        self.close()
        with suppress(OSError):  # one that stays agrees with the database
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
