"""Leases, on groups: who holds what, until when, and what becomes of it."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from reroll.buffer.deadlines import Deadlines
from reroll.buffer.groups import Groups
from reroll.buffer.handed import Handed
from reroll.buffer.tracked import Tracked
from reroll.engine.rows import NO_ROWS, RESIDENT, UNCOMMITTED, IntArray
from reroll.engine.task import COMPLETED, Task
from reroll.errors import InvalidArgument, LeaseExpired
from reroll.telemetry.stats import OpenLease

_REMEMBERED: Final = 4096
"""How many leases that ended are remembered, for late and for repeated acknowledgements."""
_SHOWN: Final = 100
"""How many leases `stats` lists."""


class Lent(NamedTuple):
    """One group under a lease, as it was when it was lent."""

    uid: int
    attempt: int
    refreshes: int
    """Of its task, until then."""


@dataclass(slots=True)
class Held:
    """One lease that is open."""

    lent: list[Lent]
    status: int
    steps: dict[str, int | None]
    """The training step that groups were lent for, by task."""
    handed_again: set[int] = field(default_factory=set)
    """Groups of an expired lease that were delivered again since."""


class Leases:
    """All leases of a buffer. Told the time, never waits."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._open: dict[int, Held] = {}
        self._since: dict[int, float] = {}  # of open ones
        self._deadlines = Deadlines()  # of open ones
        self._ended: OrderedDict[int, Held] = OrderedDict()  # by time, not yet acknowledged
        self._ended_with: dict[int, set[int]] = {}  # by uid: those of them that held it
        self._acked: OrderedDict[int, None] = OrderedDict()
        self.last = 0
        self.entries: Tracked[int, Held | None] = Tracked()
        """Leases that may still be acknowledged; None: acknowledged."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, lease: object) -> bool:
        """Tell whether a lease is open."""
        return lease in self._open

    def open_leases(self, now: float) -> list[OpenLease]:
        """Return the oldest leases that are open, at a time."""
        return [
            OpenLease(
                id=lease,
                tasks=list(held.steps),
                groups=len(held.lent),
                held_s=now - self._since[lease],
                ends_in_s=None if (end := self._deadlines.of(lease)) is None else end - now,
            )
            for lease, held in islice(self._open.items(), _SHOWN)
        ]

    @property
    def num_groups(self) -> int:
        """How many groups are lent, each as often as it is."""
        return sum(len(held.lent) for held in self._open.values())

    def lend(
        self, wanted: Mapping[Task, int], status: int, now: float, deadline: float | None
    ) -> tuple[int, list[Handed]]:
        """Lease available groups; return the lease's id, and the delivery of each task."""
        handed = [self._groups.lend(task, status, n) for task, n in wanted.items() if n]
        held = Held(
            lent=[Lent(*self._groups.edition(group.uid)) for given in handed for group in given.groups],
            status=status,
            steps={task.name: task.step for task in wanted},
        )
        self.last += 1
        self._open[self.last], self._since[self.last] = held, now
        self._deadlines.add(self.last, deadline)
        self._changed(self.last)
        return self.last, handed

    def ack(self, lease: int, step: int | None = None) -> None:
        """Let the groups of a lease be consumed, by this training step or that which they were lent for.

        Raises LeaseExpired for those that were handed out again.
        """
        if lease in self._acked:  # a repeated call is harmless
            return
        held = self._close(lease)
        if held is not None:
            self._remember(lease)
            slots = self._slots(held)
            mine = slots[self._groups.engine.columns.place[slots] != UNCOMMITTED]  # others have their takers
            self._groups.count_trained(slots)
            self._groups.settle(self._groups.engine.acknowledge(slots, self._steps(held, step)))
            self._groups.consumed(mine)
            return
        held = self._forget_ended(lease)
        if held is None:
            raise InvalidArgument(
                f"lease {lease} is unknown: it was nacked, or it ended too long ago to be acknowledged"
            )
        self._remember(lease)
        still = [lent.uid for lent in held.lent if self._groups.edition(lent.uid)[:2] == lent[:2]]
        usable = [uid for uid in still if uid not in held.handed_again]
        slots = self._groups.resident_slots(usable)
        self._groups.use(usable, held.status, self._steps(held, step))
        self._groups.consumed(slots)
        if held.handed_again:
            raise LeaseExpired(
                f"the lease had ended, and these groups were handed out again: {sorted(held.handed_again)}; the others "
                "were consumed. Give a longer ttl_s",
                sorted(held.handed_again),
            )

    def nack(self, lease: int) -> None:
        """Give the groups of a lease back; a lease that ended already has done so."""
        held = self._close(lease)
        if held is not None:
            self._give_back(held)
        else:
            self._forget_ended(lease)
        self._changed(lease)

    def undo(self, lease: int, handed: Iterable[Handed]) -> None:
        """Undo a lease that did not reach its holder."""
        self.nack(lease)
        for given in handed:
            self._groups.forget_again(given)

    def has_stale(self, lease: int) -> bool:
        """Return whether COMPLETED groups of a lease have passed `max_staleness` since; also if it ended by time."""
        held = self._open.get(lease) or self._ended.get(lease)
        if held is None or held.status != COMPLETED:
            return False
        same = [lent.uid for lent in held.lent if self._groups.edition(lent.uid)[:2] == lent[:2]]
        slots = self._groups.all_slots(same)
        is_other = self._groups.engine.columns.status[slots] != COMPLETED
        return len(same) < len(held.lent) or bool((is_other | self._groups.is_beyond(slots)).any())

    def keep(self, lease: int, uids: Iterable[int]) -> None:
        """Give back all groups of a lease but these, as if they had not been lent; one that has ended has given back all."""
        held, kept = self._open.get(lease), set(uids)
        if held is not None:
            rest = replace(held, lent=[lent for lent in held.lent if lent.uid not in kept])
            held.lent = [lent for lent in held.lent if lent.uid in kept]
            self._changed(lease)
            self._give_back(rest, delivered=False)

    def end_overdue(self, now: float) -> bool:
        """End the leases whose time is over; return whether there were any."""
        overdue = self._deadlines.pop_overdue(now)
        for lease in overdue:
            self.end(lease)
        return bool(overdue)

    def end(self, lease: int) -> None:
        """End a lease whose holder seems to be gone: its groups come back, but it may still be acknowledged."""
        self._end_several([lease])

    def end_all(self) -> None:
        """End all leases."""
        self._end_several(list(self._open))

    def _end_several(self, leases: Iterable[int]) -> None:
        """End leases: all uses are given back before a group expires, as after a crash."""
        ended = {lease: held for lease in leases if (held := self._close(lease)) is not None}
        back = [NO_ROWS]
        for lease, held in ended.items():
            self._end(lease, held)
            back.append(self._give_back_uses(held))
        self._groups.recheck(np.unique(np.concatenate(back)))
        self._groups.expect(lent.uid for held in ended.values() for lent in held.lent)

    def next_deadline(self) -> float | None:
        """Return when the next lease ends by time."""
        return self._deadlines.next()

    def note_handed_out(self, uids: list[int]) -> dict[int, set[int]]:
        """Remember that others got groups whose lease had ended; return what was not known yet, by lease."""
        noted: dict[int, set[int]] = {}
        for uid in self._ended_with.keys() & uids:
            for lease in self._ended_with[uid]:
                if uid not in self._ended[lease].handed_again:
                    noted.setdefault(lease, set()).add(uid)
        for lease, again in noted.items():
            self._ended[lease].handed_again |= again
            self._changed(lease)
        return noted

    def note_taken_back(self, noted: Mapping[int, set[int]]) -> None:
        """Drop the record of a delivery that was rolled back."""
        for lease, again in noted.items():
            if lease in self._ended:
                self._ended[lease].handed_again -= again
                self._changed(lease)

    def _slots(self, held: Held) -> IntArray:
        """Return where the groups of a lease are; one that was rolled again meanwhile is another one."""
        same = [lent.uid for lent in held.lent if self._groups.edition(lent.uid)[:2] == lent[:2]]
        return self._groups.held_slots(same)

    def restore(self, known: Mapping[int, Held | None]) -> None:
        """Load committed leases: their holders are gone, but may still acknowledge them."""
        self.entries.load(known)
        for lease, held in known.items():
            if held is None:
                self._remember(lease)
            else:
                self._end(lease, held)
        if self.entries.dirty is not None:
            self.entries.dirty = set(known.keys() - self.entries.keys())  # too many to be remembered

    def recheck(self, uids: Iterable[int]) -> None:
        """Let groups whose holders are no more expire, if a refresh would have let them while those had them."""
        for held in self._ended.values():
            self._groups.forget_told(self._refreshed_since(held), RESIDENT)
        self._groups.recheck(self._groups.resident_slots(uids))

    def _refreshed_since(self, held: Held) -> list[int]:
        """Return the groups of a lease whose task was refreshed since they were lent."""
        now = {lent: self._groups.edition(lent.uid) for lent in held.lent}
        return [lent.uid for lent, known in now.items() if known[:2] == lent[:2] and known[2] != lent[2]]

    def _changed(self, lease: int) -> None:
        if lease in self._acked:
            self.entries[lease] = None
        elif (held := self._open.get(lease) or self._ended.get(lease)) is not None:
            self.entries[lease] = held
        else:
            self.entries.discard(lease)

    def _close(self, lease: int) -> Held | None:
        self._deadlines.discard(lease)
        self._since.pop(lease, None)
        return self._open.pop(lease, None)

    def _forget_ended(self, lease: int) -> Held | None:
        held = self._ended.pop(lease, None)
        for uid in () if held is None else {lent.uid for lent in held.lent}:
            self._ended_with[uid].discard(lease)
            if not self._ended_with[uid]:
                del self._ended_with[uid]
        return held

    def _end(self, lease: int, held: Held) -> None:
        self._ended[lease] = held
        for lent in held.lent:
            self._ended_with.setdefault(lent.uid, set()).add(lease)
        self._groups.on_hand_out, self._groups.on_take_back = self.note_handed_out, self.note_taken_back
        self._changed(lease)
        if len(self._ended) > _REMEMBERED:
            oldest = next(iter(self._ended))
            self._forget_ended(oldest)
            self._changed(oldest)

    def _remember(self, lease: int) -> None:
        self._acked[lease] = None
        self._changed(lease)
        if len(self._acked) > _REMEMBERED:
            self._changed(self._acked.popitem(last=False)[0])

    def _give_back(self, held: Held, *, delivered: bool = True) -> None:
        self._groups.recheck(self._give_back_uses(held, delivered=delivered))

    def _give_back_uses(self, held: Held, *, delivered: bool = True) -> IntArray:
        """Undo the pending uses of a lease; return the rows that are back in their pool."""
        slots = self._slots(held)
        self._groups.forget_told(self._refreshed_since(held))
        settled = self._groups.engine.give_back(slots, delivered=delivered)
        self._groups.settle(settled)
        return np.setdiff1d(settled.back, settled.gone)

    def _steps(self, held: Held, step: int | None) -> dict[str, int | None]:
        """Return the training step that has used the groups of a lease, by task.

        A lease for a step that was rewound is used by the step that the task is at: a commit of that step covers the use.
        """
        if step is not None:
            return dict.fromkeys(held.steps, step)
        tasks = self._groups.engine.tasks
        now = {name: tasks[name].step if name in tasks else None for name in held.steps}
        return {
            name: at if at is None or (known := now[name]) is None else min(at, known)
            for name, at in held.steps.items()
        }
