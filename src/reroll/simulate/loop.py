"""An event loop in virtual time: where nothing is ready, its clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from reroll.errors import Deadlock

T = TypeVar("T")


class _Stuck(Exception):  # noqa: N818
    """Nothing is ready, and no timer is set."""


class _Jumping(selectors.DefaultSelector):
    """A selector that moves the clock of its loop instead of sleeping."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise _Stuck
        self.loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time starts at 0 and costs nothing to wait for. It serves no sockets and no threads."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self.now


def run(main: Coroutine[Any, Any, T], explain: Callable[[], str] | None = None) -> T:
    """Run a coroutine in virtual time, and return its result.

    Args:
        main: the coroutine.
        explain: returns what to add to the message of `Deadlock`.

    Raises:
        Deadlock: nothing can ever happen again, and the coroutine has not finished.

    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(main)
        except _Stuck:
            why = "" if explain is None else f"; {explain()}"
            raise Deadlock(
                f"every part of the simulation waits for another part, and no timer is set{why}"
            ) from None
