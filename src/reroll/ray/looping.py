"""The event loop of all blocking handles of this process, in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from reroll import forking
from reroll.interrupts import run_in

T = TypeVar("T")


class _Loop:
    """Starts with the first coroutine, and lasts as long as the process."""

    def __init__(self) -> None:
        self._home = forking.here()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; whoever is interrupted cancels it."""
        if forking.is_elsewhere(self._home):
            coroutine.close()
        forking.check(self._home, "the handle")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="reroll-ray", daemon=True).start()
        return run_in(self._loop, coroutine)


run: Final = _Loop().run
"""Run a coroutine to its end, and return what comes of it."""
