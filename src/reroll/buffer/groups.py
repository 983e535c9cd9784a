"""The rollouts behind the engine's rows: what the buffer's verbs do, synchronous, never waiting.

Rows decide and rollouts follow. What is here is told the time, and holds no lock; a verb succeeds, or raises WouldBlock
or a typed error before anything has changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reroll.buffer.arguments import checked_tags
from reroll.buffer.group import Group, tell_uid
from reroll.buffer.hand_outs import HandOuts
from reroll.buffer.packed import Packed
from reroll.buffer.patch import Patch, Undo, patch_members, undo_patch
from reroll.buffer.put import Decision, Put, look, row_of
from reroll.buffer.signals import priority_of
from reroll.engine.columns import OUT, RESIDENT, IntArray
from reroll.engine.lending import Settled, Steps, use
from reroll.engine.priorities import checked_priority
from reroll.engine.task import COMPLETED, EXPIRED, RETURNING, STATUS_CODE, Task
from reroll.errors import InvalidArgument, Superseded
from reroll.query import Scalar
from reroll.rollout import Status, summarize
from reroll.rollout.foreign import MOST_TOKENS


class Groups(HandOuts):
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
        members, summary = look(items, rules, model_step=model_step)
        if summary.num_tokens >= MOST_TOKENS:
            raise InvalidArgument(
                f"a group must have fewer than {MOST_TOKENS} tokens, not {summary.num_tokens}; see num_tokens of its rollouts"
            )
        weight: float | None
        if priority is not None:
            weight = checked_priority(priority)
        else:
            weight = None if isinstance(members, Packed) else priority_of(members, rules.signal)
        named = checked_tags(tags)
        continues = self.out.recognise(items, uid)
        attempt, trained = 1, False
        if continues is not None and self.out.is_awaited(continues):
            slot = self._slot_of[continues]
            self._check_task(slot, task_name)
            attempt = int(self.engine.columns.attempts[slot]) + 1
            trained = bool(self.engine.columns.trained[slot])
        put = Put(
            task=self.engine.named(task_name),
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
            trained=trained,
            priority=weight,
            tags=named,
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
        self.engine.admit(put.task)
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
        if decision.is_beyond:
            self.flow.stale(put.task.name, 1)
        if decision.dropped:
            self._drop_expired(put.task, EXPIRED, np.array([slot]))
            return None
        if decision.expired:
            self._expire_members(put.task, slot, {m: decision.staleness[m] for m in decision.expired})
        self._forget(gone)
        return uid if uid in self._slot_of else None

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
        if self.keeper is not None:
            known = (self._groups[slot] for slot in slots.tolist())
            self.keeper.settle(group for group in known if group is not None and self.is_kept(group.uid))

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
        patches: Mapping[int, Patch],
        accept: Callable[[int, Sequence[Any]], None] | None = None,
        *,
        step: int | None = None,
    ) -> None:
        """Give members of groups late fields, one value a member, and update the rows: all of them, or none.

        `accept` sees the rollouts of each group as they will be, and may refuse them. `step` is when the values were computed.
        Raises UnknownUid, InvalidArgument, and what `accept` raises: then nothing has changed.
        """
        undo: Undo = []
        ready = []
        try:
            for uid, patch in patches.items():
                (slot,) = self.slots([uid]).tolist()
                named = checked_tags(patch.tags)
                (handed,) = self.look([uid])
                self.load(handed.groups)
                items = self._group(slot).items  # as objects, also where the caller wants bytes
                self.show(handed)  # members that expired are emptied first
                undo += patch_members(items, patch.fields)
                if accept is not None:
                    accept(uid, items)
                ready.append((slot, items, named))
        except BaseException as error:
            undo_patch(undo)
            if type(error) is InvalidArgument and len(patches) > 1:
                raise InvalidArgument(f"group {uid}: {error}") from error
            raise
        columns = self.engine.columns
        for slot, items, named in ready:
            group, summary = self._group(slot), summarize(items)
            group.learn(summary)
            row = row_of(summary)
            group.encoded()
            changed = {name: row[name] for name in ("num_bytes", "trainable", "reward_mean", "reward_std")}
            if step is not None:
                changed["patched_at"] = step
            self.engine.change(slot, changed)
            if named:
                columns.tags[slot] = {**columns.tags.get(slot, {}), **named}

    def is_newer(self, uid: int, step: int) -> bool:
        """Return whether no patch of this step or a later one has reached a group."""
        return bool(self.engine.columns.patched_at[self._slot_of[uid]] < step)

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
            slot, gone = self.engine.insert(
                put.task, put.row(decision), decision.code, admitted=True, group_id=put.summary.group_id
            )
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
