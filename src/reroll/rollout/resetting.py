"""Emptying a rollout: what the response left behind goes, what a new response needs stays."""

from typing import Any

from reroll.rollout.foreign import copy_tokens, empty_like, write_if_present
from reroll.rollout.model import Rollout

_CLEARED_FIELDS = (
    *("response_mask", "reward", "finish_reason", "error_msg", "routed_experts", "tool_calls"),
    # These are made from the response too, and would describe one that is gone.
    *("input_ids", "labels", "num_tokens"),
)
_RELEASED_FIELDS = ("prompt_ids", "tokens", "mm_info")


def reset(rollout: Any) -> None:
    """Empty the response. Message, prompt, ids, mm_info, extra_fields and seq_staleness stay, and the status."""
    if type(rollout) is Rollout:
        rollout.clear_response()
        return
    write_if_present(rollout, "tokens", copy_tokens(getattr(rollout, "prompt_ids", None)))
    write_if_present(rollout, "response", "")
    for field in ("response_ids", "logprobs", "response_model_steps"):
        write_if_present(rollout, field, empty_like(getattr(rollout, field, None)))
    for field in _CLEARED_FIELDS:
        write_if_present(rollout, field, None)


def release(rollout: Any) -> None:
    """Empty a rollout that nobody will roll again: its prompt and its extra data go as well."""
    reset(rollout)
    for field in _RELEASED_FIELDS:
        write_if_present(rollout, field, None)
    if getattr(rollout, "extra_fields", None):
        rollout.extra_fields = {}
