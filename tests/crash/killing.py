"""Death at a chosen event, the same in every run: a process kills itself, with SIGKILL, at its n-th call of a function."""

import os
import signal
import sys
import threading
from typing import Any

PARTS = ("reroll/store", "reroll/buffer", "reroll/engine")


class Trap:
    """Counts calls that code of reroll makes or receives, of Python and of C (so of SQLite), in all threads."""

    def __init__(self, at: int | None, thread: str | None = None) -> None:
        self.events = 0
        self.at = at  # None: never
        self._thread = thread

    def set(self) -> None:
        """Count in this thread."""
        sys.setprofile(self._count)

    def set_for_threads(self) -> None:
        """Count in threads that are started from now on."""
        threading.setprofile(self._count)

    def lift(self) -> None:
        """Count no longer in this thread."""
        sys.setprofile(None)

    def _count(self, frame: Any, event: str, _: Any) -> None:
        if event not in ("call", "c_call") or not any(part in frame.f_code.co_filename for part in PARTS):
            return
        if self._thread is not None and not threading.current_thread().name.startswith(self._thread):
            return
        self.events += 1
        if self.events == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
