"""A file as a whole: written beside the old one, brought to the disk, renamed. A crash leaves the old or the new one."""

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from reroll.errors import StoreFailed
from reroll.store import schema, seals
from reroll.store.ahead import ahead
from reroll.store.change import Change, net
from reroll.store.commits import marker_of
from reroll.store.connections import connect, writing
from reroll.store.lock import DirectoryLock
from reroll.store.schema import FILE_NAME
from reroll.store.writing import IN_USE, Writing

_TEMPORARY = f".{FILE_NAME}.{{}}.tmp"
_EARLY_S = 0.005
"""The disk works while payloads are still being encoded: a quarter less time in all."""


def write_checkpoint(directory: str | os.PathLike[str], changes: Iterable[Change]) -> None:
    """Write one file with what the changes come to; they are consumed one by one.

    The directory is made if need be, and may hold other files. Whatever fails, also in `changes`, leaves the old
    checkpoint as it was. Raises `StoreLocked` if a durable store is open there or another checkpoint is being written,
    `StoreFailed` for a full disk or a directory that cannot be written to; an error of `changes` comes through.
    """
    directory = Path(directory)
    lock = lock_directory(directory)
    try:
        settle(directory / FILE_NAME)
        write_file(directory, changes)
    finally:
        lock.release()


def lock_directory(directory: Path) -> DirectoryLock:
    """Make the directory and take the right to write in it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(
            f"{directory} cannot be made ({error}): see to the permissions, or name another directory"
        ) from error
    return DirectoryLock(directory)


def settle(path: Path) -> None:
    """Bring the log of a store that was killed into its file: beside a new file it would be taken for that one's."""
    log, marker = Path(f"{path}-wal"), marker_of(path)
    if not log.exists() and not marker.exists():
        return
    if path.exists() and (marker.exists() or log.stat().st_size):
        with writing(path), closing(connect(path, "rw")) as connection:
            _close_store(connection)
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise StoreFailed(f"{path} is being read: close what reads it, or name another directory")
    with writing(path):
        for file in (log, Path(f"{path}-shm"), marker):
            file.unlink(missing_ok=True)


def _close_store(connection: sqlite3.Connection) -> None:
    """Let a store that was killed be as a closed one, whose commits are counted nowhere else."""
    with suppress(sqlite3.DatabaseError):  # a damaged file, which is about to be replaced
        connection.execute(
            "INSERT OR REPLACE INTO about VALUES (?, 0, ?)", (IN_USE, seals.seal_of(IN_USE, 0))
        )


def write_file(directory: Path, changes: Iterable[Change]) -> None:
    """Write the file of a directory whose lock the caller holds."""
    path = directory / FILE_NAME
    for stale in directory.glob(_TEMPORARY.format("*")):  # of writers that were killed: the lock is ours
        stale.unlink(missing_ok=True)
    temporary = directory / _TEMPORARY.format(secrets.token_hex(4))
    try:
        with _synced(temporary, path):
            with writing(path):
                connection = connect(temporary, "rwc")
            with closing(connection):
                _fill(connection, changes, path)
        with writing(path):
            temporary.replace(path)
            _sync_directory(directory)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fill(connection: sqlite3.Connection, changes: Iterable[Change], path: Path) -> None:
    with writing(path):
        connection.execute(f"PRAGMA page_size = {schema.PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("PRAGMA journal_mode = OFF")  # what fails is thrown away as a whole
        connection.execute("PRAGMA synchronous = OFF")  # the file is brought to the disk once, at the end
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        schema.create(connection)
        into = Writing.anew(connection)
    # Payloads are encoded in one thread while SQLite, which needs no interpreter, writes those before in this one.
    with ahead(changes, f"reroll checkpoint {path}") as made:
        for change in made:  # whose errors are not ours
            with writing(path):
                into.apply(net((change,)))
    with writing(path):
        into.finish()
        connection.execute("COMMIT")


@contextmanager
def _synced(temporary: Path, path: Path) -> Iterator[None]:
    """Bring a file to the disk, in a thread while it is being written and to the end after that."""
    with writing(path):
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o644)
    is_written = threading.Event()
    errors: list[OSError] = []  # the system tells each only once

    def sync_early() -> None:
        while not is_written.wait(_EARLY_S) and not errors:
            try:
                os.fsync(descriptor)
            except OSError as error:
                errors.append(error)

    thread = threading.Thread(target=sync_early, name=f"reroll checkpoint {path}", daemon=True)
    thread.start()
    try:
        yield
        with writing(path):
            is_written.set()
            thread.join()
            os.fsync(descriptor)
            if errors:
                raise errors[0]
    finally:
        is_written.set()
        thread.join()
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # pragma: no cover  (Windows has no such thing)
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
