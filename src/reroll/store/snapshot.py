"""A database as a whole: written aside, synced, renamed. A crash leaves the old file or the new one."""

import os
import secrets
import sqlite3
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import structs

from reroll.errors import Closed, CorruptData, StoreFailed
from reroll.store.commits import Commit, marker_of
from reroll.store.files import FILE_NAME, PAGE_BYTES, connect, create_schema, write_errors
from reroll.store.lock import DirectoryLock
from reroll.store.records import Change, OnDamaged, Reader, Saved, write_changes

_TEMPORARY: Final = f".{FILE_NAME}.{{}}.tmp"
_SYNC_S: Final = 0.005
"""How often the part that is written is synced: the disk works while payloads are encoded, which saves a quarter of the time."""
_RECORDS_AT_ONCE: Final = 1000


def write_snapshot(directory: str | os.PathLike[str], changes: Iterable[Change]) -> None:
    """Write one file with the outcome of the changes, which are consumed one by one.

    The directory is created if need be, and may hold other files. Any failure, also one in `changes`, leaves the old file as
    it was.

    Raises:
        StoreLocked: A durable store is open there, or another snapshot is being written.
        StoreFailed: The disk is full, or the directory cannot be written to.

    """
    directory = Path(directory)
    lock = DirectoryLock(directory)
    try:
        _fold_log(directory / FILE_NAME)
        write_file(directory, changes)
    finally:
        lock.release()


def copy_of(
    saved: Saved, on_damaged: OnDamaged | None, stopped: threading.Event
) -> Generator[Change, None, None]:
    """Yield a database as changes, verified. Raises CorruptData, unless `on_damaged` receives the uids of damaged payloads.

    Raises Closed soon after `stopped` is set.
    """
    for change in _copy(saved, on_damaged):
        if stopped.is_set():
            raise Closed(f"the copy of {saved.path} was stopped")
        yield change
        del change  # before the next one is read


def _copy(saved: Saved, on_damaged: OnDamaged | None) -> Iterator[Change]:
    yield Change(totals=saved.commit().totals)
    for kind in saved.kinds():
        records = saved.records(kind)
        while some := list(islice(records, _RECORDS_AT_ONCE)):
            yield Change(records=[(kind, key, value) for key, value in some])
    for uid, blob in saved.all_payloads(on_damaged):
        yield Change(payloads=[(uid, blob)])


def _fold_log(path: Path) -> None:
    """Write the log of a killed store into its file: SQLite would take it for the log of a new file."""
    log, marker = Path(f"{path}-wal"), marker_of(path)
    if not log.exists() and not marker.exists():
        return
    with write_errors(path):
        if path.exists() and (marker.exists() or log.stat().st_size):
            with closing(connect(path, "rw")) as connection:
                _mark_closed(connection, path)
                is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                raise StoreFailed(
                    f"{path} is being read: end the processes that read it, or name another directory"
                )
        for file in (log, Path(f"{path}-shm"), marker):
            file.unlink(missing_ok=True)


def _mark_closed(connection: sqlite3.Connection, path: Path) -> None:
    """Write that a killed store is closed: the file that counts its acknowledged commits is removed next."""
    with suppress(sqlite3.DatabaseError, CorruptData):  # a damaged file is about to be replaced
        commit = Reader(connection, path).commit()
        write_changes(connection, (), structs.replace(commit, in_use=False))


def write_file(directory: Path, changes: Iterable[Change]) -> None:
    """Write the file of a directory whose lock the caller holds."""
    path = directory / FILE_NAME
    for stale in directory.glob(_TEMPORARY.format("*")):  # left by killed writers: the caller holds the lock
        stale.unlink(missing_ok=True)
    temporary = directory / _TEMPORARY.format(secrets.token_hex(4))
    try:
        with _synced(temporary, path):
            with write_errors(path):
                connection = connect(temporary, "rwc")
            with closing(connection):
                _fill(connection, changes, path)
        with write_errors(path):
            temporary.replace(path)
            _sync_directory(directory)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fill(connection: sqlite3.Connection, changes: Iterable[Change], path: Path) -> None:
    totals: dict[str, int] = {}
    with write_errors(path):
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("PRAGMA journal_mode = OFF")  # a file that fails is deleted as a whole
        connection.execute("PRAGMA synchronous = OFF")  # the file is synced at the end
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        create_schema(connection)
    with closing(_prefetched(changes, f"reroll snapshot {path}")) as parts:
        for change in parts:  # whose errors stay as they are
            with write_errors(path):
                write_changes(connection, [change])
            totals.update(change.totals)
    with write_errors(path):
        write_changes(connection, (), Commit(totals=totals))
        connection.execute("COMMIT")


def _prefetched(changes: Iterable[Change], name: str) -> Generator[Change, None, None]:
    """Yield changes, the next of which a thread makes while SQLite, without Python's lock, writes the last."""
    iterator = iter(changes)
    with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
        following = pool.submit(next, iterator, None)
        while (change := following.result()) is not None:
            following = pool.submit(next, iterator, None)
            yield change


@contextmanager
def _synced(temporary: Path, path: Path) -> Iterator[None]:
    """Sync a file: in a thread while it is being written, and to its end after that."""
    with write_errors(path):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o644)
    is_written = threading.Event()
    errors: list[OSError] = []  # the system reports each only once

    def sync_early() -> None:
        while not is_written.wait(_SYNC_S) and not errors:
            try:
                os.fsync(descriptor)
            except OSError as error:
                errors.append(error)

    thread = threading.Thread(target=sync_early, name=f"reroll snapshot {path}", daemon=True)
    thread.start()
    try:
        yield
        is_written.set()
        thread.join()
        with write_errors(path):
            os.fsync(descriptor)
            if errors:
                raise errors[0]
    finally:
        is_written.set()
        thread.join()
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # pragma: no cover  (Windows cannot sync a directory)
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
