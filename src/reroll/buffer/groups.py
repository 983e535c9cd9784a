"""The rollouts behind the engine's rows: what the buffer's verbs do, synchronous, never waiting.

Rows decide and rollouts follow. What is here is told the time, and holds no lock; a verb succeeds, or raises WouldBlock
or a typed error before anything has changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reroll.buffer.expiring import Expiring
from reroll.buffer.group import Group
from reroll.buffer.patch import patch_members
from reroll.buffer.put import Decision, Put, look, row_of
from reroll.buffer.signals import priority_of
from reroll.engine.columns import IntArray
from reroll.engine.engine import Drawn
from reroll.engine.lending import Settled, Steps, lend, use
from reroll.engine.priorities import checked_priority
from reroll.engine.task import COMPLETED, EXPIRED, RETURNING, Task
from reroll.errors import InvalidArgument
from reroll.query import Scalar
from reroll.rollout import Status, summarize
from reroll.rollout.foreign import write_if_present
from reroll.sample import Sample, sample_infos


class Groups(Expiring):
    """What the verbs of a buffer do to its groups."""

    def plan_put(
        self,
        items: Sequence[Any],
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
        weight = priority_of(members, rules.signal) if priority is None else checked_priority(priority)
        checked_tags = _checked_tags(tags)
        continues = self.out.recognise(items, uid)
        attempt = 1
        if continues is not None:
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

    def put(self, put: Put, *, wait: bool = True) -> int | None:
        """Carry out a put and return the uid, None if the group was dropped. Raises WouldBlock, if it has to wait."""
        decision = put.decide()
        if wait and decision.status is Status.COMPLETED:
            self.engine.check_admission(put.task, put.summary.num_bytes)
        self.learn_step(put.task, put.current_train_step)
        put.apply_to_rollouts(decision)
        uid, slot, gone = self._enter(put, decision)
        for item in put.items:
            write_if_present(item, "group_uid", uid)
        self._store(slot, Group(uid, put.items, put.summary, put.step()))
        self.flow.put(put.task.name, put.summary, decision.status)
        if decision.dropped:
            self._drop_expired(put.task, EXPIRED, np.array([slot]))
            return None
        if decision.expired:
            self._expire_members(put.task, slot, {m: decision.staleness[m] for m in decision.expired})
        self._forget(gone)
        return uid if uid in self._slot_of else None

    def take(self, task: Task, status: int, n: int) -> list[list[Any]]:
        """Take up to n groups out. Raises WouldBlock while limiter or sampler do not allow it."""
        columns = self.engine.columns
        slots, gone = self.engine.take(task, status, n)
        groups = [self._group(slot) for slot in slots.tolist()]
        # A copy of each list would touch hundreds of rollouts that nobody needs to look at here.
        hand = Group.handed_over if len(gone) else Group.shown
        handed = [
            hand(group, task.step, told)
            for group, told in zip(groups, columns.staleness[slots].tolist(), strict=True)
        ]
        if status == COMPLETED:
            self.flow.trained_all(task.name, groups, task.step, columns.uses[slots].tolist())
        elif status in RETURNING:
            for group in groups:
                self.out.add(group)
        self._note(task, status, slots)
        self._forget(gone)
        return handed

    def sample(self, task: Task, n: int, *, replace: bool) -> list[Sample]:
        """Draw n COMPLETED groups, or all if there are fewer; those without a use left go. Raises WouldBlock."""
        drawn = self.engine.draw(task, n, replace=replace)
        samples = self._samples(task, drawn)
        groups = [self._group(slot) for slot in drawn.slots.tolist()]
        self.flow.trained_all(task.name, groups, task.step, drawn.times_sampled.tolist())
        self._note(task, COMPLETED, drawn.slots)
        self._forget(drawn.gone)
        return samples

    def lend(self, task: Task, status: int, n: int) -> list[Sample]:
        """Lend n groups, or all if there are fewer. Raises WouldBlock."""
        drawn = lend(self.engine, task, status, n)
        self._note(task, status, drawn.slots)
        return self._samples(task, drawn)

    def use(self, uids: Iterable[int], status: int, steps: Steps) -> None:
        """Let groups that are still resident, and were lent with this status for these steps, count a use."""
        slots = self.resident_slots(uids)
        self.count_trained(slots, more=1)
        self.settle(use(self.engine, slots, status, steps))

    def held_slots(self, uids: Iterable[int]) -> IntArray:
        """Return where lent groups are, if they still are."""
        slots = self.slots(uid for uid in uids if uid in self._slot_of)
        return slots[self.engine.columns.pending[slots] > 0]

    def count_trained(self, slots: IntArray, more: int = 0) -> None:
        """Count what a trainer says it has used; `more` uses than rows tell yet."""
        for task, status, part in self.engine.by_pool(slots):
            if status == COMPLETED:
                groups = [self._group(slot) for slot in part.tolist()]
                uses = (self.engine.columns.uses[part] + more).tolist()
                self.flow.trained_all(task.name, groups, task.step, uses)

    def settle(self, settled: Settled) -> None:
        """Follow what became of rows whose lease ended."""
        for slot in settled.out.tolist():
            self.out.add(self._group(slot))
        self._forget(settled.gone)

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

    def patch(self, uid: int, fields: Mapping[str, Sequence[Any]], tags: Mapping[str, Scalar] | None) -> None:
        """Give members late fields, one value a member, and update the row. Raises UnknownUid, InvalidArgument."""
        (slot,) = self.slots([uid]).tolist()
        columns, group = self.engine.columns, self._group(slot)
        checked_tags = _checked_tags(tags)
        self.peek([uid])  # members that expired are emptied first
        patch_members(group.items, fields)
        summary = summarize(group.items)
        group.learn(summary)
        row = row_of(summary)
        self.engine.change(
            slot, {name: row[name] for name in ("num_bytes", "trainable", "reward_mean", "reward_std")}
        )
        if checked_tags:
            columns.tags[slot] = {**columns.tags.get(slot, {}), **checked_tags}

    def _check_task(self, slot: int, task_name: str) -> None:
        own = list(self.engine.tasks)[self.engine.columns.task[slot]]
        if own != task_name:
            raise InvalidArgument(
                f"group {self._group(slot).uid} is out of task {own!r} and cannot come back to {task_name!r}"
            )

    def _enter(self, put: Put, decision: Decision) -> tuple[int, int, IntArray]:
        """Let the group be a row; return its uid, its slot, and who had to go: maybe the group itself."""
        columns = self.engine.columns
        if (
            put.continues is None or put.continues not in self.out
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

    def _samples(self, task: Task, drawn: Drawn) -> list[Sample]:
        staleness = self.engine.columns.staleness[drawn.slots].tolist()
        groups = [
            self._group(slot).shown(task.step, told)
            for slot, told in zip(drawn.slots.tolist(), staleness, strict=True)
        ]
        return list(map(Sample, groups, sample_infos(drawn.uid.tolist(), drawn)))

    def _note(self, task: Task, status: int, slots: IntArray) -> None:
        """Tell who keeps leases that groups are with somebody else now; replayed ones are with many at once."""
        if self.on_hand_out is not None and (status != COMPLETED or task.settings.max_times_sampled == 1):
            self.on_hand_out([self._group(slot).uid for slot in slots.tolist()])


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
