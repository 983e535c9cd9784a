"""A file that is written all the time: one thread commits what has queued up, and acknowledges it afterwards.

Readers have connections of their own and never wait for the writer, nor it for them.
"""

import atexit
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeAlias

from reroll import forking
from reroll.errors import Closed, CorruptData, RerollError, StoreFailed
from reroll.store import folding, schema
from reroll.store.change import Change, Row, net
from reroll.store.checkpoint import lock_directory, write_checkpoint, write_file
from reroll.store.closing import Closing
from reroll.store.commits import LastCommit, Mark, Marker, marker_of, read_marker
from reroll.store.connections import connect, failed, reading, writing
from reroll.store.folding import Folding
from reroll.store.in_place import InPlace
from reroll.store.lock import DirectoryLock
from reroll.store.reading import Damaged, Reading
from reroll.store.saved import OnMissing, Saved, open_checked
from reroll.store.schema import FILE_NAME
from reroll.store.writing import COMMITS, IN_USE, STAMP, Writing

Sync: TypeAlias = Literal["os", "disk"]
Done: TypeAlias = Callable[[BaseException | None], None]

COMMIT_BYTES = 16 << 20
"""A commit ends with the change that reaches this, so that the first of a long queue do not wait for the last."""
_SYNCHRONOUS = {"os": "NORMAL", "disk": "FULL"}
_MAX_IDLE_READERS = 4


def open_store(
    directory: str | os.PathLike[str], *, sync: Sync = "os", on_corrupt: OnMissing = "raise"
) -> "Store":
    """Open the durable store of a directory, which is made with its parents if need be.

    After a crash it holds every change that was acknowledged, each as a whole: with `sync="os"` after the end of the
    process, with `sync="disk"` after that of the machine too. Raises `StoreLocked` if somebody has it open,
    `CorruptData`, `UnsupportedFormat`, `StoreFailed`. With `on_corrupt="skip"` it opens with a warning where acknowledged
    commits are missing.
    """
    directory = Path(directory)
    path = directory / FILE_NAME
    lock = lock_directory(directory)
    try:
        with writing(path):
            if not path.exists():
                _check_new(path, on_corrupt)
                write_file(directory, ())
        with open_checked(path, on_corrupt) as saved:  # ours and whole, else nothing is written to it
            last, counts = saved.last_commit(), saved.counts()
            amended = [(number, [row[0] for row in rows]) for number, rows in saved.amended()]
        return Store(path, lock, sync, last=last, counts=counts, amended=amended)
    except BaseException:
        lock.release()
        raise


def _check_new(path: Path, on_corrupt: OnMissing) -> None:
    """Raise CorruptData if a file that does not exist has left its log or the count of its commits behind."""
    left = [file for file in (Path(f"{path}-wal"), marker_of(path)) if file.exists()]
    if left and on_corrupt == "raise":
        raise CorruptData(
            f"{path} is missing, and {left[0].name} is there: the groups of a buffer were removed; restore the file from a "
            f'copy, or open the buffer with on_corrupt="skip" to begin with an empty one'
        )
    for file in (*left, Path(f"{path}-shm")):  # a log beside a new file would be taken for that one's
        file.unlink(missing_ok=True)


class Store(Closing):
    """A durable store, open for writing; see `open_store`. All methods may be called from any thread."""

    def __init__(
        self,
        path: Path,
        lock: DirectoryLock,
        sync: Sync,
        *,
        last: LastCommit,
        counts: dict[str, int],
        amended: Iterable[tuple[int, list[int]]],
    ) -> None:
        self._path = path
        self._lock = lock
        self._sync = sync
        self._last = last.mark
        self._is_in_use = last.is_in_use
        self._marker = Marker(path)
        self._files = InPlace()
        self._home = forking.here()
        self._guard = threading.Lock()  # held for moments only
        self._queue: SimpleQueue[tuple[Change, Done] | None] = SimpleQueue()  # None: the end
        self._is_closing = False
        self._error: RerollError | None = None
        self._idle_readers: list[sqlite3.Connection] = []
        self._commits = 0
        self._connection = _connect_writer(path, sync)
        try:
            with writing(path):
                self._writing = Writing(self._connection, counts, amended)
                self._open_files()
        except BaseException:
            self._connection.close()
            raise
        self._folding = Folding(path)
        self._thread = threading.Thread(target=self._run, name=f"reroll store {path}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def commits(self) -> int:
        """How many transactions were committed since it was opened."""
        return self._commits

    @property
    def error(self) -> RerollError | None:
        """Why nothing is written any more, or None."""
        return self._error

    # --- writing

    def write(self, change: Change, done: Done) -> None:
        """Queue a change and return at once. Raises `Closed` after `close`.

        `done` is called from the writer's thread: with None after the commit that holds the change, else with the error.
        It should be quick, since the next commit waits for it. Changes are written in the order of these calls; those
        that queue up while a commit runs share the next one. After a failed commit nothing more is written: the changes
        in it, all queued and all later ones get the same error.
        """
        self._check_process()
        with self._guard:
            self._check_open()
            self._queue.put((change, done))

    def _run(self) -> None:
        while batch := self._next_batch():
            num_bytes = sum(memoryview(blob).nbytes for change, _ in batch for _, blob in change.payloads)
            if self._error is None:
                try:
                    self._commit([change for change, _ in batch])
                except Exception as error:  # noqa: BLE001  (whatever it was, nothing may be written after it)
                    self._error = failed(error, self._path)
            for _, done in batch:
                try:
                    done(self._error)
                except Exception as error:  # noqa: BLE001  (the others still wait for theirs)
                    trace = error.__traceback__
                    threading.excepthook(threading.ExceptHookArgs((type(error), error, trace, self._thread)))
            del batch  # payloads go as soon as they are written
            if self._error is None:
                self._folding.committed(self._connection, num_bytes)
        self._finish()

    def _next_batch(self) -> list[tuple[Change, Done]]:
        """Wait for changes and return some; none when the store closes and all are written."""
        batch: list[tuple[Change, Done]] = []
        num_bytes = 0
        while not batch or (num_bytes < COMMIT_BYTES and not self._queue.empty()):
            queued = self._queue.get()
            if queued is None:
                self._queue.put(None)  # for the next time
                break
            batch.append(queued)
            num_bytes += sum(memoryview(blob).nbytes for _, blob in queued[0].payloads)
        return batch

    def _commit(self, changes: list[Change]) -> None:
        if not self._is_in_use:
            self._begin_use()
        with self._transaction():
            self._writing.apply(net(changes))
        self._marker.advance(self._last)
        self._commits += 1

    def _begin_use(self) -> None:
        """Write into the file itself that it is in use: from now on, a log or a marker that is missing shows."""
        self._marker.create(self._last, sync=self._sync == "disk")
        self._files.watch(self._marker.path)
        with self._transaction():
            pass  # nothing but that
        self._marker.advance(self._last)
        self._folding.fold(self._connection)
        self._is_in_use = True

    @contextmanager
    def _transaction(self, *, in_use: bool = True) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_only_writer()
            yield
            mark = Mark(self._last.number + 1, secrets.randbits(63))
            about = {COMMITS: mark.number, STAMP: mark.stamp}
            self._writing.finish(about if in_use == self._is_in_use else {**about, IN_USE: int(in_use)})
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._last = mark

    def _open_files(self) -> None:
        """Remember which files these are, and go on counting commits where a crash has left off."""
        for name in (self._path, f"{self._path}-wal", f"{self._path}-shm", self._lock.path):
            self._files.watch(Path(name))
        acknowledged = read_marker(self._path)
        if acknowledged is not None and 0 <= acknowledged.number <= self._last.number:
            self._marker.open()
            self._marker.advance(self._last)  # a kill may have come between the two writes
        elif acknowledged is not None or self._is_in_use:  # missing commits were accepted
            self._marker.create(self._last, sync=self._sync == "disk")
        self._files.watch(self._marker.path)

    def _check_only_writer(self) -> None:
        """Raise StoreFailed, within a transaction, if another process may write here, or has."""
        self._files.check()
        found = self._connection.execute("SELECT value FROM about WHERE name = ?", (COMMITS,)).fetchone()
        number = 0 if found is None else found[0]
        if number != self._last.number:
            raise StoreFailed(
                f"{self._path} was written by another process: it is at commit {number}, and this buffer wrote commit "
                f"{self._last.number}; end the other process, and open the buffer again"
            )

    # --- reading

    @property
    def state(self) -> bytes | None:
        """The state blob as it was last committed."""
        with self._reader() as read:
            return read.state()

    def rows(self, damaged: Damaged | None = None) -> Iterator[Row]:
        """Yield every committed row, by uid. Raises `CorruptData`; with `damaged`, tells it the uids of altered ones."""
        with self._reader() as read:
            yield from read.rows(damaged)

    def payload_uids(self) -> list[int]:
        """Return the uids of all committed payloads."""
        with self._reader() as read:
            return read.payload_uids()

    def facts(self, kind: str) -> Iterator[tuple[int | str | bytes, bytes]]:
        """Yield key and value of every committed fact of a kind, in the order in which the keys came."""
        with self._reader() as read:
            yield from read.facts(kind)

    def fact(self, kind: str, key: int | str | bytes) -> bytes:
        """Return the value of one committed fact. Raises `KeyError`, `CorruptData`."""
        with self._reader() as read:
            return read.fact(kind, key)

    def read(self, uids: Sequence[int]) -> list[bytes]:
        """Return committed payloads in the order of the uids. Raises `UnknownUid`, `CorruptData`, `StoreFailed`."""
        with self._reader() as read:
            return list(read.payloads(uids))

    @contextmanager
    def _reader(self) -> Iterator[Reading]:
        """Lend a connection that sees what is committed now."""
        self._check_process()
        with self._guard:
            self._check_open()
            connection = self._idle_readers.pop() if self._idle_readers else None
        if connection is None:
            with reading(self._path):
                connection = connect(self._path, "ro")
        try:
            with reading(self._path):
                connection.execute("BEGIN")
            yield Reading(connection, self._path)
        finally:
            self._return(connection)

    def _return(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with self._guard:
            if not self._is_closing and len(self._idle_readers) < _MAX_IDLE_READERS:
                self._idle_readers.append(connection)
                return
        connection.close()

    # --- copying

    def begin_copy(self) -> "Copy":
        """Fix what is committed now, quickly; `Copy.run` writes it later."""
        self._check_process()
        with self._guard:
            self._check_open()
        return Copy(Saved(self._path))

    def copy_to(self, directory: str | os.PathLike[str]) -> None:
        """Write what is committed now as a checkpoint, while writes go on. Raises as `write_checkpoint`."""
        with self.begin_copy() as copy:
            copy.run(directory)

    # --- the end

    def _check_open(self) -> None:
        if self._is_closing:
            raise Closed(f"the store {self._path} was closed; open it again")

    def _check_process(self) -> None:
        """Raise ForkedProcess in a forked child; before the guard, which another thread held maybe at the fork."""
        forking.check(self._home, f"the store {self._path}")

    def close(self) -> None:
        """Write what is queued, bring the log into the file, close it and give the directory free. Idempotent.

        From within `done` it returns at once, and the rest happens when the queue is written.
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

    def _finish(self) -> None:
        self._folding.close()
        try:
            if (
                self._error is not None
            ):  # SQLite brings the log into the file only where nothing else has it open
                self._folding.fold(self._connection)
            else:
                if self._is_in_use or self._writing.is_in_use:
                    self._write_in_place()
                self._connection.execute("PRAGMA busy_timeout = 0")  # whoever still reads needs the log
                is_busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not is_busy:
                    self._marker.remove()
        except (sqlite3.Error, OSError, RerollError):
            pass  # all is in the log, and the next to open it goes on from there
        finally:
            self._marker.close()
            self._connection.close()
            self._lock.release()

    def _write_in_place(self) -> None:
        """Leave a file as a checkpoint is, which older versions of this read as well."""
        with self._transaction(in_use=False):
            self._writing.write_in_place()
            schema.mark(self._connection, schema.FORMAT)


class Copy(Closing):
    """What was committed at one moment. As long as it is open, the store keeps what it has written since in its log."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._is_stopped = False

    def stop(self) -> None:
        """Let `run` raise Closed soon. From any thread."""
        self._is_stopped = True

    def run(self, directory: str | os.PathLike[str], damaged: Damaged | None = None) -> None:
        """Write it as a checkpoint, verified on the way. From any thread; raises as `write_checkpoint`.

        Close this copy only after `run` has returned: SQLite ends a process that closes what a thread reads. Payloads that were altered raise `CorruptData`, or are told to `damaged` and left out.
        """
        # Closed at once, also by an error that somebody keeps: what reads holds up the store's log.
        with closing(self._changes(damaged)) as changes:
            write_checkpoint(directory, changes)

    def _changes(self, damaged: Damaged | None) -> Generator[Change, None, None]:
        for change in self._all_changes(damaged):
            if self._is_stopped:
                raise Closed(f"the copy of {self._saved.path} was stopped")
            yield change
            del change  # before the next one is read

    def _all_changes(self, damaged: Damaged | None) -> Iterator[Change]:
        saved = self._saved
        yield Change(state=saved.state)
        for kind in saved.kinds():
            facts = saved.facts(kind)
            while some := [(kind, key, value) for key, value in islice(facts, 1000)]:
                yield Change(facts=list(some))
        rows = saved.rows()
        while part := list(islice(rows, 1000)):
            yield Change(rows=part)
        for uid, blob in saved.all_payloads(damaged):
            yield Change(payloads=[(uid, blob)])

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._saved.close()


def _connect_writer(path: Path, sync: Sync) -> sqlite3.Connection:
    with writing(path):
        connection = connect(path, "rw")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[sync]}")
            folding.prepare(connection)
        except BaseException:
            connection.close()
            raise
    return connection
