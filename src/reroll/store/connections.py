"""How files are opened, and what SQLite's errors mean to a caller.

A connection for reading changes nothing and trusts nothing: no function or table of a file's own schema is ever run.
Nobody here opens the file but SQLite: to close a second descriptor of it would drop the locks of the first.
"""

import ctypes
import os
import sqlite3
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reroll import forking
from reroll.errors import CorruptData, RerollError, StoreFailed

BUSY_S = 60.0
"""How long to wait for somebody else's lock, for instance of a shell that writes."""

# What the machine or its settings refused; everything else that fails while reading is the file's fault.
_OUTSIDE = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOLFS,
    }
)
_FOUND_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class _Connection(sqlite3.Connection):
    """A connection of the process that opened it. In a forked child it raises ForkedProcess, and is never closed.

    SQLite forbids both, and to open the file anew there: it keeps its locks per process, and the child has a copy of the
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


def _keep_all() -> None:
    """Keep the connections of the parent beyond the end of this forked child: no finalizer closes them."""
    for connection in list(_OPEN):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        _INHERITED[connection.path] = connection.home
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_all)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a file: mode `ro`, `rw`, `rwc`, or `immutable` for one that nobody can write."""
    if (home := _INHERITED.get(path.absolute())) is not None:
        forking.check(home, f"the file {path}")
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{query}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,  # transactions begin and end where we say so
        check_same_thread=False,
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


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading a file into `CorruptData`, or `StoreFailed` if it is not the file's fault."""
    try:
        yield
    except RerollError:
        raise
    except OSError as error:
        raise StoreFailed(
            f"{path} cannot be read ({error}): see to the disk and to the permissions, or copy it elsewhere"
        ) from error
    except (sqlite3.Error, struct.error, LookupError, TypeError, ValueError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _OUTSIDE and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            raise StoreFailed(
                f"{path} cannot be read ({error}): see to the disk and to the permissions, or copy it elsewhere"
            ) from error
        raise CorruptData(
            f"{path} is damaged ({error}): it was truncated or altered; restore it from a copy"
        ) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong while writing a file into `StoreFailed`, or `CorruptData` if the file is damaged."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise failed(error, path) from error


def failed(error: Exception, path: Path) -> RerollError:
    """Return the typed error for what went wrong while writing a file."""
    if isinstance(error, RerollError):
        return error
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _FOUND_CORRUPT:
        return CorruptData(
            f"{path} is damaged ({error}): it was truncated or altered; restore it from a copy"
        )
    if isinstance(error, sqlite3.OperationalError | OSError):
        return StoreFailed(
            f"{path} cannot be written ({error}): see to the space on the disk and to the permissions, then open it again"
        )
    return StoreFailed(
        f"{path} cannot hold what was to be written ({type(error).__name__}: {error}): hand over plain values of the "
        "columns' types, then open it again"
    )
