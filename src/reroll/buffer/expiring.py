"""Expiry: stale groups are emptied to be rolled again, or dropped."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from reroll.buffer.group import BOUND
from reroll.buffer.payloads import Payloads
from reroll.buffer.put import GroupRules, row_of
from reroll.engine.engine import Engine
from reroll.engine.rows import LEASED, NO_VERSION, RESIDENT, BoolArray, IntArray
from reroll.engine.task import COMPLETED, EXPIRED, STATUS_CODE, Task
from reroll.errors import CorruptData
from reroll.group import RolloutGroup
from reroll.rollout import Status, is_too_stale, release, summarize, version_staleness, write_status


class Thresholds(NamedTuple):
    """What a refresh asks for."""

    stale_threshold: int | None
    token_stale_threshold: int | None
    retryable: bool


class Expiring(Payloads):
    """Groups that expire. Costs what expires, whatever is there."""

    def __init__(
        self, engine: Engine, rules_of: Callable[[str], GroupRules], out_ttl_s: float | None
    ) -> None:
        super().__init__(engine, rules_of, out_ttl_s)
        self._thresholds: dict[str, Thresholds] = {}  # of each task's last refresh
        self._refreshes: dict[str, int] = {}  # how many each task has seen

    def rules_state(self) -> dict[str, Any]:
        """Return what is to be remembered of refreshes."""
        return {"thresholds": self._thresholds, "refreshes": self._refreshes}

    def restore_rules(self, state: Mapping[str, Any]) -> None:
        self._thresholds = {name: Thresholds(*told) for name, told in state["thresholds"].items()}
        self._refreshes = dict(state["refreshes"])

    def learn_step(self, task: Task, step: int | None, *, retryable: bool = True) -> int:
        """Raise a task's training step; expire the groups that pass `max_staleness` by it, and return how many. O(found)."""
        before, bound = task.step, self.rules_of(task.name).max_staleness
        task.learn_step(step)
        if bound is None or task.step == before:
            return 0
        stale = self.engine.stale(task, COMPLETED, bound + 1, None)
        self._expire_beyond(task, stale, retryable=retryable)
        return len(stale)

    def enforce_bounds(self) -> None:
        """Expire every COMPLETED group above its task's `max_staleness`: after steps went back, or rules changed. O(rows)."""
        for task in self.engine.tasks.values():
            self._recheck_bound(task, task.completed.sampler.slots())

    def is_beyond(self, slots: IntArray) -> BoolArray:
        """Return which rows have a staleness above the `max_staleness` of their task."""
        bounds = [self.rules_of(name).max_staleness for name in self.engine.tasks]
        limits = np.array([BOUND if bound is None else bound for bound in bounds], np.int64)
        found: BoolArray = self.engine.staleness(slots) > limits[self.engine.columns.task[slots]]
        return found

    def expirable(self, task_name: str) -> tuple[int, ...]:
        """Return the statuses that expire by default."""
        both = (COMPLETED, STATUS_CODE[Status.ABORTED])
        return (*both, EXPIRED) if self.rules_of(task_name).expire == "member" else both

    def refresh(self, task: Task, statuses: Iterable[int] | None, thresholds: Thresholds) -> int:
        """Expire what is too stale as of the task's step; return how many groups newly did. O(what expires).

        Groups that expired before are dropped, if they are not to be rolled again.
        """
        self._thresholds[task.name] = thresholds
        self._refreshes[task.name] = self._refreshes.get(task.name, 0) + 1
        wanted = list(self.expirable(task.name) if statuses is None else statuses)
        drops = not thresholds.retryable and (statuses is None or EXPIRED in wanted)
        for status in wanted:
            if status != EXPIRED:  # emptied rollouts keep the staleness they expired with
                self.engine.clear_pool_staleness(task, status)
        if self.rules_of(task.name).expire == "group":
            wanted = [status for status in wanted if status != EXPIRED]  # whole groups expire once
        count = 0
        for status in wanted:
            slots = self.engine.stale(
                task, status, thresholds.stale_threshold, thresholds.token_stale_threshold
            )
            count += len(slots) if status != EXPIRED else 0
            self._expire(task, status, slots, thresholds)
        if drops and len(task.pools[EXPIRED]):
            self._drop_expired(task, EXPIRED, task.pools[EXPIRED].sampler.slots())
        return count

    def edition(self, uid: int) -> tuple[int, int, int]:
        """Return uid and attempt of a group, and how many refreshes its task has seen; zeros if it is gone for good."""
        slot = self._slot_of.get(uid, self._kept.get(uid))
        if slot is None:
            return uid, 0, 0
        columns = self.engine.columns
        name = list(self.engine.tasks)[columns.task[slot]]
        return uid, int(columns.attempts[slot]), self._refreshes.get(name, 0)

    def forget_told(self, uids: Iterable[int], place: int = LEASED) -> None:
        """Let lent groups without versions have staleness 0, as a refresh would have; `place` is where they are now."""
        slots = self.slots(uid for uid in uids if uid in self._slot_of)
        columns = self.engine.columns
        told = slots[(columns.place[slots] == place) & (columns.status[slots] != EXPIRED)]
        told = told[(columns.version[told] == NO_VERSION) & (columns.staleness[told] != 0)]
        self.engine.clear_declared_staleness(told)

    def recheck(self, slots: IntArray) -> None:
        """Expire rows that came back, if a refresh or `max_staleness` would have expired them meanwhile."""
        for task, status, part in self.engine.by_pool(slots):
            rule = self._thresholds.get(task.name)
            drops = rule is not None and not rule.retryable  # then the refresh decides before the bound
            if status == COMPLETED and not drops:
                self._recheck_bound(task, part)
            if status == EXPIRED and drops:
                self._drop_expired(task, status, part)
            elif rule is not None and status in (COMPLETED, *self.expirable(task.name)):
                stale = self.engine.stale(task, status, rule.stale_threshold, rule.token_stale_threshold)
                self._expire(task, status, part[np.isin(part, stale)], rule)
            if status == COMPLETED and drops:
                self._recheck_bound(task, part)

    def _recheck_bound(self, task: Task, slots: IntArray) -> None:
        """Expire those of a task's rows that are COMPLETED, in their pool, and above `max_staleness`."""
        if self.rules_of(task.name).max_staleness is None:
            return
        columns = self.engine.columns
        here = (columns.place[slots] == RESIDENT) & (columns.status[slots] == COMPLETED)
        slots = slots[here & (columns.uid[slots] != 0)]
        self._expire_beyond(task, slots[self.is_beyond(slots)])

    def _expire_beyond(self, task: Task, slots: IntArray, *, retryable: bool = True) -> None:
        """Expire COMPLETED rows that have passed `max_staleness`; drop those that were trained, or are being trained."""
        if not len(slots):
            return
        self.counters.count_stale(task.name, len(slots))
        rules, columns = self.rules_of(task.name), self.engine.columns
        used = (columns.trained[slots] > 0) | (columns.pending[slots] > 0)
        kept = slots[~used] if retryable and rules.on_stale == "reroll" else slots[:0]
        dropped = np.setdiff1d(slots, kept)
        if len(dropped):
            self._drop_expired(task, COMPLETED, dropped)
        bound = rules.max_staleness
        self._expire(task, COMPLETED, kept, Thresholds(None if bound is None else bound + 1, None, True))

    def _expire(self, task: Task, status: int, slots: IntArray, thresholds: Thresholds) -> None:
        if not len(slots):
            return
        if not thresholds.retryable:
            self._drop_expired(task, status, slots)
        elif self.rules_of(task.name).expire == "group":
            self._expire_groups(task, status, slots)
        else:
            for slot in slots.tolist():
                members = self._stale_members(task, slot, thresholds)
                if members:
                    self._expire_members(task, slot, members)
                else:  # its staleness is the one that put was given, or a distance to weights that were lost
                    self._expire_groups(task, status, np.array([slot]))

    def _stale_members(self, task: Task, slot: int, thresholds: Thresholds) -> dict[int, int]:
        """Return the staleness of those members of a row that are too stale."""
        group, step = self._group(slot), task.step or 0
        return {
            member: version_staleness(oldest, step)
            for member, (oldest, trainable) in enumerate(zip(group.versions, group.trainable, strict=True))
            if is_too_stale(
                oldest,
                trainable,
                step,
                stale_threshold=thresholds.stale_threshold,
                token_stale_threshold=thresholds.token_stale_threshold,
            )
        }

    def _expire_groups(self, task: Task, status: int, slots: IntArray) -> None:
        """Let whole groups expire: rows at once, rollouts when they are shown."""
        nothing = np.full(len(slots), NO_VERSION)
        unknown = np.full(len(slots), np.nan)
        tokens = np.array([self._group(slot).prompt_tokens() for slot in slots.tolist()], np.int64)
        self.engine.expire(
            task,
            status,
            slots,
            {
                "staleness": self.engine.staleness(slots),
                "num_tokens": np.minimum(tokens, self.engine.columns.num_tokens[slots]),
                **dict.fromkeys(("version", "newest", "trainable"), nothing),
                **dict.fromkeys(("reward_mean", "reward_std"), unknown),
            },
        )
        for slot in slots.tolist():
            group = self._group(slot)
            for witness in self.witnesses:
                witness.before_record(group)
            group.expire_later(task.step or 0)

    def _expire_members(self, task: Task, slot: int, staleness: Mapping[int, int]) -> None:
        """Let members of one group expire, at once; the group waits in EXPIRED."""
        group, columns = self._group(slot), self.engine.columns
        one, was_here = np.array([slot]), group.is_here
        try:
            self.load([group])
        except CorruptData:  # raised at delivery; until then only the row is used
            self._expire_groups(task, int(columns.status[slot]), one)
            return
        self._before_change(group)
        group.expire_now(staleness)
        left = group.current()
        summary = left.summary() if isinstance(left, RolloutGroup) else summarize(left)
        group.learn(summary)
        row = {**row_of(summary), "staleness": max(staleness.values())}
        row["num_tokens"] = min(row["num_tokens"], int(columns.num_tokens[slot]))
        num_bytes = int(row.pop("num_bytes"))
        self.engine.expire(
            task, int(columns.status[slot]), one, {name: np.array([v]) for name, v in row.items()}
        )
        self.engine.change(slot, {"num_bytes": num_bytes})
        if not was_here and self.keeper is not None:
            self.keeper.settle([group])

    def _drop_expired(self, task: Task, status: int, slots: IntArray) -> None:
        """Drop groups as too stale, and release their data."""
        columns = self.engine.columns
        # A trainer may still work on what it was given.
        unseen = slots[(columns.trained[slots] == 0) & (columns.pending[slots] == 0)]
        self._give_up(slots)
        self.engine.drop(task, status, slots)
        for slot in unseen.tolist():
            group = self._group(slot)
            self._before_change(group)
            for item in group.objects:
                write_status(item, Status.EXPIRED)
                release(item)
        self._forget(slots)
