"""Poll: one question at an interval, shared by all who look, with a short history in memory.

Nobody asks while nobody looks. However large the buffer is, asking takes a hundredth of the time at most, unless that
would be more than ten seconds between two questions.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from reroll.engine.ledger import Amount
from reroll.errors import RerollError
from reroll.observe.view import View
from reroll.telemetry.stats import Stats

_SHARE: Final = 100
"""After an answer that took long, so many times as long passes before the next question,"""
_LONGEST_S: Final = 10.0
"""but not more: where everything is slow, somebody still wants to see it."""


class Rates(NamedTuple):
    """Groups a second, since the moment before."""

    put_per_s: float
    trained_per_s: float
    """Handed to a trainer; each use counts."""
    consumed_per_s: float
    """That left by their last use."""


class Moment(NamedTuple):
    """What was seen at one time."""

    at: float
    """Seconds since 1970, which never go back: those of the wall clock when the poll began, and the time since."""
    stats: Stats | None
    """None: the buffer did not answer."""
    ledger: dict[str, dict[str, Amount]]
    rates: dict[str, Rates]
    """By task, those that are known; "" is all of them together."""
    error: str | None = None
    """Why it did not answer."""


class Poll:
    """Asks a view, for any number of viewers.

    Args:
        view: what is asked.
        interval_s: seconds between two questions, at least.
        history: how many moments are kept.

    """

    def __init__(self, view: View, *, interval_s: float = 1.0, history: int = 600) -> None:
        self.view = view
        self.history: deque[Moment] = deque(maxlen=history)
        """The oldest first."""
        self._interval_s = interval_s
        self._viewers: set[asyncio.Event] = set()
        self._asking: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._is_over = False
        self._began = time.time() - time.monotonic()

    @property
    def latest(self) -> Moment | None:
        """What was seen last, None before the first answer."""
        return self.history[-1] if self.history else None

    async def now(self) -> Moment:
        """Return a moment that is not older than the interval; those who ask at the same time share it."""
        async with self._turn:
            latest = self.latest
            if latest is None or self._time() - latest.at >= self._interval_s:
                latest = await self._ask()
            return latest

    async def moments(self) -> AsyncIterator[Moment]:
        """Yield what is seen, each moment once, until `end`; a slow viewer leaves some out."""
        news = asyncio.Event()
        self._viewers.add(news)
        if self._asking is None:
            self._asking = asyncio.create_task(self._keep_asking())
        shown: Moment | None = None
        try:
            while not self._is_over:
                news.clear()
                latest = self.latest
                if latest is not None and latest is not shown:
                    shown = latest
                    yield latest
                else:
                    await news.wait()
        finally:
            self._viewers.discard(news)
            if not self._viewers and self._asking is not None:
                self._asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._asking
                self._asking = None

    def end(self) -> None:
        """Let all viewers go."""
        self._is_over = True
        for news in self._viewers:
            news.set()

    def _time(self) -> float:
        """Return the time in a clock that a change of the system's time does not move."""
        return self._began + time.monotonic()

    async def _keep_asking(self) -> None:
        while True:
            started = time.monotonic()
            await self.now()
            took = time.monotonic() - started
            await asyncio.sleep(max(self._interval_s, min(took * _SHARE, _LONGEST_S)))

    async def _ask(self) -> Moment:
        before = self.latest
        try:
            stats = await self.view.stats()
            ledger = await self.view.ledger()
        except (RerollError, OSError) as error:
            moment = Moment(self._time(), None, {}, {}, str(error))
        else:
            at = self._time()
            moment = Moment(at, stats, ledger, _rates(before, at, stats, ledger))
        self.history.append(moment)
        for news in self._viewers:
            news.set()
        return moment


def _rates(
    before: Moment | None, at: float, stats: Stats, ledger: dict[str, dict[str, Amount]]
) -> dict[str, Rates]:
    if before is None or before.stats is None or at <= before.at:
        return {}
    then, seconds = _counts(before.stats, before.ledger), at - before.at
    return {
        name: Rates(*(max(0.0, (new - old) / seconds) for new, old in zip(counts, then[name], strict=True)))
        for name, counts in _counts(stats, ledger).items()
        if name in then
    }


def _counts(stats: Stats, ledger: dict[str, dict[str, Amount]]) -> dict[str, tuple[int, int, int]]:
    """Return groups that were put, trained and consumed, by task and over all."""
    counts = {
        name: (task.num_puts, task.trained.groups, _consumed(ledger.get(name, {})))
        for name, task in stats.tasks.items()
    }
    put, trained, consumed = zip(*counts.values(), strict=True) if counts else ((0,), (0,), (0,))
    return {"": (sum(put), sum(trained), sum(consumed)), **counts}


def _consumed(amounts: dict[str, Amount]) -> int:
    return sum(amounts[bucket].groups for bucket in ("consumed", "uncommitted") if bucket in amounts)
