"""The names of a rollout's fields, and the kind of attribute that checks what is assigned to it."""

from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar, overload

T = TypeVar("T")

CHECKED_FIELDS: Final = (
    *("prompt_ids", "tokens", "response_ids", "logprobs", "response_mask", "response_model_steps"),
    *("input_ids", "labels", "seq_staleness", "status", "num_tokens"),
)
PLAIN_FIELDS: Final = (
    *("group_uid", "group_id", "rollout_id", "session_id", "message", "response", "reward", "finish_reason"),
    *("error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields"),
)
FIELDS: Final = CHECKED_FIELDS + PLAIN_FIELDS
# Where a rollout's memory goes; the other fields are single numbers and short texts.
HEAVY_FIELDS: Final = (
    *("message", "prompt_ids", "tokens", "response", "response_ids", "logprobs", "response_mask"),
    *(
        "response_model_steps",
        "routed_experts",
        "mm_info",
        "tool_calls",
        "input_ids",
        "labels",
        "extra_fields",
    ),
)


class Checked(Generic[T]):
    """An attribute that is converted when it is set; its value lives in the slot of the same name with a "_"."""

    def __init__(self, accept: Callable[[str, Any], T]) -> None:
        self._accept = accept

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._slot = f"_{name}"

    @overload
    def __get__(self, owner: None, owner_type: type) -> Self: ...
    @overload
    def __get__(self, owner: object, owner_type: type) -> T: ...
    def __get__(self, owner: object | None, owner_type: type) -> Self | T:
        if owner is None:
            return self
        value: T = getattr(owner, self._slot)
        return value

    def __set__(self, owner: object, value: Any) -> None:
        setattr(owner, self._slot, self._accept(self._name, value))
