"""The rules of groups as functions on rollouts, under xtuner's names. They say how; `reroll.rollout` says what.

Each takes any object with the attributes of a rollout, changes it in place and returns it.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from reroll.rollout import (
    Status,
    can_expire,
    check_threshold,
    expires,
    group_status,
    reset,
    rollout_staleness,
    stamp,
    status_from_finish_reason,
    version_staleness,
)
from reroll.rollout import expire as expire_rollout

T = TypeVar("T")


def get_group_status(rollout_states: Sequence[Any]) -> Status:
    """Return COMPLETED if all are, else the first that any has of FAILED, ABORTED, EXPIRED, FILTERED, else INIT."""
    return group_status(rollout_states)


def update_status_from_finish_reason(finish_reason: str | None) -> Status:
    """Return the status of a response that ended so, whatever the case; a missing or unknown reason means FAILED."""
    return status_from_finish_reason(finish_reason)


def calculate_seq_staleness(model_step: int, train_step: int) -> int:
    """Return how many training steps behind a token of this version is: 0 on policy, -1 one ahead."""
    return version_staleness(model_step, train_step)


def update_sample_version(rollout_state: T, model_step: int) -> T:
    """Give `model_step` to the response tokens that have no version; of a rollout, or of each in a list."""
    for member in _members(rollout_state):
        stamp(member, model_step)
    return rollout_state


def refresh_seq_staleness(group: T, current_train_step: int) -> T:
    """Let rollouts state their staleness as of a training step: a list of them, or one."""
    for member in _members(group):
        member.seq_staleness = rollout_staleness(member, current_train_step)
    return group


def reset_rollout_response(rollout_state: T) -> T:
    """Empty the response, so that the rollout can be rolled again; the prompt and what belongs to it stay."""
    reset(rollout_state)
    return rollout_state


def maybe_expire_group(
    group: T, stale_threshold: int | None, *, expire: Literal["group", "member"] = "group"
) -> T:
    """Expire and empty the group if a member's `seq_staleness` reaches the threshold; by member, only such members.

    Groups that are neither COMPLETED nor ABORTED stay as they are. Raises InvalidArgument for a threshold below 1.
    """
    check_threshold("stale_threshold", stale_threshold)
    members = _members(group)
    if not can_expire(group_status(members), expire):
        return group
    stale = [member for member in members if expires(member, None, stale_threshold=stale_threshold)]
    for member in members if stale and expire == "group" else stale:
        expire_rollout(member)
    return group


def _members(rollouts: Any) -> Sequence[Any]:
    return rollouts if isinstance(rollouts, list | tuple) else (rollouts,)
