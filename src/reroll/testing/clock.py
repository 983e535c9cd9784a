"""ManualClock: time that passes only when a test or a simulator says so."""

from collections.abc import Callable
from itertools import count


class ManualClock:
    """A monotonic clock in seconds, with a list of what waits for a moment.

    It stands in for `time.monotonic`. Nothing runs by itself: `advance` moves the time and calls what became due, in
    order of time and then of arrival, each at its own moment.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._arrivals = count()
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._now

    __call__ = monotonic

    def call_at(self, moment_s: float, callback: Callable[[], None]) -> int:
        """Call back when the time has come (a past moment: at the next `advance`); return a ticket."""
        ticket = next(self._arrivals)
        self._waiting[ticket] = (moment_s, callback)
        return ticket

    def cancel(self, ticket: int) -> bool:
        """Return whether the callback was still waiting; it will not be called."""
        return self._waiting.pop(ticket, None) is not None

    @property
    def next_moment(self) -> float | None:
        """When the next callback is due; None: no callback waits."""
        return min((moment for moment, _ in self._waiting.values()), default=None)

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError if it were to go backwards."""
        if not seconds >= 0:
            raise ValueError(f"time only passes forwards, not by {seconds}")
        end = self._now + seconds
        while self._waiting:
            ticket = min(self._waiting, key=lambda waiting: (self._waiting[waiting][0], waiting))
            moment, callback = self._waiting[ticket]
            if moment > end:
                break
            del self._waiting[ticket]
            self._now = max(self._now, moment)
            callback()  # may wait for further moments, also within this advance
        self._now = end
