"""The names of a rollout's fields, and the kind of attribute that checks what is assigned to it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

CHECKED_FIELDS: Final = (
    *("prompt_ids", "tokens", "response_ids", "logprobs", "response_mask", "response_model_steps"),
    *("input_ids", "labels", "seq_staleness", "status", "num_tokens", "columns"),
)
PLAIN_FIELDS: Final = (
    *("group_uid", "group_id", "rollout_id", "session_id", "message", "response", "reward", "finish_reason"),
    *("error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields"),
)
FIELDS: Final = CHECKED_FIELDS + PLAIN_FIELDS
# What nearly every rollout holds: an entry per token.
TOKEN_FIELDS: Final = ("prompt_ids", "response_ids", "logprobs", "response_mask", "response_model_steps")
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
        "columns",
    ),
)


def checked(name: str, accept: Callable[[str, Any], Any]) -> property:
    """Return an attribute that is converted when it is set; its value lives in the slot "_" + name.

    Reading is left to C: the fields of every rollout are read at each put.
    """
    slot = f"_{name}"
    return property(attrgetter(slot), lambda rollout, value: setattr(rollout, slot, accept(name, value)))
