"""The tokens of one rollout, as the arrays that are packed: those of a `Rollout` as they are, others converted."""

from operator import attrgetter
from typing import Any

import numpy as np

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, VersionRuns
from reroll.rollout.arrays import Floats, Ids, Mask, as_floats, as_ids, as_mask

__all__ = ["Floats", "Ids", "Mask", "Member", "read_member"]

Member = tuple[Ids, Ids, Floats | None, Mask | None, VersionRuns, str | None]

# All at once and past the properties: a batch reads thousands.
_read_own = attrgetter(
    *("_prompt_ids", "_response_ids", "_logprobs", "_response_mask", "_response_model_steps", "finish_reason")
)
_NOTHING: Ids = np.empty(0, np.int32)


def read_member(rollout: Any) -> Member:
    """Return prompt, response, log-probs, mask, versions and finish reason; raises InvalidArgument."""
    if type(rollout) is Rollout:
        member: Any = _read_own(rollout)
        prompt, response, logprobs, mask, versions, reason = member
        if prompt is not None and response is not None:  # nearly always, and all lengths agree
            length, ends = len(response), versions.parts[1]
            if (
                (logprobs is None or len(logprobs) == length)
                and (mask is None or len(mask) == length)
                and (not ends or ends[-1] == length)
            ):
                return member  # type: ignore[no-any-return]  # the types of its slots
    else:
        prompt = as_ids("prompt_ids", getattr(rollout, "prompt_ids", None))
        response = as_ids("response_ids", rollout.response_ids)
        logprobs = as_floats("logprobs", getattr(rollout, "logprobs", None))
        mask = as_mask("response_mask", getattr(rollout, "response_mask", None))
        versions = VersionRuns.of(rollout.response_model_steps)
        reason = getattr(rollout, "finish_reason", None)
    if response is None:
        response = _NOTHING
    if prompt is None:
        prompt = _prompt_in_whole(rollout, len(response))
    length = len(response)
    if logprobs is not None and len(logprobs) != length:
        logprobs = _of_response("logprobs", logprobs, len(prompt), length)
    if mask is not None and len(mask) != length:
        mask = _of_response("response_mask", mask, len(prompt), length)
    if versions and len(versions) != length:
        raise InvalidArgument(
            f"response_model_steps has {len(versions)} entries, but response_ids has {length}; give one for each"
        )
    return prompt, response, logprobs, mask, versions, reason


def _prompt_in_whole(rollout: Any, length: int) -> Ids:
    """Return what stands before the response in `tokens` or `input_ids`; nothing if there are none."""
    for field in ("tokens", "input_ids"):
        whole = as_ids(field, getattr(rollout, field, None))
        if whole is not None and len(whole) >= length:
            return whole[: len(whole) - length]
    return _NOTHING


def _of_response(field: str, values: Any, prompt: int, length: int) -> Any:
    """Return the entries of the response from those of the whole sequence; None for none."""
    if not len(values):
        return None
    if len(values) != prompt + length:
        raise InvalidArgument(
            f"{field} has {len(values)} entries, but response_ids has {length}; give one for each"
        )
    return values[prompt:]
