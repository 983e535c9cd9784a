"""`RolloutState` and xtuner's functions on rollouts; the rules are those of `reroll.rollout`.

Each function accepts any object with the attributes of a rollout, changes it in place and returns it.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from reroll.codec import register
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
from reroll.rollout.arrays import same

T = TypeVar("T")


@register
class RolloutState(BaseModel):
    """One response as a pydantic model, with the fields of `Rollout` and plain lists.

    Unknown fields are refused; values that are assigned later are checked when the group is put.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    group_uid: int | None = None
    """Set by the buffer."""
    group_id: int | str | None = None
    rollout_id: int | str | None = None
    session_id: int | str | None = None
    message: list[dict[str, Any]] | None = None
    prompt_ids: list[int] | None = None
    tokens: list[int] | None = None
    response: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    response_mask: list[int] | None = None
    response_model_steps: list[int] | None = None
    """Policy version of each response token."""
    seq_staleness: int = 0
    reward: float | dict[str, Any] | None = None
    status: Status = Status.INIT
    finish_reason: str | None = None
    error_msg: str | None = None
    routed_experts: Any = None
    mm_info: Any = None
    tool_calls: list[Any] | None = None
    num_tokens: int | None = None
    input_ids: list[int] | None = None
    labels: list[int] | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return same(vars(self), vars(other))  # fields may hold arrays

    __hash__ = None  # type: ignore[assignment]  # mutable


def get_group_status(rollout_states: Sequence[Any]) -> Status:
    """Return the status of a group.

    COMPLETED if all members are, else the first of FAILED, ABORTED, EXPIRED, FILTERED that occurs, else INIT.

    Args:
        rollout_states: the members of the group.

    """
    return group_status(rollout_states)


def update_status_from_finish_reason(finish_reason: str | None) -> Status:
    """Return the status for a finish reason, in any case of letters; FAILED for a missing or unknown reason.

    Args:
        finish_reason: as the engine reports it.

    """
    return status_from_finish_reason(finish_reason)


def calculate_seq_staleness(model_step: int, train_step: int) -> int:
    """Return the staleness of a token: `train_step - model_step - 1`, which is 0 on policy.

    Args:
        model_step: version of the token.
        train_step: the training step.

    """
    return version_staleness(model_step, train_step)


def update_sample_version(rollout_state: T, model_step: int) -> T:
    """Set the version of response tokens that have none.

    Args:
        rollout_state: one rollout, or a group.
        model_step: the version.

    Returns:
        The same object.

    """
    for member in _members(rollout_state):
        stamp(member, model_step)
    return rollout_state


def refresh_seq_staleness(group: T, current_train_step: int) -> T:
    """Set `seq_staleness` as of a training step.

    Args:
        group: one rollout, or a group.
        current_train_step: the training step.

    Returns:
        The same object.

    """
    for member in _members(group):
        member.seq_staleness = rollout_staleness(member, current_train_step)
    return group


def reset_rollout_response(rollout_state: T) -> T:
    """Remove the response, so that the rollout can be generated again; prompt, ids and extra fields stay.

    Args:
        rollout_state: the rollout.

    Returns:
        The same object.

    """
    reset(rollout_state)
    return rollout_state


def maybe_expire_group(
    group: T, stale_threshold: int | None, *, expire: Literal["group", "member"] = "group"
) -> T:
    """Expire and reset a COMPLETED or ABORTED group with a member whose `seq_staleness` reaches the threshold.

    Args:
        group: the rollouts.
        stale_threshold: staleness at which a member expires; None: never.
        expire: `"group"`: one such member expires all; `"member"`: only such members expire.

    Returns:
        The same group.

    Raises:
        InvalidArgument: the threshold is below 1.

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
    return rollouts if isinstance(rollouts, Sequence) else (rollouts,)
