"""Deliver groups: select rows, record the delivery, and roll it back if it did not reach its caller."""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from reroll.buffer.expiring import Expiring
from reroll.buffer.group import Group, Payload
from reroll.buffer.handed import Handed
from reroll.engine.rewind import drop_consumed, finalize_oldest_step, undo_use
from reroll.engine.rows import NO_VERSION, OUT, UNCOMMITTED, IntArray
from reroll.engine.task import COMPLETED, EXPIRED, RETURNING, Task
from reroll.engine.uses import Use
from reroll.errors import UncommittedWarning
from reroll.rollout.checkout import Checkout


class HandOuts(Expiring):
    """What hands groups out, or takes that back; see `Groups`."""

    def take(self, task: Task, status: int, n: int) -> Handed:
        """Take up to n groups out. Raises WouldBlock while limiter or sampler do not allow it."""
        engine, columns = self.engine, self.engine.columns
        before = engine.last_use
        slots, gone = engine.take(task, status, n, task.step)
        handed = self._handed(task, status, slots)
        handed.leaves = len(gone) > 0
        if task.settings.is_durable:  # else nothing comes between this and the caller, and it is never undone
            handed.used = Use.of(0, columns, slots)
            self._note_use(handed, before)
        if status == COMPLETED:
            handed.uses = columns.uses[slots].tolist()
        elif status in RETURNING:
            handed.checkouts = self._checkouts(slots)
            for group in handed.groups:
                self.out.add(group.uid)
        self._count_retaken(handed, 1)
        handed.again = self._note(task, status, slots)
        self._forget(gone)
        self._settle_uses(task, slots)
        return handed

    def sample(self, task: Task, n: int, *, replace: bool) -> Handed:
        """Draw n COMPLETED groups, or all if there are fewer; those without a use left go. Raises WouldBlock."""
        before = self.engine.last_use
        drawn = self.engine.draw(task, n, replace=replace, step=task.step)
        handed = self._handed(task, COMPLETED, drawn.slots)
        handed.drawn = drawn
        handed.uses = drawn.times_sampled.tolist()
        rows, times = np.unique(drawn.slots, return_counts=True)
        handed.used = Use.of(0, self.engine.columns, rows, times)
        self._note_use(handed, before)
        handed.again = self._note(task, COMPLETED, drawn.slots)
        self._forget(drawn.gone)
        self._settle_uses(task, drawn.slots)
        return handed

    def lend(self, task: Task, status: int, n: int) -> Handed:
        """Lend n groups, or all if there are fewer. Raises WouldBlock."""
        drawn = self.engine.lend(task, status, n)
        handed = self._handed(task, status, drawn.slots)
        handed.again = self._note(task, status, drawn.slots)
        handed.drawn = drawn
        self._count_retaken(handed, 1)
        if status in RETURNING:
            handed.checkouts = self._checkouts(drawn.slots)
        return handed

    def _count_retaken(self, handed: Handed, sign: int) -> None:
        if handed.status == EXPIRED:
            self.counters.count_retaken(handed.task.name, sign * len(handed.groups))

    def _checkouts(self, slots: IntArray) -> list[str]:
        """Return the marks that rollouts of these rows are handed out with."""
        columns, name = self.engine.columns, self.out.name.now
        return [
            Checkout(name, uid, attempt).text
            for uid, attempt in zip(
                columns.uid[slots].tolist(), columns.attempts[slots].tolist(), strict=True
            )
        ]

    def look(self, uids: Iterable[int]) -> list[Handed]:
        """Return groups without taking them, each by itself. Raises UnknownUid."""
        return self.look_at(self.slots(uids))

    def look_at(self, slots: IntArray) -> list[Handed]:
        """Do the same by slot, wherever the groups are."""
        tasks = list(self.engine.tasks.values())
        columns = self.engine.columns
        return [
            self._handed(tasks[columns.task[slot]], int(columns.status[slot]), np.array([slot]))
            for slot in slots.tolist()
        ]

    def show(self, handed: Handed) -> list[Payload]:
        """Return the rollouts of delivered groups."""
        if self.witnesses:
            for group in handed.groups:
                self._before_change(group)
        return handed.show()

    def hand_over(self, handed: Handed) -> list[Payload]:
        """Return the rollouts of groups that are handed out; those that are rolled again come back by them."""
        shown = self.show(handed)
        if handed.status in RETURNING:
            for group in handed.groups:
                self.out.learn(group)
        return shown

    def count_handed(self, handed: Handed) -> None:
        """Count what is trained."""
        if len(handed.uses):
            self.counters.count_trained(*self._training(handed))

    def _training(self, handed: Handed) -> tuple[str, list[Group], int | None, Sequence[int], list[int]]:
        return handed.task.name, handed.groups, handed.step, handed.uses, handed.told

    def undo_all(self, handed: Iterable[Handed]) -> None:
        """Undo deliveries that did not reach the caller."""
        for given in handed:
            self.take_back(given)

    def take_back(self, handed: Handed) -> None:
        """Roll back a delivery that did not reach its caller, for groups without a later change."""
        assert handed.used is not None  # noqa: S101  (looking takes nothing)
        engine, task, status = self.engine, handed.task, handed.status
        slots = self._still_here(handed)
        if status == COMPLETED:
            consumed = np.intersect1d(handed.consumed, slots)
            undone = undo_use(engine, task, handed.used, consumed, handed.number)
            if undone is None:
                return
            self._take_up(undone.back)
            self._forget(undone.gone)
            self.counters.uncount_trained(*self._training(handed))
            self.recheck(np.setdiff1d(undone.back, undone.gone))
        elif status in RETURNING:
            attempts = dict(zip(handed.used.uids.tolist(), handed.used.attempts.tolist(), strict=True))
            mine = [s for s in slots.tolist() if self._is_out_since(s, attempts)]
            slots = np.array(mine, np.int64)
            for group in self.groups(slots):
                self.out.discard(group.uid)
            engine.undo_take(task, status, slots)
            self._count_retaken(handed, -1)
        elif len(slots):
            gone = engine.undo_take(task, status, slots)
            self._take_up(slots)
            self._forget(gone)
        self.forget_again(handed)

    def keep_room(self, handed: Handed) -> int:
        """Keep the room of consumed groups until `free_room`, in case that they come back; return their bytes."""
        return handed.task.hold_room(handed.consumed)

    def free_room(self, handed: Handed, num_bytes: int) -> None:
        """Give the room of consumed groups free: they are gone, or about to come back."""
        handed.task.free_room(len(handed.consumed), num_bytes)

    def can_take_back(self, handed: Handed) -> bool:
        """Return whether a delivery can still be rolled back: its step was not committed, finalized or rewound."""
        return handed.number is None or handed.number in handed.task.log

    def forget_again(self, handed: Handed) -> None:
        """Remove a rolled-back delivery from the records of expired leases."""
        if handed.again and self.on_take_back is not None:
            self.on_take_back(handed.again)

    def _is_out_since(self, slot: int, attempts: Mapping[int, int]) -> bool:
        columns = self.engine.columns
        same = attempts[int(columns.uid[slot])] == columns.attempts[slot]
        return bool(same and columns.place[slot] == OUT)

    def let_go(self, handed: Handed) -> None:
        """Forget groups that this consumed for no training step, now that it is written down."""
        consumed = handed.consumed
        if (
            handed.number is None
            and len(consumed)
            and (self.engine.columns.used_at[consumed] == NO_VERSION).any()
        ):
            self._let_go(np.intersect1d(consumed, self._still_here(handed)))

    def lose(self, uids: Iterable[int]) -> None:
        """Give up groups that are damaged, wherever they are; those that went meanwhile are passed over."""
        lost = self.all_slots(uid for uid in uids if self.find(uid) is not None)
        for slot in lost.tolist():
            self.out.discard(self._group(slot).uid)
        self.engine.lose(lost)
        self._forget(lost)

    def leave_out(self, handed: Handed, uids: Collection[int]) -> None:
        """Leave damaged groups out of what is shown, and give them up."""
        if uids:
            self.lose(group.uid for group in handed.groups if group.uid in uids)
            if len(handed.uses):
                self.counters.uncount_trained(*self._training(handed))
            handed.leave_out(uids)
            self.count_handed(handed)

    def _let_go(self, slots: IntArray) -> None:
        self._forget(drop_consumed(self.engine, slots))

    def _still_here(self, handed: Handed) -> IntArray:
        """Return the rows that are still those of what was handed out."""
        uids = np.array([group.uid for group in handed.groups], np.int64)
        found: IntArray = handed.slots[self.engine.columns.uid[handed.slots] == uids]
        return found

    def _handed(self, task: Task, status: int, slots: IntArray) -> Handed:
        told = self.engine.columns.staleness[slots].tolist()
        handed = Handed(task, status, slots, [self._group(slot) for slot in slots.tolist()], told, task.step)
        if task.rewound:
            handed.ahead = np.flatnonzero(self.engine.is_ahead(slots)).tolist()
        return handed

    def _settle_uses(self, task: Task, slots: IntArray) -> None:
        """Park consumed groups until commit; finalize the oldest step beyond `max_uncommitted_steps`."""
        if not task.settings.max_uncommitted_steps and not task.settings.is_durable:
            return
        self._put_aside(slots)
        while (released := finalize_oldest_step(task)) is not None:
            step, gone = released
            self._forget(gone)
            if not self.warn_once(task.name, "uncommitted"):
                continue
            warnings.warn(
                f"task {task.name!r}: step {step} can no longer be rewound, because more than "
                f"{task.settings.max_uncommitted_steps} steps are uncommitted; call commit(step) after each checkpoint of "
                "the trainer, or raise max_uncommitted_steps (one warning per task)",
                UncommittedWarning,
                stacklevel=2,
            )

    def _note_use(self, handed: Handed, before: int) -> None:
        """Record a delivery and the number of earlier uses, for a rollback."""
        columns = self.engine.columns
        handed.consumed = handed.slots[columns.place[handed.slots] == UNCOMMITTED]
        if self.engine.last_use > before:
            handed.number = self.engine.last_use

    def _note(self, task: Task, status: int, slots: IntArray) -> Mapping[int, set[int]]:
        """Notify expired leases that their groups were delivered again; replayed groups have several holders."""
        if self.on_hand_out is not None and (status != COMPLETED or task.settings.max_times_sampled == 1):
            return self.on_hand_out([self._group(slot).uid for slot in slots.tolist()])
        return {}
