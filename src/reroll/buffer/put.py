"""A put as a plan: its group, its arguments, and the decision as of now.

`plan_group` reads the rollouts, once. `decide` is quick and runs again after each wait, since the training step may have moved
on. Neither changes anything; `apply` changes the caller's objects, and cannot fail.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from reroll.buffer.group import Applied, Payload, assign_uid
from reroll.buffer.signals import Signal
from reroll.engine.rows import NO_VERSION
from reroll.engine.task import STATUS_CODE, Task
from reroll.errors import InvalidArgument
from reroll.group import RolloutGroup
from reroll.rollout import (
    GroupSummary,
    Rollout,
    Status,
    can_expire,
    combine,
    inspect_members,
    is_too_stale,
    summarize,
    version_staleness,
)
from reroll.rollout.checkout import Checkout
from reroll.rollout.rules import find_invalid, refuse, with_failed_copies
from reroll.rollout.summary import find_group_id


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """How groups of a task are judged."""

    expire: Literal["group", "member"] = "group"
    on_failed: Literal["group", "drop_member"] = "group"
    on_invalid: Literal["error", "fail_member"] = "error"
    min_group_size: int = 1
    max_attempts: int | None = None
    max_staleness: int | None = None
    on_stale: Literal["reroll", "drop"] = "reroll"
    signal: Signal | None = None


class Decision(NamedTuple):
    """What a put comes to as of the task's step."""

    status: Status
    staleness: tuple[int, ...]
    """Of each member."""
    expired: tuple[int, ...]
    """The members that are too stale."""
    dropped: bool
    """Whether it is dropped, and not kept to be rolled again."""
    is_beyond: bool = False
    """Whether it is COMPLETED, but for a staleness above `max_staleness`."""

    @property
    def code(self) -> int:
        """The status as rows have it."""
        return STATUS_CODE[self.status]


@dataclass(slots=True, kw_only=True)
class Put:
    """One put: the group, its summary, and the arguments."""

    task: Task
    rules: GroupRules
    items: Payload
    """What the buffer will hold: columns, or the caller's objects."""
    caller: Sequence[Any]
    """The rollouts or the group of the caller."""
    summary: GroupSummary
    model_step: int | None
    current_train_step: int | None
    stale_threshold: int | None
    token_stale_threshold: int | None
    retryable: bool
    continues: int | None
    """The group that these rollouts continue, if no other producer has put it meanwhile."""
    checkout: Checkout | None
    """The checkout that they carry; it must be of the attempt that the group is at."""
    attempt: int
    trained: bool
    """Whether the group was trained before it was taken to be rolled again."""
    priority: float | None
    """None: the initial priority of the task, as of the moment when the group enters."""
    tags: Mapping[str, Any] | None
    _decided: Decision | None = None
    _decided_at: int | None = None
    """The step that the task had then."""

    def decide(self) -> Decision:
        """Return status and staleness of the group as of now."""
        if self._decided is None or self._decided_at != self.task.step:
            self._decided, self._decided_at = self._decide(self.step()), self.task.step
        return self._decided

    def step(self) -> int | None:
        """Return the training step that staleness is computed from, None if rollouts state their own."""
        given, known = self.current_train_step, self.task.step
        if given is None:
            return None if self.summary.version is None else known
        return given if known is None else max(given, known)

    def _decide(self, step: int | None) -> Decision:
        if step is None:
            staleness = self.summary.member_staleness
        else:
            versions = self.summary.member_versions
            alike = versions.count(versions[0]) == len(versions)  # as mostly
            staleness = (
                (version_staleness(versions[0], step),) * len(versions)
                if alike
                else tuple([version_staleness(version, step) for version in versions])
            )
        status = self.summary.status
        expired = self._expired(staleness, step)
        dropped = not self.retryable and (bool(expired) or status is Status.EXPIRED)
        bound = self.rules.max_staleness
        is_beyond = bound is not None and status is Status.COMPLETED and max(staleness) > bound
        if bound is not None and is_beyond:
            stale = [member in expired or value > bound for member, value in enumerate(staleness)]
            expired = self._of_group(stale)
            dropped |= not self.retryable or self.trained or self.rules.on_stale == "drop"
        if expired:
            status = Status.EXPIRED
        limit = self.rules.max_attempts
        if limit is not None and self.attempt > limit and status in (Status.ABORTED, Status.EXPIRED):
            status, expired, dropped = Status.FAILED, (), False
        return Decision(status, staleness, expired, dropped, is_beyond)

    def apply(self, decision: Decision, uid: int) -> Applied:
        """Write versions, staleness, uid and final failure to the group and to the caller's rollouts; return the edits."""
        applied = Applied(
            self.model_step,
            None if self.step() is None else decision.staleness,
            decision.status is Status.FAILED and self.summary.status is not Status.FAILED,
        )
        if isinstance(self.items, RolloutGroup):
            self.items = applied.to_columns(self.items, uid)
        if isinstance(self.caller, RolloutGroup) and isinstance(self.items, RolloutGroup):
            self.caller.become(self.items)
        else:
            applied.to(self.caller)
            assign_uid(self.caller, uid)
        return applied

    def row(self, decision: Decision, largest: float = 0.0) -> dict[str, float]:
        """Return the columns of the group; `largest` is the largest priority of groups that enter with it, before it."""
        row = row_of(self.summary)
        row["priority"] = self.task.initial_priority(largest) if self.priority is None else self.priority
        row["staleness"] = max(decision.staleness)
        return row

    def _expired(self, staleness: tuple[int, ...], step: int | None) -> tuple[int, ...]:
        if self.stale_threshold is None and self.token_stale_threshold is None:
            return ()
        if not can_expire(self.summary.status, self.rules.expire):
            return ()
        if step is None:
            threshold = self.stale_threshold
            stale = [threshold is not None and value >= threshold for value in staleness]
        else:
            stale = [
                is_too_stale(
                    *versions,
                    step,
                    stale_threshold=self.stale_threshold,
                    token_stale_threshold=self.token_stale_threshold,
                )
                for versions in zip(
                    self.summary.member_versions, self.summary.member_newest_trainable, strict=True
                )
            ]
        return self._of_group(stale)

    def _of_group(self, stale: Sequence[bool]) -> tuple[int, ...]:
        """Return the members that expire if these are stale: with `expire="group"` all members, or none."""
        if self.rules.expire == "group" and any(stale):
            return tuple(range(len(stale)))
        return tuple(member for member, is_stale in enumerate(stale) if is_stale)


def row_of(summary: GroupSummary) -> dict[str, float]:
    """Return the columns that a summary fills."""
    trainable = [version for version in summary.member_newest_trainable if version is not None]
    return {
        "version": NO_VERSION if summary.version is None else summary.version,
        "newest": NO_VERSION if summary.newest_version is None else summary.newest_version,
        "trainable": min(trainable, default=NO_VERSION),
        "num_rollouts": summary.num_rollouts,
        "num_tokens": summary.num_tokens,
        "num_bytes": summary.num_bytes,
        "reward_mean": float("nan") if summary.reward_mean is None else summary.reward_mean,
        "reward_std": float("nan") if summary.reward_std is None else summary.reward_std,
    }


def _plan_objects(
    rollouts: list[Any], rules: GroupRules, model_step: int | None
) -> tuple[list[Any], GroupSummary]:
    """Return the members that count, and their summary; invalid members are refused, or FAILED copies replace them."""
    try:
        summary, invalid = summarize(rollouts, model_step=model_step), find_invalid(rollouts)
    except InvalidArgument:
        if rules.on_invalid == "error":
            raise
        invalid = [(-1, "")]
    if invalid:
        if rules.on_invalid == "error":
            refuse(invalid)
        with suppress(AttributeError):  # an object that is no rollout, which the summary names
            rollouts[:] = with_failed_copies(rollouts, partial=model_step is not None)
        summary = summarize(rollouts, model_step=model_step)
    if rules.on_failed == "drop_member" and summary.status is Status.FAILED:
        members = inspect_members(rollouts, model_step)
        healthy = [place for place, member in enumerate(members) if member.status is not Status.FAILED]
        if len(healthy) >= rules.min_group_size:
            rollouts, members = [rollouts[place] for place in healthy], [members[place] for place in healthy]
            summary = combine(members, find_group_id(rollouts))
    return rollouts, summary


def plan_group(
    items: Sequence[Any], rules: GroupRules, *, model_step: int | None
) -> tuple[Payload, Sequence[Any], GroupSummary]:
    """Check a group; return what the buffer will hold, the caller's rollouts that it stands for, and its summary.

    Raises InvalidArgument, which names rollout and field; changes nothing.
    """
    if type(items) is not list and (isinstance(items, str | bytes) or not isinstance(items, Sequence)):
        raise InvalidArgument(f"items must be a list of rollouts, not {type(items).__name__}")
    if not isinstance(items, RolloutGroup) and list(map(type, items)).count(Rollout) != len(items):
        objects, summary = _plan_objects(list(items), rules, model_step)
        return objects, objects, summary
    try:
        if not isinstance(items, RolloutGroup):
            group = RolloutGroup.of(items, model_step=model_step)
        else:
            group = copy.copy(items)
            if model_step is not None:
                group = group.stamped(model_step)
        summary, invalid = group.summary(), group.find_invalid()
    except InvalidArgument:
        if rules.on_invalid == "error":
            summarize(items, model_step=model_step)  # which names rollout and field
            raise
    else:
        if invalid and rules.on_invalid == "error":
            refuse(invalid)
        if not invalid and (rules.on_failed == "group" or summary.status is not Status.FAILED):
            group.drop_own_ids()  # it gets its uid when it is stored
            return group, items, summary
    members, summary = _plan_objects(list(items), rules, model_step)
    group = RolloutGroup.of(members, model_step=model_step)
    group.drop_own_ids()
    return group, items if isinstance(items, RolloutGroup) else members, group.summary()
