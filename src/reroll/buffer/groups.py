"""The rollouts behind the engine's rows: what the buffer's verbs do, synchronous, never waiting.

Rows decide and rollouts follow. What is here is told the time, and holds no lock; a verb succeeds, or raises WouldBlock
or a typed error before anything has changed.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reroll.buffer.expiring import Expiring
from reroll.buffer.group import Group, tell_uid
from reroll.buffer.handed import Handed
from reroll.buffer.packed import Packed
from reroll.buffer.patch import patch_members
from reroll.buffer.put import Decision, Put, look, row_of
from reroll.buffer.signals import priority_of
from reroll.engine.columns import NO_VERSION, OUT, PLACES, RESIDENT, UNCOMMITTED, IntArray
from reroll.engine.lending import Settled, Steps, lend, use
from reroll.engine.priorities import checked_priority
from reroll.engine.rewinding import let_go_of_consumed, let_go_of_oldest, undo_last
from reroll.engine.task import COMPLETED, EXPIRED, RETURNING, STATUS_CODE, Task
from reroll.engine.uses import used_of
from reroll.errors import InvalidArgument, Superseded, UncommittedWarning
from reroll.query import Scalar
from reroll.rollout import Status, summarize
from reroll.sample import sample_infos


class Groups(Expiring):
    """What the verbs of a buffer do to its groups."""

    def plan_put(
        self,
        items: Sequence[Any] | Packed,
        task_name: str,
        *,
        model_step: int | None,
        current_train_step: int | None,
        stale_threshold: int | None,
        token_stale_threshold: int | None,
        expired_groups_retryable: bool,
        priority: float | None,
        tags: Mapping[str, Scalar] | None,
        uid: int | None,
    ) -> Put:
        """Check a put and look at its rollouts. Raises InvalidArgument; changes nothing."""
        rules = self.rules_of(task_name)
        members, summary = look(
            items,
            rules,
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
        )
        if priority is not None:
            weight = checked_priority(priority)
        else:
            weight = 1.0 if isinstance(members, Packed) else priority_of(members, rules.signal)
        checked_tags = _checked_tags(tags)
        continues = self.out.recognise(items, uid)
        attempt = 1
        if continues is not None and self.out.is_awaited(continues):
            slot = self._slot_of[continues]
            self._check_task(slot, task_name)
            attempt = int(self.engine.columns.attempts[slot]) + 1
        put = Put(
            task=self.engine.task(task_name),
            rules=rules,
            items=members,
            summary=summary,
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
            retryable=expired_groups_retryable,
            continues=continues,
            attempt=attempt,
            priority=weight,
            tags=checked_tags,
        )
        if put.decide().status is Status.COMPLETED:
            self.engine.check_size(summary.num_bytes)
        return put

    def can_put(self, put: Put) -> bool:
        """Return whether a put may be carried out now: only COMPLETED groups ever wait."""
        completed = put.decide().status is Status.COMPLETED
        return not completed or self.engine.can_insert(put.task, 1, put.summary.num_bytes)

    def check_turn(self, put: Put, *, has_waited: bool = False) -> None:
        """Raise Superseded, and count it, if the group is another producer's now; InvalidArgument if it is not out.

        One that was given up while its put waited is a new group.
        """
        uid = put.continues
        if uid is None:
            return
        is_lent = uid in self.out.returned and not self._is_home(uid)
        if is_lent or not has_waited or uid in self.out.superseded:
            try:
                self.out.check(uid, is_lent=is_lent)
            except Superseded:
                self.flow.superseded(put.task.name)
                raise

    def has_grown(self, put: Put) -> bool:
        """Return whether a put brings a group back that is out, and not as it was taken."""
        if put.continues is None or not self._is_out(put.continues):
            return False
        columns, slot = self.engine.columns, self._slot_of[put.continues]
        taken = (int(columns.num_tokens[slot]), int(columns.status[slot]))
        return taken != (put.summary.num_tokens, STATUS_CODE[put.summary.status])

    def put(self, put: Put) -> int | None:
        """Carry out a put, which may be carried out now, and return the uid, None if the group was dropped."""
        decision = put.decide()
        self.learn_step(put.task, put.current_train_step)
        applied = put.apply_to_rollouts(decision)
        uid, slot, gone = self._enter(put, decision)
        if isinstance(put.items, Packed):
            group = Group(uid, [], put.summary)
            group.pack(put.items.blob)
            group.prompts, group.applied = put.items.prompt_tokens, applied
        else:
            tell_uid(put.items, uid)
            group = Group(uid, put.items, put.summary, put.step())
            if put.task.settings.is_durable:
                group.applied = applied
        self._store(slot, group)
        self.flow.put(put.task.name, put.summary, decision.status)
        if decision.dropped:
            self._drop_expired(put.task, EXPIRED, np.array([slot]))
            return None
        if decision.expired:
            self._expire_members(put.task, slot, {m: decision.staleness[m] for m in decision.expired})
        self._forget(gone)
        return uid if uid in self._slot_of else None

    def take(self, task: Task, status: int, n: int) -> Handed:
        """Take up to n groups out. Raises WouldBlock while limiter or sampler do not allow it."""
        engine, columns = self.engine, self.engine.columns
        before = engine.last_use
        slots, gone = engine.take(task, status, n, task.step)
        handed = self._handed(task, status, slots)
        handed.leaves = len(gone) > 0
        if task.settings.is_durable:  # else nothing comes between this and the caller, and it is never undone
            handed.used = used_of(0, columns, slots)
            self._note_use(handed, before)
        if status == COMPLETED:
            handed.uses = columns.uses[slots].tolist()
        elif status in RETURNING:
            for group in handed.groups:
                self.out.add(group)
        handed.again = self._note(task, status, slots)
        self._forget(gone)
        self._settle_uses(task, slots)
        return handed

    def sample(self, task: Task, n: int, *, replace: bool) -> Handed:
        """Draw n COMPLETED groups, or all if there are fewer; those without a use left go. Raises WouldBlock."""
        before = self.engine.last_use
        drawn = self.engine.draw(task, n, replace=replace, step=task.step)
        handed = self._handed(task, COMPLETED, drawn.slots)
        handed.infos = list(sample_infos(drawn.uid.tolist(), drawn))
        handed.uses = drawn.times_sampled.tolist()
        rows, times = np.unique(drawn.slots, return_counts=True)
        handed.used = used_of(0, self.engine.columns, rows, times)
        self._note_use(handed, before)
        handed.again = self._note(task, COMPLETED, drawn.slots)
        self._forget(drawn.gone)
        self._settle_uses(task, drawn.slots)
        return handed

    def lend(self, task: Task, status: int, n: int) -> Handed:
        """Lend n groups, or all if there are fewer. Raises WouldBlock."""
        drawn = lend(self.engine, task, status, n)
        handed = self._handed(task, status, drawn.slots)
        handed.again = self._note(task, status, drawn.slots)
        handed.infos = list(sample_infos(drawn.uid.tolist(), drawn))
        return handed

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

    def show(self, handed: Handed) -> list[list[Any]]:
        """Return the rollouts of groups that somebody gets to see."""
        if self.witnesses:
            for group in handed.groups:
                self._before_change(group)
        return handed.show()

    def hand_over(self, handed: Handed) -> list[list[Any]]:
        """Return the rollouts of groups that are handed out; those that are rolled again come back by them."""
        shown = self.show(handed)
        if handed.status in RETURNING:
            for group in handed.groups:
                self.out.learn(group)
        return shown

    def count_handed(self, handed: Handed) -> None:
        """Count what is trained."""
        if len(handed.uses):
            self.flow.trained_all(*self._training(handed))

    def _training(self, handed: Handed) -> tuple[str, list[Group], int | None, Sequence[int], list[int]]:
        return handed.task.name, handed.groups, handed.step, handed.uses, handed.told

    def take_back(self, handed: Handed) -> None:
        """Undo a hand-out that reached nobody, as far as it is still what happened last to its groups."""
        assert handed.used is not None  # noqa: S101  (looking takes nothing)
        engine, task, status = self.engine, handed.task, handed.status
        slots = self._still_here(handed)
        if status == COMPLETED:
            consumed = np.intersect1d(handed.consumed, slots)
            undone = undo_last(engine, task, handed.used, consumed, handed.number)
            if undone is None:
                return
            self._take_up(undone.back)
            self._forget(undone.gone)
            self.flow.untrained_all(*self._training(handed))
        elif status in RETURNING:
            attempts = dict(zip(handed.used.uids.tolist(), handed.used.attempts.tolist(), strict=True))
            mine = [s for s in slots.tolist() if self._is_out_since(s, attempts)]
            slots = np.array(mine, np.int64)
            for group in self.groups(slots):
                self.out.take_back(group.uid)
            task.rolling -= len(slots)
            engine.lower(task, status, slots, PLACES[OUT])
        elif len(slots):
            engine.lower(task, status, slots, PLACES[UNCOMMITTED])
            self._take_up(slots)
            self._forget(engine.trim_rejected(task))
        self.forget_again(handed)

    def can_take_back(self, handed: Handed) -> bool:
        """Return whether a hand-out can still be undone: its step was not committed, let go or rewound meanwhile."""
        return handed.number is None or handed.number in handed.task.log

    def forget_again(self, handed: Handed) -> None:
        """Let leases that had ended not know of a hand-out that reached nobody."""
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
                self.flow.untrained_all(*self._training(handed))
            handed.leave_out(uids)
            self.count_handed(handed)

    def come_home(self, back: IntArray, gone: IntArray) -> None:
        """Follow rows that were lent or out, and are back; their producers may live, and put them again."""
        self._forget(gone)
        columns = self.engine.columns
        back = np.setdiff1d(back, gone)
        rolled = back[np.isin(columns.status[back], RETURNING)]
        self.out.returned |= set(columns.uid[rolled].tolist())

    def come_back(self, back: IntArray, gone: IntArray) -> None:
        """Follow a rewind: groups that were consumed are here again, others had to go for them."""
        self._take_up(back)
        self._forget(gone)

    def expire_newer(self, task: Task, version: int) -> None:
        """Expire groups with tokens of versions above this one."""
        columns = self.engine.columns
        for status in (COMPLETED, STATUS_CODE[Status.ABORTED]):
            slots = task.pools[status].sampler.slots()
            newer = slots[columns.newest[slots] > version]
            if len(newer):
                self._expire_groups(task, status, newer)

    def forget_rows(self, slots: IntArray) -> None:
        """Forget groups whose rows are no more."""
        self._forget(slots)

    def _let_go(self, slots: IntArray) -> None:
        self._forget(let_go_of_consumed(self.engine, slots))

    def _still_here(self, handed: Handed) -> IntArray:
        """Return the rows that are still those of what was handed out."""
        uids = np.array([group.uid for group in handed.groups], np.int64)
        found: IntArray = handed.slots[self.engine.columns.uid[handed.slots] == uids]
        return found

    def use(self, uids: Iterable[int], status: int, steps: Steps) -> None:
        """Let groups that are still resident, and were lent with this status for these steps, count a use."""
        slots = self.resident_slots(uids)
        self.count_trained(slots, more=1)
        self.settle(use(self.engine, slots, status, steps))

    def held_slots(self, uids: Iterable[int]) -> IntArray:
        """Return where lent groups are, if they still are; somebody else may have consumed them meanwhile."""
        slots = self.all_slots(uid for uid in uids if self.find(uid) is not None)
        return slots[self.engine.columns.pending[slots] > 0]

    def count_trained(self, slots: IntArray, more: int = 0) -> None:
        """Count what a trainer says it has used; `more` uses than rows tell yet."""
        for task, status, part in self.engine.by_pool(slots):
            if status == COMPLETED:
                uses = (self.engine.columns.uses[part] + more).tolist()
                told = self.engine.columns.staleness[part].tolist()
                self.flow.trained_all(task.name, self.groups(part), task.step, uses, told)

    def settle(self, settled: Settled) -> None:
        """Follow what became of rows whose lease ended."""
        for slot in settled.out.tolist():
            self.out.add(self._group(slot))
        for slot in settled.back.tolist():
            self.out.discard(self._group(slot).uid)
        self._forget(settled.gone)

    def consumed(self, slots: IntArray) -> None:
        """Follow an acknowledgement."""
        self._let_go(slots)
        for task in self.engine.tasks.values():
            self._settle_uses(task, slots)

    def delete(self, slots: IntArray) -> int:
        """Delete groups by slot, resident or out."""
        for slot in slots.tolist():
            self.out.discard(self._group(slot).uid)
        self.engine.delete(slots)
        self._forget(slots)
        return len(slots)

    def forget_overdue(self, now: float) -> bool:
        """Give up groups that are out for too long; return whether there were any."""
        self.out.now = now
        return bool((overdue := self.out.overdue()) and self.forget_out(overdue))

    def forget_out(self, uids: Iterable[int]) -> int:
        """Give up groups that are out, and count them as deleted; others are passed over."""
        return self.delete(self.slots(uid for uid in dict.fromkeys(uids) if uid in self.out))

    def patch(
        self,
        uid: int,
        fields: Mapping[str, Sequence[Any]],
        tags: Mapping[str, Scalar] | None,
        accept: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        """Give members late fields, one value a member, and update the row. Raises UnknownUid, InvalidArgument.

        `accept` sees the rollouts as they would be, and raises InvalidArgument if they cannot be so.
        """
        (slot,) = self.slots([uid]).tolist()
        columns, group = self.engine.columns, self._group(slot)
        checked_tags = _checked_tags(tags)
        (handed,) = self.look([uid])
        self.load(handed.groups)
        items = group.items  # as objects, whoever wants bytes
        self.show(handed)  # members that expired are emptied first
        patch_members(items, fields, accept)
        summary = summarize(items)
        group.learn(summary)
        row = row_of(summary)
        group.encoded()
        self.engine.change(
            slot, {name: row[name] for name in ("num_bytes", "trainable", "reward_mean", "reward_std")}
        )
        if checked_tags:
            columns.tags[slot] = {**columns.tags.get(slot, {}), **checked_tags}

    def _is_out(self, uid: int) -> bool:
        """Return whether a group is out; one that came back because its holder seemed dead goes out once more."""
        if uid in self.out.returned and self._is_home(uid):
            self.out.returned.discard(uid)
            columns, slot = self.engine.columns, self._slot_of[uid]
            task = list(self.engine.tasks.values())[columns.task[slot]]
            self.engine.lift(task, int(columns.status[slot]), np.array([slot]), OUT)
            task.rolling += 1
            self.out.add(self._group(slot))
        return uid in self.out

    def _is_home(self, uid: int) -> bool:
        """Return whether a group is in its pool, to be rolled again."""
        columns, slot = self.engine.columns, self._slot_of.get(uid)
        return slot is not None and bool(
            columns.place[slot] == RESIDENT and columns.status[slot] in RETURNING
        )

    def _check_task(self, slot: int, task_name: str) -> None:
        own = list(self.engine.tasks)[self.engine.columns.task[slot]]
        if own != task_name:
            raise InvalidArgument(
                f"group {self._group(slot).uid} is out of task {own!r} and cannot come back to {task_name!r}"
            )

    def _enter(self, put: Put, decision: Decision) -> tuple[int, int, IntArray]:
        """Let the group be a row; return its uid, its slot, and who had to go: maybe the group itself."""
        columns = self.engine.columns
        if put.continues is None or not self._is_out(
            put.continues
        ):  # given up while the put waited: then it is new
            slot, gone = self.engine.insert(put.task, put.row(decision), decision.code, admitted=True)
            uid = self.engine.last_uid
        else:
            uid = put.continues
            self.out.discard(uid)
            slot, gone = self.engine.insert_again(self._slot_of[uid], put.row(decision), decision.code)
        if columns.uid[slot]:
            if put.summary.group_id is not None:
                columns.group_id[slot] = put.summary.group_id
            if put.tags is not None:
                columns.tags[slot] = put.tags
        return uid, slot, gone

    def _handed(self, task: Task, status: int, slots: IntArray) -> Handed:
        told = self.engine.columns.staleness[slots].tolist()
        handed = Handed(task, status, slots, [self._group(slot) for slot in slots.tolist()], told, task.step)
        if task.rewound:
            handed.ahead = np.flatnonzero(self.engine.is_ahead(slots)).tolist()
        return handed

    def _settle_uses(self, task: Task, slots: IntArray) -> None:
        """Put groups aside that were consumed and may come back, and let go of the oldest step if too many are kept."""
        if not task.settings.max_uncommitted_steps and not task.settings.is_durable:
            return
        self._put_aside(slots)
        while (released := let_go_of_oldest(self.engine, task)) is not None:
            step, gone = released
            self._forget(gone)
            warnings.warn(
                f"what task {task.name!r} used in training step {step} cannot be undone any more: more than "
                f"{task.settings.max_uncommitted_steps} steps were used without a commit. Call commit(step) when the "
                "trainer's checkpoint of a step is on disk, or set max_uncommitted_steps",
                UncommittedWarning,
                stacklevel=2,
            )

    def _note_use(self, handed: Handed, before: int) -> None:
        """Remember what a hand-out did, after so many uses, in case that it is to be undone."""
        columns = self.engine.columns
        handed.consumed = handed.slots[columns.place[handed.slots] == UNCOMMITTED]
        if self.engine.last_use > before:
            handed.number = self.engine.last_use

    def _note(self, task: Task, status: int, slots: IntArray) -> Mapping[int, set[int]]:
        """Tell who keeps leases that groups are with somebody else now; replayed ones are with many at once."""
        if self.on_hand_out is not None and (status != COMPLETED or task.settings.max_times_sampled == 1):
            return self.on_hand_out([self._group(slot).uid for slot in slots.tolist()])
        return {}


def _checked_tags(tags: Mapping[str, Scalar] | None) -> dict[str, Scalar] | None:
    if tags is None:
        return None
    if not isinstance(tags, Mapping):
        raise InvalidArgument(f"tags must be a mapping of names to values, not {tags!r}")
    for name, value in tags.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, bool | int | float | str)):
            raise InvalidArgument(
                f"tags: {name!r}: {value!r} is no name with a text, number, boolean or None"
            )
    return dict(tags)
