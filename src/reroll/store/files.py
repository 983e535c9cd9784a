"""Files of a store: how SQLite opens them, what its errors mean, and which schema they have.

A connection for reading changes nothing and runs nothing that a file's own schema defines. Only SQLite opens the database:
closing a second descriptor of it would drop the locks of the first.
"""

import contextlib
import ctypes
import os
import sqlite3
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from reroll import forking
from reroll.errors import CorruptData, RerollError, SavedNotFound, StoreFailed, UnsupportedFormat

FILE_NAME: Final = "replay_buffer.sqlite"
"""The database in the directory that a user names, of a durable store and of a snapshot."""
APPLICATION_ID: Final = 0x5265726C  # "Rerl", in the header of the file
FORMAT: Final = 3
"""Raise it when the tables, or what a checksum covers, change."""
PAGE_BYTES: Final = 32768
"""For 64 KB payloads faster than 16 KB pages; a file is 7 % larger than its payloads."""
ROW: Final = "row"
"""The kind of the records that the view `groups` shows."""
COLUMNS: Final = (
    *(
        "uid",
        "task",
        "status",
        "place",
        "timestamp",
        "touched",
        "version",
        "newest",
        "trainable",
        "staleness",
    ),
    *("priority", "uses", "attempts", "deliveries", "pending", "num_rollouts", "num_tokens", "num_bytes"),
    *("reward_mean", "reward_std", "trained", "trained_tokens", "used_at", "patched_at"),
    *("sampler_position", "remover_position", "group_id", "tags", "members"),
)
"""A row record has its uid as key, and the other columns as a JSON array."""

_BUSY_S: Final = 60.0
"""How long to wait for a lock of another process, for instance of a shell that writes."""
_SHOWN: Final = ", ".join(
    f"json_extract(row, '$[{place}]') AS {name}" for place, name in enumerate(COLUMNS[1:-1])
)
_ROWS: Final = f"SELECT key, CAST(value AS TEXT) AS row FROM records WHERE kind = '{ROW}'"  # noqa: S608  (our own names)
_SCHEMA: Final = (
    # A key has no type of its own: 1 and "1" are two keys.
    "CREATE TABLE records (kind TEXT, key, value BLOB, crc INTEGER, PRIMARY KEY (kind, key)) WITHOUT ROWID",
    "CREATE TABLE payloads (uid INTEGER PRIMARY KEY, crc INTEGER, blob BLOB)",
    f"CREATE VIEW groups AS SELECT key AS uid, {_SHOWN} FROM ({_ROWS})",  # noqa: S608  (our own names)
)
_SETTING_ERRORS: Final = frozenset(
    {
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOLFS),
    }
)
"""The machine or its settings refused; any other error of a read is damage of the file."""


# --- connections


class _Connection(sqlite3.Connection):
    """A connection of the process that opened it. In a forked child it raises ForkedProcess, and is never closed.

    SQLite forbids both, and opening the file anew there: it keeps its locks per process, and the child has a copy of the
    parent's list. A child that closes a connection of its parent may remove the log that the parent writes.
    """

    path: Path

    def __init__(self, *args: Any, **options: Any) -> None:
        self.home = forking.here()
        super().__init__(*args, **options)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        forking.check(self.home, "a connection to a file")
        return super().execute(*args)

    def close(self) -> None:
        if not forking.is_elsewhere(self.home):
            super().close()
            _OPEN.discard(self)


_OPEN: weakref.WeakSet[_Connection] = weakref.WeakSet()
_INHERITED: dict[Path, forking.Process] = {}
"""Files that the parent of this forked child had open at the fork."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database: mode `ro`, `rw`, `rwc`, or `immutable` for a file that no process can write."""
    if (home := _INHERITED.get(path.absolute())) is not None:
        forking.check(home, f"the file {path}")
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{query}",
        uri=True,
        timeout=_BUSY_S,
        isolation_level=None,  # the store begins and ends transactions itself
        check_same_thread=False,
        cached_statements=512,
        factory=_Connection,
    )
    connection.path = path.absolute()
    _OPEN.add(connection)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA secure_delete = OFF")  # freed pages need not be overwritten with zeros
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database, and begin a transaction that sees it as it is now.

    Raises CorruptData for a truncated file, UnsupportedFormat, StoreFailed.
    """
    with read_errors(path):
        if path.stat().st_size == 0:  # SQLite would delete its log
            raise CorruptData(f"{path} is truncated: it is empty; restore it from a copy")
        connection = connect(path, "ro")
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            if Path(f"{path}-wal").exists():
                raise StoreFailed(
                    f"{path} cannot be read in its directory ({error}): its log must be read with it; copy the directory to "
                    "a place with write permission"
                ) from error
            connection = connect(path, "immutable")  # a closed store, in a directory without write permission
        except BaseException:
            connection.close()
            raise
        try:
            # No memory map: it reads a tenth faster, but a failing disk or a shrinking file would end the process.
            connection.execute("PRAGMA mmap_size = 0")
            connection.execute("BEGIN")
            _check_length(connection, path)
            _check_schema(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _check_length(connection: sqlite3.Connection, path: Path) -> None:
    pages = _pragma(connection, "page_count")  # the first read: it fixes what the transaction sees
    page_bytes = _pragma(connection, "page_size")
    num_bytes, log = path.stat().st_size, Path(f"{path}-wal")
    # With a log beside it, the file may lack pages that the log has. A file without a page is an empty database to SQLite.
    is_alone = not log.exists() or log.stat().st_size == 0
    if num_bytes < page_bytes or (is_alone and num_bytes < pages * page_bytes):
        expected = max(pages, 1) * page_bytes
        raise CorruptData(
            f"{path} is truncated: it has {num_bytes} of {expected} bytes; restore it from a copy"
        )


def _keep_inherited() -> None:
    """Keep the connections of the parent open in a forked child: no finalizer may close them."""
    for connection in list(_OPEN):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        _INHERITED[connection.path] = connection.home
    _OPEN.clear()


# --- errors


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Raise CorruptData for errors of reading a file, StoreFailed if the disk or the permissions caused them."""
    try:
        yield
    except RerollError:
        raise
    except (OSError, sqlite3.Error, struct.error, LookupError, TypeError, ValueError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        is_damaged = code & 0xFF not in _SETTING_ERRORS or code == sqlite3.SQLITE_IOERR_SHORT_READ
        if is_damaged and not isinstance(error, OSError):
            raise CorruptData(
                f"{path} is damaged ({error}): it was truncated or altered; restore it from a copy"
            ) from error
        raise StoreFailed(
            f"{path} cannot be read ({error}): check the disk and the permissions, or copy the file elsewhere"
        ) from error


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise StoreFailed for errors of writing a file, CorruptData if the file is damaged."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise write_error(error, path) from error


def write_error(error: Exception, path: Path) -> RerollError:
    """Return the typed error for an error of writing a file."""
    if isinstance(error, RerollError):
        return error
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptData(
            f"{path} is damaged ({error}): it was truncated or altered; restore it from a copy"
        )
    if isinstance(error, sqlite3.OperationalError | OSError):
        return StoreFailed(
            f"{path} cannot be written ({error}): check the space on the disk and the permissions, then open it again"
        )
    return StoreFailed(
        f"{path} cannot hold a value ({type(error).__name__}: {error}): pass records with bytes as values, then open it again"
    )


# --- the schema


def create_schema(connection: sqlite3.Connection) -> None:
    """Create the empty tables, and mark the file as one of reroll."""
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another application, of another format, or with another schema: its triggers would run."""
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    has_schema = _schema_of(connection) == _schema()
    if application != APPLICATION_ID and not has_schema:
        raise UnsupportedFormat(
            f"{path} is a SQLite file of another application; name the directory that a buffer was saved to"
        )
    if version > FORMAT:
        raise UnsupportedFormat(
            f"{path} has format {version}, this reroll reads format {FORMAT}: upgrade reroll"
        )
    if 0 < version < FORMAT:
        raise UnsupportedFormat(
            f"{path} has format {version}, this reroll reads format {FORMAT}: read the file with the reroll that wrote it, or "
            "name a new directory"
        )
    if application != APPLICATION_ID or version != FORMAT or not has_schema:
        raise CorruptData(
            f"{path} has tables that reroll does not write: it was altered; restore it from a copy"
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _schema_of(connection: sqlite3.Connection) -> list[tuple[str, str, str, str | None]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name LIMIT 100"
    return connection.execute(query).fetchall()


@cache
def _schema() -> list[tuple[str, str, str, str | None]]:
    with contextlib.closing(
        sqlite3.connect(":memory:")
    ) as connection:  # SQLite words the entries of sqlite_master
        create_schema(connection)
        return _schema_of(connection)


# --- paths


def find_saved(path: str | os.PathLike[str]) -> Path:
    """Return the database that a path names: the file itself, or the one in the directory. Raises SavedNotFound."""
    path = Path(path)
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise SavedNotFound(
            f"{file} does not exist: nothing was saved there; name the directory that a buffer was saved to"
        )
    return file


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)
