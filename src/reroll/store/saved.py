"""A file to read: a checkpoint, or a durable store at rest, in use, or left behind by a crash."""

import os
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from reroll.errors import CorruptData, SavedNotFound, StoreFailed
from reroll.store import schema
from reroll.store.change import Row
from reroll.store.closing import Closing
from reroll.store.commits import LastCommit, check_commits, read_marker
from reroll.store.connections import connect, reading
from reroll.store.reading import Damaged, Reading
from reroll.store.schema import FILE_NAME

OnMissing: TypeAlias = Literal["raise", "skip"]
"""What to do about acknowledged commits that are missing."""


class Saved(Closing):
    """What was in a file when it was opened, whatever is written meanwhile. Not for several threads at once.

    Close it: as long as it is open, a store in use keeps what it has written since in its log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path):
            self._connection = _open(path)
        try:
            with reading(path):
                begin_reading(self._connection, path)
            self._reading = Reading(self._connection, path)
            self._state = self._reading.state()
        except BaseException:
            self._connection.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def state(self) -> bytes | None:
        """The state blob."""
        return self._state

    def counts(self) -> dict[str, int]:
        """Return how many rows, payloads and states there are, and `facts <kind>` for each kind."""
        return self._reading.counts()

    def last_commit(self) -> LastCommit:
        """Return the last commit of a durable store; number 0 in a checkpoint, which has none."""
        return self._reading.last_commit()

    def rows(self, damaged: Damaged | None = None) -> Iterator[Row]:
        """Yield every row, by uid. Raises `CorruptData` for one that was altered, or in the end if some are missing.

        With `damaged`, those that were altered are told to it, and passed over.
        """
        return self._reading.rows(damaged)

    def amended(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield number and rows of every fact that has changed rows, the oldest first; `rows` has them where they belong."""
        return self._reading.amended()

    def facts(self, kind: str) -> Iterator[tuple[int | str | bytes, bytes]]:
        """Yield key and value of every fact of a kind, in the order in which the keys came; else as `rows`."""
        return self._reading.facts(kind)

    def fact(self, kind: str, key: int | str | bytes) -> bytes:
        """Return the value of one fact. Raises `KeyError`, `CorruptData`."""
        return self._reading.fact(kind, key)

    def kinds(self) -> list[str]:
        """Return the kinds of facts."""
        return self._reading.kinds()

    def payloads(self, uids: Iterable[int]) -> Iterator[bytes]:
        """Yield blobs in the order of the uids; quickest in ascending order. Raises `UnknownUid`, `CorruptData`."""
        return self._reading.payloads(uids)

    def all_payloads(self, damaged: Damaged | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield every uid and its blob, by uid, in one pass; else as `rows`."""
        return self._reading.all_payloads(damaged)

    def payload_uids(self) -> list[int]:
        """Return the uids of all payloads."""
        return self._reading.payload_uids()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()


def open_saved(path: str | os.PathLike[str], *, on_corrupt: OnMissing = "raise") -> Saved:
    """Open what was saved: the directory, or the file itself.

    Raises `SavedNotFound`, `CorruptData` (truncated, altered, no database, or without commits that were acknowledged),
    `UnsupportedFormat` (newer, or foreign), `StoreFailed` (the disk or the permissions). With `on_corrupt="skip"` missing
    commits are a warning.
    """
    return open_checked(find_saved(path), on_corrupt)


def open_checked(path: Path, on_corrupt: OnMissing) -> Saved:
    """Open a file, and see whether it holds every commit that was acknowledged; else as `open_saved`."""
    acknowledged = read_marker(path)
    while True:
        saved = Saved(path)
        try:
            check_commits(path, saved.last_commit(), acknowledged)
        except CorruptData as error:
            before, acknowledged = acknowledged, read_marker(path)
            if acknowledged != before:  # a store was opened or closed between the two looks
                saved.close()
                continue
            if on_corrupt == "raise":
                saved.close()
                raise
            warnings.warn(str(error), UserWarning, stacklevel=3)
        except BaseException:
            saved.close()
            raise
        return saved


def find_saved(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path names: itself, or the one in the directory. Raises `SavedNotFound`."""
    path = Path(path)
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise SavedNotFound(
            f"{file} does not exist: nothing was saved there; name the directory that a buffer was saved to"
        )
    return file


def begin_reading(connection: sqlite3.Connection, path: Path) -> None:
    """Fix what is read from now on, and refuse a file that is not whole or not ours."""
    # No memory map: it reads a tenth faster, but a disk that fails or a file that shrinks would end the process.
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("BEGIN")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()  # the first look at the file: this fixes it
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    log = Path(f"{path}-wal")
    num_bytes = path.stat().st_size
    # With a log beside it, the file may lack pages that the log has. A file of no page at all is an empty database to
    # SQLite, but to us it was cut.
    is_alone = not log.exists() or log.stat().st_size == 0
    if num_bytes < page_bytes or (is_alone and num_bytes < pages * page_bytes):
        expected = max(pages, 1) * page_bytes
        raise CorruptData(
            f"{path} is truncated: it has {num_bytes} of {expected} bytes; restore it from a copy"
        )
    schema.check(connection, path)


def _open(path: Path) -> sqlite3.Connection:
    if path.stat().st_size == 0:  # SQLite would delete its log
        raise CorruptData(f"{path} is truncated: it is empty; restore it from a copy")
    connection = connect(path, "ro")
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if Path(f"{path}-wal").exists():
            raise StoreFailed(
                f"{path} cannot be read where it is ({error}), since its log has to be read with it: "
                "copy its directory to a place that can be written to"
            ) from error
        # A store at rest, in a directory that cannot be written to.
        return connect(path, "immutable")
    except BaseException:
        connection.close()
        raise
    return connection
