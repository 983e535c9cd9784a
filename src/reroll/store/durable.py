"""A database that is written all the time: one thread commits the queued changes, and acknowledges them afterwards.

Readers have connections of their own; they never wait for the writer, nor it for them.
"""

import atexit
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from reroll import forking
from reroll.errors import Closed, CorruptData, RerollError, StoreFailed
from reroll.store.commits import Commit, Mark, Marker, marker_of, read_marker
from reroll.store.files import FILE_NAME, PAGE_BYTES, connect, read_errors, write_error, write_errors
from reroll.store.lock import DirectoryLock, WatchedFiles
from reroll.store.records import Change, OnMissing, Reader, Saved, open_saved, write_changes
from reroll.store.snapshot import write_file

Sync: TypeAlias = Literal["os", "disk"]
Done: TypeAlias = Callable[[BaseException | None], None]

COMMIT_BYTES: Final = 16 << 20
"""A commit ends with the change that reaches this size: the first changes of a long queue do not wait for the last."""
LOG_BYTES: Final = 64 << 20
"""At this size the log is folded into the file. Before it starts anew it may become four times as large."""
_SYNCHRONOUS: Final = {"os": "NORMAL", "disk": "FULL"}
_MAX_IDLE_READERS: Final = 4


def open_store(
    directory: str | os.PathLike[str], *, sync: Sync = "os", on_corrupt: OnMissing = "raise"
) -> "Store":
    """Open the durable store of a directory, which is created with its parents if need be.

    Args:
        directory: The directory; one process may have it open.
        sync: After a crash the store holds every acknowledged change, each as a whole: with "os" after the end of the
            process, with "disk" also after that of the machine.
        on_corrupt: With "skip", missing acknowledged commits are a warning instead of an error.

    Raises:
        StoreLocked: Another buffer has it open.
        CorruptData, UnsupportedFormat, StoreFailed: As `open_saved`.

    """
    directory = Path(directory)
    path = directory / FILE_NAME
    lock = DirectoryLock(directory)
    try:
        with write_errors(path):
            if not path.exists():
                _create(path, on_corrupt)
        with open_saved(path, on_corrupt=on_corrupt) as saved:  # a damaged file is not written to
            last = saved.commit()
        return Store(path, lock, sync, last)
    except BaseException:
        lock.release()
        raise


def _create(path: Path, on_corrupt: OnMissing) -> None:
    """Create an empty database. Raises CorruptData if a removed one has left its log or its marker behind."""
    left = [file for file in (Path(f"{path}-wal"), marker_of(path)) if file.exists()]
    if left and on_corrupt == "raise":
        raise CorruptData(
            f"{path} is missing, and {left[0].name} is there: the groups of a buffer were removed; restore the file from a "
            'copy, or open the buffer with on_corrupt="skip" to start with an empty one'
        )
    for file in (*left, Path(f"{path}-shm")):  # SQLite would take a log for that of the new file
        file.unlink(missing_ok=True)
    write_file(path.parent, ())


class Store:
    """A durable store, open for writing; see `open_store`. All methods may be called from any thread."""

    def __init__(self, path: Path, lock: DirectoryLock, sync: Sync, last: Commit) -> None:
        self.path = path
        self.commits = 0
        """How many transactions were committed since the store was opened."""
        self.error: RerollError | None = None
        """Why nothing is written any more, or None."""
        self._lock = lock
        self._sync = sync
        self._last = last
        self._marker = Marker(path)
        self._files = WatchedFiles()
        self._home = forking.here()
        self._guard = threading.Lock()  # held for moments only
        self._queue: SimpleQueue[tuple[Change, Done] | None] = SimpleQueue()  # None: close
        self._is_closing = False
        self._idle_readers: list[sqlite3.Connection] = []
        self._connection = self._connect()
        self._log = _Log(path)
        self._thread = threading.Thread(target=self._run, name=f"reroll store {path}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _connect(self) -> sqlite3.Connection:
        with write_errors(self.path):
            connection = connect(self.path, "rw")
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._sync]}")
                connection.execute("PRAGMA wal_autocheckpoint = 0")  # `_Log` does it
                connection.execute(f"PRAGMA journal_size_limit = {2 * LOG_BYTES}")
                connection.execute("SELECT 1 FROM records").fetchone()  # creates the log
                self._open_files()
            except BaseException:
                connection.close()
                raise
        return connection

    def _open_files(self) -> None:
        """Remember the files, and continue to count commits after a crash."""
        self._files.add(self.path, f"{self.path}-wal", f"{self.path}-shm", self._lock.path)
        acknowledged = read_marker(self.path)
        if acknowledged is not None and 0 <= acknowledged.number <= self._last.number:
            self._marker.open()
            self._marker.advance(self._mark())  # a kill may have come between the two writes
        elif acknowledged is not None or self._last.in_use:  # the caller accepted missing commits
            self._marker.create(self._mark(), sync=self._sync == "disk")
        self._files.add(self._marker.path)

    def _mark(self) -> Mark:
        return Mark(self._last.number, self._last.stamp)

    # --- writing

    def write(self, change: Change, done: Done) -> None:
        """Queue a change and return at once. Raises Closed after `close`.

        The writer's thread calls `done`: with None after the commit that holds the change, else with the error. The next commit
        waits for it. Changes are written in the order of these calls; those that queue up while a commit runs share the next
        one. After a failed commit nothing more is written: its changes, all queued and all later ones get the same error.
        """
        self._check_process()
        with self._guard:
            self._check_open()
            self._queue.put((change, done))

    def _run(self) -> None:
        while batch := self._next_batch():
            num_bytes = sum(_num_bytes(change) for change, _ in batch)
            if self.error is None:
                try:
                    self._commit([change for change, _ in batch])
                except Exception as error:  # noqa: BLE001  (nothing may be written after any error)
                    self.error = write_error(error, self.path)
            for _, done in batch:
                try:
                    done(self.error)
                except Exception as error:  # noqa: BLE001  (the other callers still wait)
                    trace = error.__traceback__
                    threading.excepthook(threading.ExceptHookArgs((type(error), error, trace, self._thread)))
            del batch  # frees the payloads
            if self.error is None:
                self._log.grow(self._connection, num_bytes)
        self._finish()

    def _next_batch(self) -> list[tuple[Change, Done]]:
        """Wait for changes and return some; none when the store closes and all are written."""
        batch: list[tuple[Change, Done]] = []
        num_bytes = 0
        while not batch or (num_bytes < COMMIT_BYTES and not self._queue.empty()):
            queued = self._queue.get()
            if queued is None:
                self._queue.put(None)  # for the next call
                break
            batch.append(queued)
            num_bytes += _num_bytes(queued[0])
        return batch

    def _commit(self, changes: list[Change]) -> None:
        if not self._last.in_use:
            # Into the file itself, not only into its log: from now on, a log or a marker that is missing is noticed.
            self._marker.create(self._mark(), sync=self._sync == "disk")
            self._files.add(self._marker.path)
            self._transact([], in_use=True)
            self._marker.advance(self._mark())
            self._log.fold(self._connection)
        self._transact(changes, in_use=True)
        self._marker.advance(self._mark())
        self.commits += 1

    def _transact(self, changes: Sequence[Change], *, in_use: bool) -> None:
        totals = dict(self._last.totals)
        for change in changes:
            totals.update(change.totals)
        commit = Commit(self._last.number + 1, secrets.randbits(63), in_use, totals)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._files.check()
            found = Reader(self._connection, self.path).commit()
            if (found.number, found.stamp) != self._mark():
                raise StoreFailed(  # noqa: TRY301  (as any other)
                    f"{self.path} was written by another process: it is at commit {found.number}, and this buffer wrote commit "
                    f"{self._last.number}; end the other process, and open the buffer again"
                )
            write_changes(self._connection, changes, commit)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._last = commit

    # --- reading

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Lend a reader of the committed data as they are now. Raises Closed, StoreFailed."""
        self._check_process()
        with self._guard:
            self._check_open()
            connection = self._idle_readers.pop() if self._idle_readers else None
        if connection is None:
            with read_errors(self.path):
                connection = connect(self.path, "ro")
        try:
            with read_errors(self.path):
                connection.execute("BEGIN")
            yield Reader(connection, self.path)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            with self._guard:
                is_kept = not self._is_closing and len(self._idle_readers) < _MAX_IDLE_READERS
                if is_kept:
                    self._idle_readers.append(connection)
            if not is_kept:
                connection.close()

    def read(self, uids: Sequence[int]) -> list[bytes]:
        """Return committed payloads in the order of the uids. Raises UnknownUid, CorruptData, StoreFailed."""
        with self.reader() as reader:
            return list(reader.payloads(uids))

    def begin_copy(self) -> Saved:
        """Fix the committed data as they are now, for `copy_of`; until it is closed, the log grows."""
        self._check_process()
        with self._guard:
            self._check_open()
        return Saved(self.path)

    # --- the end

    def _check_open(self) -> None:
        if self._is_closing:
            raise Closed(f"the store {self.path} was closed; open it again")

    def _check_process(self) -> None:
        """Raise ForkedProcess in a forked child; before the guard, which another thread may have held at the fork."""
        forking.check(self._home, f"the store {self.path}")

    def close(self) -> None:
        """Write the queue, fold the log into the file, close it and release the directory. Idempotent.

        Within `done` it returns at once, and the rest follows when the queue is written.
        """
        if forking.is_elsewhere(self._home):
            return  # a forked child has nothing to close
        with self._guard:
            self._is_closing = True
            self._queue.put(None)
            readers, self._idle_readers = self._idle_readers, []
        for connection in readers:
            connection.close()
        atexit.unregister(self.close)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self) -> None:
        self._log.close()
        try:
            if self.error is not None:
                self._log.fold(
                    self._connection
                )  # SQLite does it only if no other connection has the file open
            else:
                if self._last.in_use:
                    self._transact([], in_use=False)
                self._connection.execute("PRAGMA busy_timeout = 0")  # open readers need the log
                is_busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not is_busy:
                    self._marker.remove()
        except (sqlite3.Error, OSError, RerollError):
            pass  # the log holds every commit, and the next opener continues with it
        finally:
            self._marker.close()
            self._connection.close()
            self._lock.release()


def _num_bytes(change: Change) -> int:
    return sum(memoryview(blob).nbytes for _, blob in change.payloads if blob is not None)


class _Log:
    """The write-ahead log, folded into the file by a thread: no commit waits for all that was written before it.

    SQLite starts its log anew when a commit finds all of it in the file, which steady writing prevents. So the thread folds the
    log, then the commits that came meanwhile, until few pages are left; the writer folds those between two commits.
    """

    _MAX_PASSES: Final = 8
    _FEW_PAGES: Final = 32
    _OTHER_BYTES: Final = 8 * PAGE_BYTES
    """What a commit adds to the log beside payloads, roughly: pages are written as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: threading.Thread | None = None
        self._bytes = 0  # in the log and not in the file, roughly

    def grow(self, connection: sqlite3.Connection, num_bytes: int) -> None:
        """Count a commit with this many payload bytes, and fold the log if it is large."""
        self._bytes += num_bytes + self._OTHER_BYTES
        if self._thread is not None:
            if not self._thread.is_alive() or self._bytes >= 4 * LOG_BYTES:
                self.close()
                self.fold(connection)
        elif self._bytes >= LOG_BYTES:
            thread = threading.Thread(target=self._run, name=f"reroll log of {self._path}", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:  # the interpreter ends, and starts no more threads
                self.fold(connection)

    def fold(self, connection: sqlite3.Connection) -> None:
        """Fold the log now, as far as no reader needs it."""
        with suppress(sqlite3.Error):  # the log holds every commit, and is folded next time
            _checkpoint(connection)
        self._bytes = 0

    def close(self) -> None:
        """Wait for the thread. Idempotent."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        with suppress(sqlite3.Error), closing(connect(self._path, "rw")) as connection:
            before = 0
            for _ in range(self._MAX_PASSES):
                folded = _checkpoint(connection)
                if folded - before <= self._FEW_PAGES:
                    break
                before = folded


def _checkpoint(connection: sqlite3.Connection) -> int:
    """Return how many pages of the log are in the file. Pages that a reader needs stay in the log."""
    _, _, folded = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(folded)
