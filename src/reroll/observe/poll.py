"""`Poll`: one request per interval, shared by all viewers, with a short history in memory.

Without viewers nothing is requested. Requests take at most a hundredth of the time, however large the buffer is, unless
that would put more than ten seconds between two of them.
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

_PAUSE_FACTOR: Final = 100
"""After a slow answer the poll pauses for this many times as long,"""
_LONGEST_PAUSE_S: Final = 10.0
"""but at most for this long."""

Ledger = dict[str, dict[str, Amount]]


class Rates(NamedTuple):
    """Groups per second since the previous moment."""

    put_per_s: float
    trained_per_s: float
    """Groups delivered to a trainer; each use counts."""
    consumed_per_s: float
    """Groups that left by their last use."""


class Moment(NamedTuple):
    """The answer to one request."""

    at: float
    """Seconds since 1970 that never go back: the wall clock when the poll began, plus the time since."""
    stats: Stats | None
    """None if the buffer did not answer."""
    ledger: Ledger
    rates: dict[str, Rates]
    """By task, as far as known; "" is the sum over all tasks."""
    error: str | None = None
    """Why the buffer did not answer."""


class Poll:
    """Requests stats and ledger of a view, for any number of viewers.

    Args:
        view: the view.
        interval_s: least number of seconds between two requests.
        history: moments that are kept.

    """

    def __init__(self, view: View, *, interval_s: float = 1.0, history: int = 600) -> None:
        self.view = view
        self.history: deque[Moment] = deque(maxlen=history)
        """The oldest moment first."""
        self._interval_s = interval_s
        self._viewers: set[asyncio.Event] = set()
        self._polling: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._is_over = False
        self._began = time.time() - time.monotonic()

    @property
    def latest(self) -> Moment | None:
        """The newest moment, None before the first answer."""
        return self.history[-1] if self.history else None

    async def now(self) -> Moment:
        """Return a moment that is not older than the interval. Concurrent callers share one request."""
        async with self._turn:
            latest = self.latest
            if latest is None or self._time() - latest.at >= self._interval_s:
                latest = await self._request()
            return latest

    async def moments(self) -> AsyncIterator[Moment]:
        """Yield each new moment once, until `end`; a slow viewer skips moments."""
        news = asyncio.Event()
        self._viewers.add(news)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
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
            if not self._viewers and self._polling is not None:
                self._polling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._polling
                self._polling = None

    def end(self) -> None:
        """End the iteration of all viewers."""
        self._is_over = True
        for news in self._viewers:
            news.set()

    def _time(self) -> float:
        return self._began + time.monotonic()

    async def _poll(self) -> None:
        while True:
            started = time.monotonic()
            await self.now()
            took = time.monotonic() - started
            await asyncio.sleep(max(self._interval_s, min(took * _PAUSE_FACTOR, _LONGEST_PAUSE_S)))

    async def _request(self) -> Moment:
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


def _rates(before: Moment | None, at: float, stats: Stats, ledger: Ledger) -> dict[str, Rates]:
    if before is None or before.stats is None or at <= before.at:
        return {}
    then, seconds = _counts(before.stats, before.ledger), at - before.at
    return {
        name: Rates(*(max(0.0, (new - old) / seconds) for new, old in zip(counts, then[name], strict=True)))
        for name, counts in _counts(stats, ledger).items()
        if name in then
    }


def _counts(stats: Stats, ledger: Ledger) -> dict[str, tuple[int, ...]]:
    """Return the groups that were put, trained and consumed, by task, and over all tasks as ""."""
    counts: dict[str, tuple[int, ...]] = {}
    for name, task in stats.tasks.items():
        amounts = ledger.get(name, {})
        consumed = sum(amounts[bucket].groups for bucket in ("consumed", "uncommitted") if bucket in amounts)
        counts[name] = task.num_puts, task.trained.groups, consumed
    return {"": tuple(map(sum, zip(*counts.values(), strict=True))) if counts else (0, 0, 0), **counts}
