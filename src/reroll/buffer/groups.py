"""The rollouts behind the engine's rows: what the buffer's verbs do, synchronous, never waiting.

Rows decide and rollouts follow. Callers pass the time, and no lock is held; a verb succeeds, or raises WouldBlock
or a typed error before anything has changed.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from reroll.buffer.arguments import checked_tags
from reroll.buffer.group import Group, Payload
from reroll.buffer.hand_outs import HandOuts
from reroll.buffer.patch import Patch, Undo, patch_columns, patch_members, undo_patch
from reroll.buffer.put import Decision, GroupRules, Put, plan_group, row_of
from reroll.buffer.signals import priority_of
from reroll.engine.engine import Engine, LeaseOutcome, Steps
from reroll.engine.rows import RESIDENT, IntArray
from reroll.engine.task import COMPLETED, EXPIRED, RETURNING, STATUS_CODE, Task, checked_priority
from reroll.errors import CorruptData, InvalidArgument, Superseded
from reroll.group import RolloutGroup
from reroll.query import Scalar
from reroll.rollout import Status, expire, release, summarize, write_status
from reroll.rollout.adapters import MOST_TOKENS
from reroll.rollout.checkout import Checkout, Fingerprint, can_carry, extends, fingerprint_of, read_checkouts
from reroll.rollout.rules import write_staleness
from reroll.rollout.summary import find_group_id


class Groups(HandOuts):
    """What the verbs of a buffer do to its groups."""

    def __init__(
        self, engine: Engine, rules_of: Callable[[str], GroupRules], out_ttl_s: float | None
    ) -> None:
        super().__init__(engine, rules_of, out_ttl_s)
        # Groups that came back from their producers when the buffer was opened, by task, group_id and size.
        self._home: dict[tuple[int, str, int], list[int]] = {}

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
        members, caller, summary = plan_group(items, rules, model_step=model_step)
        if summary.num_tokens >= MOST_TOKENS:
            raise InvalidArgument(
                f"a group must have fewer than {MOST_TOKENS} tokens, not {summary.num_tokens}; see num_tokens of its rollouts"
            )
        weight = priority_of(members, rules.signal) if priority is None else checked_priority(priority)
        named = checked_tags(tags)
        continues, checkout = self._recognise(items, task_name, uid)
        attempt, trained = 1, False
        if continues is not None and self._waits(continues, checkout):
            slot = self._slot_of[continues]
            self._check_task(slot, task_name)
            attempt = int(self.engine.columns.attempts[slot]) + 1
            trained = bool(self.engine.columns.trained[slot])
        put = Put(
            task=self.engine.named(task_name),
            rules=rules,
            items=members,
            caller=caller,
            summary=summary,
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
            retryable=expired_groups_retryable,
            continues=continues,
            checkout=checkout,
            attempt=attempt,
            trained=trained,
            priority=weight,
            tags=named,
        )
        if put.decide().status is Status.COMPLETED:
            self.engine.check_size(summary.num_bytes)
        return put

    @property
    def may_be_continued(self) -> bool:
        """Whether any group waits to be rolled again, or is rolled again."""
        return any(
            task.checked_out or any(len(task.pools[status]) for status in RETURNING)
            for task in self.engine.tasks.values()
        )

    def must_be_admitted(self, puts: Iterable[Put], reserved: int, *, may_wait: bool) -> bool:
        """Return whether puts may have to wait, beyond the groups of a reservation: only COMPLETED groups ever do.

        Raises InvalidArgument for groups that can never be stored at once, if the caller waits.
        """
        waiting = _admitted(puts)
        if len(waiting) <= reserved:
            return False
        if len(waiting) > 1 and may_wait:
            self.engine.check_many(
                waiting[0].task, len(waiting), sum(put.summary.num_bytes for put in waiting)
            )
        return True

    def can_put(self, puts: Iterable[Put], reserved: int) -> bool:
        """Return whether puts may be carried out now."""
        waiting = _admitted(puts)
        return len(waiting) <= reserved or self.engine.can_insert(
            waiting[0].task, len(waiting), sum(put.summary.num_bytes for put in waiting)
        )

    def check_turn(self, put: Put, *, has_waited: bool = False) -> None:
        """Raise Superseded, and count it, if another producer has put the group; InvalidArgument if it is not out.

        The result for a group that was given up is a new group.
        """
        uid, checkout = put.continues, put.checkout
        if uid is None or self._waits(uid, checkout):
            return
        if uid in self.out.given_up and (has_waited or checkout is not None):
            return
        slot = self.all_slots([uid])[0]
        attempt = 0 if slot < 0 else int(self.engine.columns.attempts[slot])
        if checkout is None and attempt < 2:
            raise InvalidArgument(f"group {uid!r} is not checked out; omit uid to store it as a new group")
        self.counters.count_superseded(put.task.name)
        state = f"is at attempt {attempt}" if attempt else "is gone"
        raise Superseded(
            f"group {uid} {state}, and this result continues an earlier one: another producer has put the group, and this "
            "result is not stored. Go on with the next group; or set group_uid to None, remove '_reroll' from extra_fields, "
            "and put it as a new one"
        )

    def has_grown(self, put: Put) -> bool:
        """Return whether a put brings a group back that is out, and not as it was taken."""
        if put.continues is None or not self._waits(put.continues, put.checkout):
            return False
        columns, slot = self.engine.columns, self._slot_of[put.continues]
        taken = (int(columns.num_tokens[slot]), int(columns.status[slot]))
        return taken != (put.summary.num_tokens, STATUS_CODE[put.summary.status])

    def put(self, puts: Sequence[Put]) -> list[int | None]:
        """Carry out puts of one task, which may be carried out now; return each uid, None if the group was dropped."""
        if not puts:
            return []
        decisions = [put.decide() for put in puts]
        task = self.engine.admit(puts[0].task)
        self.learn_step(task, puts[0].current_train_step)
        uids: list[int | None] = []
        # New groups of one status enter together.
        for _, places in groupby(
            range(len(puts)), lambda place: (decisions[place].code, self._continued(puts[place]))
        ):
            first, *others = places
            part = slice(first, first + 1 + len(others))
            uids += self._put_alike(puts[part], decisions[part])
        return uids

    def _put_alike(self, puts: Sequence[Put], decisions: Sequence[Decision]) -> list[int | None]:
        """Carry out puts of new groups of one status, or one put of a group that is continued."""
        task = puts[0].task
        slots, uids, gone = self._enter(puts, decisions)
        for put, decision, slot, uid in zip(puts, decisions, slots, uids, strict=True):
            applied = put.apply(decision, uid)
            group = Group(uid, put.items, put.summary, put.step())
            if task.settings.is_durable and not group.is_columns:
                group.applied = applied
            self._store(slot, group)
            self.counters.count_put(task.name, put.summary, decision.status)
            if decision.is_beyond:
                self.counters.count_stale(task.name, 1)
            if put.summary.version is None and decision.status is Status.COMPLETED:
                self._warn_of_no_decay(task)
            if decision.dropped:
                self._drop_expired(task, EXPIRED, np.array([slot]))
                if group.is_columns:
                    for rollout in put.caller:
                        write_status(rollout, Status.EXPIRED)
                        release(rollout)
            elif decision.expired:
                if group.is_columns:
                    _expire_caller(put.caller, decision)
                self._expire_members(task, slot, {m: decision.staleness[m] for m in decision.expired})
        self._forget(gone)
        return [uid if uid in self._slot_of else None for uid in uids]

    def _warn_of_no_decay(self, task: Task) -> None:
        """Warn once if a group without versions entered a task whose sampler decays by version."""
        sampler = task.settings.sampler
        half_life = getattr(getattr(sampler, "replay", sampler), "half_life", None)
        if half_life is not None and self.warn_once(task.name, "half_life"):
            warnings.warn(
                f"task {task.name!r} has half_life={half_life:g} versions, and got a group without versions, which never "
                "decays; put with model_step. This is said once for each task",
                UserWarning,
                stacklevel=2,
            )

    def come_home(self, back: IntArray, gone: IntArray) -> None:
        """Follow rows that were lent or out, and are back; their producers may live, and put them again."""
        self._forget(gone)
        columns = self.engine.columns
        back = np.setdiff1d(back, gone)
        self._home = {}
        self.expect(columns.uid[back].tolist())
        self.expect(self.out.returned)

    def expect(self, uids: Iterable[int]) -> None:
        """Know groups that came back from producers which may live: such a producer may still put its group."""
        columns, returned = self.engine.columns, self.out.returned
        for uid in [uid for uid in uids if self._is_home(uid)]:
            slot = self._slot_of[uid]
            returned.add(uid)
            key = (int(columns.task[slot]), repr(columns.group_id.get(slot)), int(columns.num_rollouts[slot]))
            known = [other for other in self._home.get(key, ()) if other in returned and other != uid]
            self._home[key] = [*known, uid]

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
        self.settle(self.engine.acknowledge_late(slots, status, steps))

    def held_slots(self, uids: Iterable[int]) -> IntArray:
        """Return the slots of leased groups that still exist; another caller may have consumed some."""
        slots = self.all_slots(uid for uid in uids if self.find(uid) is not None)
        return slots[self.engine.columns.pending[slots] > 0]

    def count_trained(self, slots: IntArray, more: int = 0) -> None:
        """Count what a trainer says it has used; `more` uses than rows tell yet."""
        for task, status, part in self.engine.by_pool(slots):
            if status == COMPLETED:
                uses = (self.engine.columns.uses[part] + more).tolist()
                told = self.engine.columns.staleness[part].tolist()
                self.counters.count_trained(task.name, self.groups(part), task.step, uses, told)

    def settle(self, settled: LeaseOutcome) -> None:
        """Follow what became of rows whose lease ended."""
        for slot in settled.out.tolist():
            group = self._group(slot)
            self.out.add(group.uid)
            if not self.out.knows_objects(group.uid) and group.is_here:
                self.out.learn(group)
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
        self._give_up(slots)
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
        accept: Callable[[int, Payload], None] | None = None,
        *,
        step: int | None = None,
    ) -> None:
        """Give members of groups late fields, one value a member, and update the rows: all of them, or none.

        `accept` sees the rollouts of each group as they will be, and may refuse them. `step` is when the values were computed.
        Raises UnknownUid, InvalidArgument, and what `accept` raises: then nothing has changed.
        """
        undo: Undo = []
        ready: list[tuple[int, Payload, Any]] = []
        try:
            for uid, patch in patches.items():
                (slot,) = self.slots([uid]).tolist()
                named = checked_tags(patch.tags)
                (handed,) = self.look([uid])
                self.load(handed.groups)
                (shown,) = self.show(handed)  # without the responses of members that expired
                group = self._group(slot)
                payload: Payload
                if isinstance(shown, RolloutGroup):
                    payload = patch_columns(shown, patch.fields)
                else:
                    payload = group.objects
                    undo += patch_members(payload, patch.fields)
                if accept is not None:
                    accept(uid, payload)
                ready.append((slot, payload, named))
        except BaseException as error:
            undo_patch(undo)
            if type(error) is InvalidArgument and len(patches) > 1:
                raise InvalidArgument(f"group {uid}: {error}") from error
            raise
        for slot, payload, named in ready:
            group = self._group(slot)
            summary = payload.summary() if isinstance(payload, RolloutGroup) else summarize(payload)
            group.replace(payload, summary)
            row = row_of(summary)
            group.encoded()
            changed = {name: row[name] for name in ("num_bytes", "trainable", "reward_mean", "reward_std")}
            if step is not None:
                changed["patched_at"] = step
            self.engine.change(slot, changed, named)

    def is_newer(self, uid: int, step: int) -> bool:
        """Return whether no patch of this step or a later one has reached a group."""
        return bool(self.engine.columns.patched_at[self._slot_of[uid]] < step)

    def _waits(self, uid: int, checkout: Checkout | None) -> bool:
        """Return whether a group waits to be put again: at the attempt of the checkout, if the put has one.

        A group that came back from its producer waits in its pool for any checkout of its attempt.
        """
        columns, slot = self.engine.columns, self._slot_of.get(uid)
        if slot is None or columns.status[slot] not in RETURNING:
            return False
        if checkout is None:
            return bool(columns.place[slot] != RESIDENT) or uid in self.out.returned
        is_newer = self.out.name.is_newer(int(columns.timestamp[slot]), checkout)
        return not is_newer and int(columns.attempts[slot]) == checkout.attempt

    def _check_out(self, uid: int) -> None:
        """Let a group be out that waits to be put again: it was leased, or came back from its producer."""
        self.engine.check_out(self._slot_of[uid])
        self.out.returned.discard(uid)

    def _recognise(
        self, items: Sequence[Any], task_name: str, uid: int | None
    ) -> tuple[int | None, Checkout | None]:
        """Return the group that rollouts continue, and the checkout that says so; None, None for a new group.

        Raises InvalidArgument for rollouts of several groups, or of another buffer than the one that has this uid.
        """
        checkouts = items.checkouts() if isinstance(items, RolloutGroup) else read_checkouts(items)
        own = [checkout for checkout in checkouts if self.out.name.made(checkout)]
        if uid is not None and checkouts and not own:
            raise InvalidArgument(
                f"uid={uid!r} is a group of this buffer, and the rollouts were taken from another one; put them without uid"
            )
        found = {known for known in self.out.by_object(items) if self._waits(known, None)}
        found = found or {checkout.uid for checkout in own}
        if uid is not None:
            found.add(uid)
        elif not found and not checkouts and (self.out.returned or self.engine.task(task_name).checked_out):
            found = self._unmarked(items, task_name)
        if len(found) > 1:
            raise InvalidArgument(
                f"rollouts in one put may continue several checked-out groups: {sorted(found)}; put each group separately, "
                "and name it with uid="
            )
        continues = found.pop() if found else None
        # The oldest: no member may be of an earlier attempt.
        mine = [checkout for checkout in own if checkout.uid == continues]
        return continues, min(mine, key=lambda checkout: checkout.attempt, default=None)

    def _unmarked(self, items: Sequence[Any], task_name: str) -> set[int]:
        """Return the groups that rollouts without a checkout may continue: by `group_uid`, else by their tokens."""
        rollouts = list(copy.copy(items)) if isinstance(items, RolloutGroup) else items
        carried = {getattr(rollout, "group_uid", None) for rollout in rollouts}
        named = {known for known in carried if type(known) is int and self._waits(known, None)}
        if not named and not self.out.has_unmarked:
            return named
        if (found := fingerprint_of(rollouts)) is None:
            return named
        if named:
            return {
                uid for uid in named if (old := self._print_of(uid)) is None or old.prompts == found.prompts
            }
        known = self.printed(found.prompt, task_name, find_group_id(rollouts), len(rollouts))
        return {uid for uid, old in known.items() if extends(old, rollouts)}

    def printed(self, prompt: bytes, task_name: str, group_id: Any, size: int) -> dict[int, Fingerprint]:
        """Return the groups of this prompt that wait to be put again and carry no checkout. O(found)."""
        columns, task = self.engine.columns, self.engine.task(task_name).code
        known = dict(self.out.by_print(prompt))
        for uid in self._home.get((task, repr(group_id), size), ()):
            if uid in self.out.returned and (old := self._print_of(uid, without_place=True)) is not None:
                known[uid] = old
        return {
            uid: old
            for uid, old in known.items()
            if old.prompt == prompt and self._waits(uid, None) and columns.task[self._slot_of[uid]] == task
        }

    def is_waiting(self, uid: int) -> bool:
        """Return whether a group is to be rolled again, wherever it is."""
        slot = self._slot_of.get(uid)
        return slot is not None and int(self.engine.columns.status[slot]) in RETURNING

    def _print_of(self, uid: int, *, without_place: bool = False) -> Fingerprint | None:
        """Return what a group is recognised by; None if that is not known, or if its rollouts carry checkouts."""
        group = self._group(self._slot_of[uid])
        was_here = group.is_here
        try:
            self.load([group])
        except CorruptData:
            return None
        payload = group.payload
        rollouts = list(copy.copy(payload)) if isinstance(payload, RolloutGroup) else payload
        found = None if without_place and any(map(can_carry, rollouts)) else fingerprint_of(rollouts)
        if not was_here and self.keeper is not None:
            self.keeper.settle([group])
        return found

    def _is_home(self, uid: int) -> bool:
        """Return whether a group is in its pool, to be rolled again."""
        return self.is_waiting(uid) and self.is_resident(uid)

    def _check_task(self, slot: int, task_name: str) -> None:
        own = list(self.engine.tasks)[self.engine.columns.task[slot]]
        if own != task_name:
            raise InvalidArgument(
                f"group {self._group(slot).uid} is out of task {own!r} and cannot come back to {task_name!r}"
            )

    def _continued(self, put: Put) -> int | None:
        """Return the group that a put continues; None if it is new, or was given up."""
        uid = put.continues
        return None if uid is None or not self._waits(uid, put.checkout) else uid

    def _enter(
        self, puts: Sequence[Put], decisions: Sequence[Decision]
    ) -> tuple[Sequence[int], Sequence[int], IntArray]:
        """Give groups their rows; return slots, uids, and the slots of rows that had to leave: maybe some of these."""
        engine, put, decision = self.engine, puts[0], decisions[0]
        if len(puts) > 1:
            slots, uids, gone = engine.insert_many(
                put.task,
                _rows(puts, decisions),
                decision.code,
                admitted=True,
                group_ids=[put.summary.group_id for put in puts],
                tags=[put.tags for put in puts],
            )
            return slots.tolist(), uids, gone
        row, group_id, uid = put.row(decision), put.summary.group_id, self._continued(put)
        if uid is None:
            slot, gone = engine.insert(
                put.task, row, decision.code, admitted=True, group_id=group_id, tags=put.tags
            )
            return [slot], [engine.last_uid], gone
        self._check_out(uid)
        self.out.discard(uid)
        slot, gone = engine.insert_again(
            self._slot_of[uid], row, decision.code, group_id=group_id, tags=put.tags
        )
        return [slot], [uid], gone


def _rows(puts: Sequence[Put], decisions: Sequence[Decision]) -> list[dict[str, float]]:
    """Return the columns of groups that enter together, each with the initial priority as if it entered by itself."""
    rows, largest = [], 0.0
    for put, decision in zip(puts, decisions, strict=True):
        rows.append(put.row(decision, largest))
        largest = max(largest, rows[-1]["priority"])
    return rows


def _admitted(puts: Iterable[Put]) -> list[Put]:
    """Return the puts that the limiter and the room must admit."""
    return [
        put
        for put in puts
        if put.decide().status is Status.COMPLETED
        and not (put.continues is not None and put.task.awaits_stragglers)
    ]


def _expire_caller(rollouts: Sequence[Any], decision: Decision) -> None:
    """Remove the responses of the caller's rollouts that expired with their put."""
    expired = [rollouts[member] for member in decision.expired]
    for rollout in expired:
        expire(rollout)
    write_staleness(expired, [decision.staleness[member] for member in decision.expired])
