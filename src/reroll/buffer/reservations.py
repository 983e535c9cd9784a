"""Reservations: groups that producers may start, because they can still be trained in time."""

from dataclasses import dataclass
from typing import NamedTuple

from reroll.buffer.deadlines import Deadlines
from reroll.engine.task import Task
from reroll.errors import InvalidArgument


class Reservation(NamedTuple):
    """Leave to start `groups` groups of a task. Give it to `put`, or to `release`."""

    id: int
    task_name: str
    groups: int


@dataclass(slots=True)
class _Open:
    task: Task
    left: int


class Reservations:
    """All reservations of a buffer. Told the time, never waits."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._deadlines = Deadlines()
        self.last = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: object) -> bool:
        """Tell whether a reservation has a group left."""
        return number in self._open

    def make(self, task: Task, groups: int, deadline: float | None) -> Reservation:
        self.last += 1
        self._open[self.last] = _Open(task, groups)
        self._deadlines.add(self.last, deadline)
        task.reserved += groups
        return Reservation(self.last, task.name, groups)

    def check(self, reservation: Reservation | None, task_name: str) -> bool:
        """Return whether a reservation has a group left; one that ended has none. Raises InvalidArgument."""
        if reservation is None:
            return False
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(f"reservation must be what reserve() returned, not {reservation!r}")
        if reservation.task_name != task_name:
            raise InvalidArgument(f"the reservation is for task {reservation.task_name!r}, not {task_name!r}")
        return reservation.id in self

    def settle(self, reservation: Reservation) -> None:
        """One of its groups was put."""
        found = self._open.get(reservation.id)
        if found is not None:
            self._give_up(reservation.id, found, 1)

    def release(self, reservation: Reservation) -> int:
        """Give up what is left of it; return how many groups that were."""
        found = self._open.get(reservation.id)
        if found is None:
            return 0
        left = found.left
        self._give_up(reservation.id, found, left)
        return left

    def end_overdue(self, now: float) -> bool:
        """End the reservations whose time is over; return whether there were any."""
        overdue = self._deadlines.pop_overdue(now)
        for number in overdue:
            found = self._open[number]
            self._give_up(number, found, found.left)
        return bool(overdue)

    def next_deadline(self) -> float | None:
        """Return when the next one ends by time."""
        return self._deadlines.next()

    def _give_up(self, number: int, found: _Open, groups: int) -> None:
        found.left -= groups
        found.task.reserved -= groups
        if found.left == 0:
            del self._open[number]
            self._deadlines.discard(number)
