"""Reservations: groups that producers may start, because they can still be trained in time."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from reroll.buffer.arguments import checked_count
from reroll.buffer.deadlines import Deadlines
from reroll.engine.task import Task
from reroll.errors import InvalidArgument, shown


class Reservation(NamedTuple):
    """Leave to start `groups` groups of a task. Give it to `put`, or to `release`."""

    id: int
    task_name: str
    groups: int


@dataclass(slots=True)
class _Open:
    task: Task
    left: int
    version: int
    """The version that generated when it was granted."""
    put_ids: set[Hashable] = field(default_factory=set)
    """Of the groups that were put."""


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
        self._open[self.last] = _Open(task, groups, task.serving_version)
        self._deadlines.add(self.last, deadline)
        task.reserved += groups
        task.count_running([task.serving_version], groups)
        return Reservation(self.last, task.name, groups)

    def check(self, reservation: Reservation | None, task_name: str) -> int:
        """Return how many groups of a reservation are left; one that ended has none. Raises InvalidArgument."""
        if reservation is None:
            return 0
        if not isinstance(reservation, Reservation):
            raise InvalidArgument(f"reservation must be what reserve() returned, not {shown(reservation)}")
        if reservation.task_name != task_name:
            raise InvalidArgument(
                f"the reservation is for task {shown(reservation.task_name)}, not {task_name!r}"
            )
        found = self._open.get(checked_count("reservation.id", reservation.id))
        return 0 if found is None else found.left

    def started(self, number: int) -> tuple[Task, int] | None:
        """Return the task of a reservation and the version that its groups started with; None if it has ended."""
        found = self._open.get(number)
        return None if found is None else (found.task, found.version)

    def settle(self, reservation: Reservation | None, put_id: Hashable = None) -> bool:
        """One of its groups was put, now or before; return whether that was not known yet."""
        found = None if reservation is None else self._open.get(reservation.id)
        if reservation is None or found is None or put_id in found.put_ids:
            return False
        if put_id is not None:
            found.put_ids.add(put_id)
        self._give_up(reservation.id, found, 1)
        return True

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
        found.task.count_running([found.version], -groups)
        if found.left == 0:
            del self._open[number]
            self._deadlines.discard(number)
