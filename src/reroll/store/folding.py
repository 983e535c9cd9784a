"""The log of a store into its file, in a thread of its own: a commit does not wait for all that was written before it.

SQLite begins its log anew when a commit finds all of it in the file, and under steady writing that moment does not come by
itself. So the thread brings over what is there, then what has come meanwhile, until that is little; the rest is brought over
by whoever commits, between two commits.
"""

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

from reroll.store.connections import connect
from reroll.store.schema import PAGE_BYTES

LOG_BYTES = 64 << 20
"""The log goes into the file when it has grown to this. Until it begins anew it may become four times as large."""
_MAX_PASSES = 8
_FEW_PAGES = 32
"""What may be left to whoever commits."""
_OTHER_BYTES = 8 * PAGE_BYTES
"""What a commit adds to the log beside payloads, roughly: pages are written as a whole."""


def prepare(connection: sqlite3.Connection) -> None:
    """Leave the log to `Folding`."""
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {2 * LOG_BYTES}")


class Folding:
    """All but the thread's own work is done by the one thread that commits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: threading.Thread | None = None
        self._bytes = 0  # in the log that are not in the file, roughly

    def committed(self, connection: sqlite3.Connection, num_bytes: int) -> None:
        """Learn of a commit with so many bytes of payloads, and fold the log if it is time."""
        self._bytes += num_bytes + _OTHER_BYTES
        if self._thread is not None:
            if self._thread.is_alive() and self._bytes < 4 * LOG_BYTES:
                return
            self._thread.join()
            self._thread = None
            self._finish(connection)
        elif self._bytes >= LOG_BYTES:
            thread = threading.Thread(target=self._run, name=f"reroll log of {self._path}", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:  # the interpreter ends, and begins no threads any more
                self._finish(connection)

    def fold(self, connection: sqlite3.Connection) -> None:
        """Bring what is in the log into the file now, as far as no reader needs it."""
        with suppress(sqlite3.Error):  # all is in the log, and the next time comes
            _fold(connection)

    def close(self) -> None:
        """Wait for the thread. Idempotent."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _finish(self, connection: sqlite3.Connection) -> None:
        self.fold(connection)
        self._bytes = 0

    def _run(self) -> None:
        with suppress(sqlite3.Error), closing(connect(self._path, "rw")) as connection:
            before = 0
            for _ in range(_MAX_PASSES):
                folded = _fold(connection)
                if folded - before <= _FEW_PAGES:
                    break
                before = folded


def _fold(connection: sqlite3.Connection) -> int:
    """Return how many pages of the log are in the file. What a reader still needs stays there until the next time."""
    _, _, folded = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(folded)
