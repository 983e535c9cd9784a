"""Leases, on groups: who holds what, until when, and what becomes of it."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.buffer.groups import Groups
from reroll.engine.columns import IntArray
from reroll.engine.lending import acknowledge, give_back
from reroll.engine.task import Task
from reroll.errors import InvalidArgument, LeaseExpired
from reroll.sample import Sample

_REMEMBERED: Final = 4096
"""How many leases that ended are remembered, for late and for repeated acknowledgements."""


class Lent(NamedTuple):
    """One group under a lease, as it was when it was lent."""

    uid: int
    attempt: int
    refreshes: int
    """Of its task, until then."""


@dataclass(slots=True)
class Held:
    """One lease that is open."""

    groups: dict[str, list[list[Any]]]
    samples: dict[str, list[Sample]]
    lent: list[Lent]
    status: int
    steps: dict[str, int | None]
    """The training step that groups were lent for, by task."""
    deadline: float | None
    handed_again: set[int] = field(default_factory=set)
    """Of a lease that ended by time: the groups that somebody else got since."""


class Leases:
    """All leases of a buffer. Told the time, never waits."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._open: dict[int, Held] = {}
        self._ended: OrderedDict[int, Held] = OrderedDict()  # by time, not yet acknowledged
        self._acked: OrderedDict[int, None] = OrderedDict()
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def num_groups(self) -> int:
        """How many groups are lent, each as often as it is."""
        return sum(len(held.lent) for held in self._open.values())

    def lend(self, wanted: Mapping[Task, int], status: int, deadline: float | None) -> tuple[int, Held]:
        """Lend what is there of what is wanted; return the lease's id, and what it holds."""
        samples = {task.name: self._groups.lend(task, status, n) if n else [] for task, n in wanted.items()}
        held = Held(
            groups={name: [sample.group for sample in given] for name, given in samples.items()},
            samples=samples,
            lent=[
                Lent(*self._groups.edition(sample.info.uid)) for given in samples.values() for sample in given
            ],
            status=status,
            steps={task.name: task.step for task in wanted},
            deadline=deadline,
        )
        self._last += 1
        self._open[self._last] = held
        return self._last, held

    def ack(self, lease: int) -> None:
        """Let the groups of a lease be consumed. Raises LeaseExpired for those that were handed out again."""
        if lease in self._acked:  # a repeated call is harmless
            return
        held = self._open.pop(lease, None)
        if held is not None:
            self._remember(lease)
            slots = self._slots(held)
            self._groups.count_trained(slots)
            self._groups.settle(acknowledge(self._groups.engine, slots, held.steps))
            return
        held = self._ended.pop(lease, None)
        if held is None:
            raise InvalidArgument(f"lease {lease} was given back before, or is too old to be acknowledged")
        self._remember(lease)
        still = [lent.uid for lent in held.lent if self._groups.edition(lent.uid)[:2] == lent[:2]]
        self._groups.use([uid for uid in still if uid not in held.handed_again], held.status, held.steps)
        if held.handed_again:
            raise LeaseExpired(
                f"the lease had ended, and these groups were handed out again: {sorted(held.handed_again)}; the others "
                "were consumed. Give a longer ttl_s",
                sorted(held.handed_again),
            )

    def nack(self, lease: int) -> None:
        """Give the groups of a lease back; a lease that ended already has done so."""
        held = self._open.pop(lease, None)
        if held is not None:
            self._give_back(held)
        else:
            self._ended.pop(lease, None)

    def end_overdue(self, now: float) -> bool:
        """End the leases whose time is over; return whether there were any."""
        overdue = [
            lease for lease, held in self._open.items() if held.deadline is not None and held.deadline <= now
        ]
        for lease in overdue:
            held = self._ended[lease] = self._open.pop(lease)
            self._groups.on_hand_out = self.note_handed_out
            self._give_back(held)
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        return bool(overdue)

    def give_back_all(self) -> None:
        """Give back the groups of all leases."""
        for lease in list(self._open):
            self.nack(lease)

    def next_deadline(self) -> float | None:
        """Return when the next lease ends by time."""
        return min((held.deadline for held in self._open.values() if held.deadline is not None), default=None)

    def note_handed_out(self, uids: list[int]) -> None:
        """Remember who got groups whose lease had ended."""
        for held in self._ended.values():
            held.handed_again.update({lent.uid for lent in held.lent}.intersection(uids))

    def _slots(self, held: Held) -> IntArray:
        """Return where the groups of a lease are; one that was rolled again meanwhile is another one."""
        same = [lent.uid for lent in held.lent if self._groups.edition(lent.uid)[:2] == lent[:2]]
        return self._groups.held_slots(same)

    def _remember(self, lease: int) -> None:
        self._acked[lease] = None
        if len(self._acked) > _REMEMBERED:
            self._acked.popitem(last=False)

    def _give_back(self, held: Held) -> None:
        slots = self._slots(held)
        self._groups.forget_told(
            [lent.uid for lent in held.lent if self._groups.edition(lent.uid)[2] != lent.refreshes]
        )
        settled = give_back(self._groups.engine, slots)
        self._groups.settle(settled)
        self._groups.recheck(np.setdiff1d(settled.back, settled.gone))
