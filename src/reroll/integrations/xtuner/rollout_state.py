"""RolloutState: one response as a pydantic model, with plain lists. The same fields as `Rollout`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from reroll.codec import register
from reroll.rollout import Status
from reroll.rollout.arrays import same


@register
class RolloutState(BaseModel):
    """One response to a prompt. Unknown fields are refused; what is assigned later is not checked until it is put."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    group_uid: int | None = None
    """Given by the buffer."""
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
    """The version that made each response token."""
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

    __hash__ = None  # type: ignore[assignment]  # it changes
