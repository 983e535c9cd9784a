"""What ends by itself, and when."""

from heapq import heapify, heappop, heappush
from typing import Final

_FEW: Final = 64
"""Ends that do not hold any more, and are not worth a look."""


class Deadlines:
    """Ends of numbered things, told the time; the next one is known without a look at all. O(log n) each."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # with ends that do not hold any more
        self._ends: dict[int, float] = {}

    def add(self, number: int, end: float | None) -> None:
        """Let something new end then; None: never by itself."""
        if end is not None:
            self._ends[number] = end
            heappush(self._heap, (end, number))

    def discard(self, number: int) -> None:
        """Forget something that ended otherwise."""
        if self._ends.pop(number, None) is not None and len(self._heap) > 2 * len(self._ends) + _FEW:
            self._heap = [(end, number) for number, end in self._ends.items()]
            heapify(self._heap)

    def of(self, number: int) -> float | None:
        """Return when something ends; None: never by itself."""
        return self._ends.get(number)

    def next(self) -> float | None:
        """Return the earliest end."""
        while self._heap and self._heap[0][1] not in self._ends:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_overdue(self, now: float) -> list[int]:
        """Return what has ended by now, the oldest number first, and forget it."""
        found: list[int] = []
        while (end := self.next()) is not None and end <= now:
            number = heappop(self._heap)[1]
            del self._ends[number]
            found.append(number)
        return sorted(found)
