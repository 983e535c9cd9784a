"""The tokens of rollouts, as the arrays that are packed: those of a `Rollout` as they are, others converted."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from reroll.errors import InvalidArgument
from reroll.rollout import Rollout, VersionRuns
from reroll.rollout.arrays import Floats, Ids, Mask, as_floats, as_ids, as_mask

__all__ = ["Floats", "Ids", "Mask", "Members", "read_members"]


class Members(NamedTuple):
    """A column for each field, with an entry for each rollout."""

    prompts: list[Ids]
    responses: list[Ids]
    logprobs: list[Floats | None]
    masks: list[Mask | None]
    versions: list[VersionRuns]
    finish_reasons: list[str | None]


# All at once and past the properties: a batch reads thousands.
_read_own = attrgetter(
    *("_prompt_ids", "_response_ids", "_logprobs", "_response_mask", "_response_model_steps", "finish_reason")
)
_NOTHING: Ids = np.empty(0, np.int32)


def read_members(rollouts: Sequence[Any], prompt_ids: Sequence[Any]) -> Members:
    """Return what is packed of these rollouts; raises InvalidArgument, which names the prompt."""
    if set(map(type, rollouts)) == {Rollout}:
        columns: list[list[Any]] = [list(column) for column in zip(*map(_read_own, rollouts), strict=True)]
        rows = _unlike(Members(*columns))
    else:
        columns = [[None] * len(rollouts) for _ in Members._fields]
        rows = list(range(len(rollouts)))
    for row in rows:
        try:
            member = _read(rollouts[row])
        except InvalidArgument as error:
            raise InvalidArgument(f"prompt {prompt_ids[row]!r}: {error}") from error
        for column, value in zip(columns, member, strict=True):
            column[row] = value
    return Members(*columns)


def _unlike(found: Members) -> list[int]:
    """Return the rows in which a field is missing, or lengths disagree: they are read one by one."""
    prompt = np.array([ids is None for ids in found.prompts])
    response = _lengths(found.responses)
    logprobs, mask = _lengths(found.logprobs), _lengths(found.masks)
    ends = [versions.parts[1] for versions in found.versions]
    version = np.array([end[-1] if end else -1 for end in ends])
    is_unlike = prompt | (response < 0)
    for lengths in (logprobs, mask, version):
        is_unlike |= (lengths >= 0) & (lengths != response)
    return np.flatnonzero(is_unlike).tolist()


def _lengths(column: Sequence[Any]) -> Any:
    return np.array([-1 if values is None else len(values) for values in column])


def _read(rollout: Any) -> tuple[Any, ...]:
    """Return what is packed of one rollout, of any class."""
    if type(rollout) is Rollout:
        prompt, response, logprobs, mask, versions, reason = _read_own(rollout)
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
