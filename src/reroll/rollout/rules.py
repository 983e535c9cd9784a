"""Rules of staleness, expiry, reset and invalid values, for rollouts of any class.

`staleness = training step - oldest version - 1`: 0 on policy, -1 one step ahead.
"""

import copy
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout.adapters import (
    RolloutLike,
    find_mismatch,
    read_integer,
    read_length,
    read_score,
    read_seq_staleness,
    write_if_present,
    write_status,
)
from reroll.rollout.rollout import Rollout
from reroll.rollout.status import Status, read_status
from reroll.rollout.versions import VersionRuns, tally_versions

Invalid = tuple[int, str]
"""Index of an invalid rollout in its group, and the reason."""

_CLEARED_FIELDS: Final = (
    *("response_mask", "reward", "finish_reason", "error_msg", "routed_experts", "tool_calls"),
    *("input_ids", "labels", "num_tokens"),  # derived from the response
)
_RELEASED_FIELDS: Final = ("prompt_ids", "tokens", "mm_info")
_least: Final = np.minimum.reduce


# --- staleness


def version_staleness(version: int | None, current_train_step: int) -> int:
    """Return the staleness of tokens of a version, 0 without a version."""
    return 0 if version is None else current_train_step - version - 1


def rollout_staleness(rollout: RolloutLike, current_train_step: int, *, model_step: int | None = None) -> int:
    """Return the staleness of a rollout's oldest token, as it would be after stamping with `model_step`."""
    return version_staleness(tally_versions(rollout, model_step).oldest, current_train_step)


def group_staleness(
    rollouts: Iterable[RolloutLike], current_train_step: int, *, model_step: int | None = None
) -> int:
    """Return the largest staleness of a group's members, 0 without members."""
    return max(
        (rollout_staleness(rollout, current_train_step, model_step=model_step) for rollout in rollouts),
        default=0,
    )


def write_staleness(rollouts: Iterable[Any], staleness: Iterable[int | None]) -> None:
    """Assign the staleness of each rollout; None leaves a rollout as it is."""
    for rollout, value in zip(rollouts, staleness, strict=True):
        if value is None:
            continue
        if type(rollout) is Rollout:
            rollout._seq_staleness = value  # noqa: SLF001  (no check of an integer: each delivery assigns it)
        elif rollout.seq_staleness != value:
            rollout.seq_staleness = value


def write_same_staleness(rollouts: Iterable[Any], staleness: int) -> None:
    """Assign one staleness to all rollouts."""
    for rollout in rollouts:
        if type(rollout) is Rollout:
            rollout._seq_staleness = staleness  # noqa: SLF001
        elif rollout.seq_staleness != staleness:
            rollout.seq_staleness = staleness


def check_threshold(name: str, threshold: object) -> int | None:
    """Return a threshold as a plain int, or None. Raises InvalidArgument unless it is at least 1."""
    checked = None if threshold is None else read_integer(name, threshold)
    if checked is not None and checked < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {checked}; 1 allows only staleness 0")
    return checked


def effective_response_mask(
    rollout: RolloutLike, current_train_step: int, token_stale_threshold: int | None
) -> list[int] | npt.NDArray[np.uint8]:
    """Return the response mask without tokens whose own staleness reaches the threshold. O(tokens).

    Args:
        rollout: Any rollout. Without a mask all tokens count as kept; a token without a version is fresh.
        current_train_step: The training step that staleness is relative to.
        token_stale_threshold: The lowest staleness that is masked; None masks none.

    Returns:
        Zeros and ones, one per response token: a list if the rollout has lists, an array if it has arrays.

    Raises:
        InvalidArgument: The threshold is below 1, or the mask has a wrong length.

    """
    check_threshold("token_stale_threshold", token_stale_threshold)
    tokens: Any = rollout.response_ids
    held: Any = rollout.response_model_steps
    given: Any = getattr(rollout, "response_mask", None)
    as_list = not isinstance(held, VersionRuns) and not hasattr(tokens if given is None else given, "shape")
    length = read_length("response_ids", tokens)
    if length is None:  # the length of the mask or of the versions counts
        length = len(held if given is None else given) if held is not None or given is not None else 0
    mask = np.ones(length, np.uint8)
    if given is not None and len(given):
        if len(given) != length:
            raise InvalidArgument(
                f"response_mask has {len(given)} entries, but response_ids has {length}; give one per response token"
            )
        mask &= np.asarray(given) != 0
    if token_stale_threshold is not None:
        start = 0
        for version, count in VersionRuns.of(held).runs():
            if version_staleness(version, current_train_step) >= token_stale_threshold:
                mask[start : start + count] = 0
            start += count
    return mask.tolist() if as_list else mask


# --- expiry


def can_expire(group_status: Status, expire: Literal["group", "member"] = "group") -> bool:
    """Return whether groups of a status can expire; by member, also groups that wait for regenerated members."""
    waiting = expire == "member" and group_status is Status.EXPIRED
    return waiting or group_status in (Status.COMPLETED, Status.ABORTED)


def is_too_stale(
    oldest: int | None,
    newest_trainable: int | None,
    current_train_step: int,
    *,
    stale_threshold: int | None = None,
    token_stale_threshold: int | None = None,
) -> bool:
    """Return whether a member with these versions expires: its oldest token is stale, or all trainable tokens are.

    The newest trainable token decides the token rule: if it is stale, all are.
    """
    by_oldest = (
        stale_threshold is not None and version_staleness(oldest, current_train_step) >= stale_threshold
    )
    by_token = (
        token_stale_threshold is not None
        and newest_trainable is not None
        and version_staleness(newest_trainable, current_train_step) >= token_stale_threshold
    )
    return by_oldest or by_token


def expires(
    rollout: RolloutLike,
    current_train_step: int | None,
    *,
    stale_threshold: int | None = None,
    token_stale_threshold: int | None = None,
    model_step: int | None = None,
) -> bool:
    """Return whether a rollout is too stale, as it would be after stamping with `model_step`.

    Without a training step, `seq_staleness` of the rollout decides, and the token rule does not apply.
    """
    if current_train_step is None:
        return stale_threshold is not None and read_seq_staleness(rollout) >= stale_threshold
    tally = tally_versions(rollout, model_step)
    return is_too_stale(
        tally.oldest,
        tally.newest_trainable,
        current_train_step,
        stale_threshold=stale_threshold,
        token_stale_threshold=token_stale_threshold,
    )


def expire(rollout: RolloutLike) -> None:
    """Mark a rollout EXPIRED and remove its response, for regeneration."""
    write_status(rollout, Status.EXPIRED)
    reset(rollout)


# --- reset


def reset(rollout: Any) -> None:
    """Remove the response. Message, prompt, ids, mm_info, extra_fields, seq_staleness and status stay."""
    if type(rollout) is Rollout:
        rollout.clear_response()
        return
    prompt: Any = getattr(rollout, "prompt_ids", None)
    write_if_present(rollout, "tokens", prompt.clone() if hasattr(prompt, "clone") else copy.copy(prompt))
    write_if_present(rollout, "response", "")
    for field in ("response_ids", "logprobs", "response_model_steps"):
        write_if_present(rollout, field, _empty_like(getattr(rollout, field, None)))
    for field in _CLEARED_FIELDS:
        write_if_present(rollout, field, None)


def release(rollout: Any) -> None:
    """Remove the response, the prompt and extra data of a rollout that will not be regenerated."""
    reset(rollout)
    for field in _RELEASED_FIELDS:
        write_if_present(rollout, field, None)
    if getattr(rollout, "extra_fields", None):
        rollout.extra_fields = {}


def _empty_like(value: Any) -> Any:
    """Return a tuple, array or tensor of length 0 for one of these, else a new list."""
    if isinstance(value, tuple) or hasattr(value, "shape"):
        empty = value[:0]
        return empty.clone() if hasattr(empty, "clone") else copy.copy(empty)
    return []


# --- invalid values: rewards that are not finite, and trained tokens without a log-probability


def find_invalid(rollouts: Sequence[Any]) -> list[Invalid]:
    """Return the rollouts with a reward that is not finite, or NaN as log-probability of a trained token.

    FAILED rollouts are not trained and pass. One pass over log-probabilities: 0.2 ns a token of an array, 5 of a list.
    """
    found: list[Invalid] = []
    for place, rollout in enumerate(rollouts):
        reward = getattr(rollout, "reward", None)
        score = reward if type(reward) is float else read_score(reward)
        if score is not None and not isfinite(score) and read_status(rollout.status) is not Status.FAILED:
            found.append((place, f"reward is {score}; give a finite number, or None before it is known"))
            continue
        logprobs = getattr(rollout, "logprobs", None)
        if (
            logprobs is not None
            and len(logprobs)
            and _may_have_nan(logprobs)
            and _has_trained_nan(logprobs, getattr(rollout, "response_mask", None))
            and read_status(rollout.status) is not Status.FAILED
        ):
            found.append((place, "logprobs has NaN where response_mask is 1; mask tokens without one"))
    return found


def refuse(invalid: Sequence[Invalid]) -> None:
    """Raise InvalidArgument for the first of `find_invalid`."""
    for place, reason in invalid:
        raise InvalidArgument(f"rollout {place}: {reason}")


def with_failed_copies(rollouts: Sequence[Any], *, partial: bool) -> list[Any]:
    """Return a group in which FAILED copies replace rollouts that are invalid or whose token fields differ in length."""
    reasons = {
        place: mismatch
        for place, rollout in enumerate(rollouts)
        if (mismatch := find_mismatch(rollout, partial=partial)) is not None
    }
    reasons.update(find_invalid(rollouts))
    return [
        _failed_copy(rollout, reasons[place], partial=partial) if place in reasons else rollout
        for place, rollout in enumerate(rollouts)
    ]


def _failed_copy(rollout: Any, reason: str, *, partial: bool) -> Any:
    """Return a copy with status FAILED; token fields that differ in length are emptied."""
    made = copy.copy(rollout)
    if find_mismatch(made, partial=partial) is not None:
        reset(made)
    score = read_score(getattr(made, "reward", None))
    if score is not None and not isfinite(score):
        write_if_present(made, "reward", None)
    write_status(made, Status.FAILED)
    write_if_present(made, "error_msg", reason)
    return made


def _may_have_nan(logprobs: Any) -> bool:
    """Return False if there is certainly no NaN."""
    if type(logprobs) is np.ndarray and logprobs.dtype.kind == "f":
        least = _least(logprobs)
        return bool(least != least)  # noqa: PLR0124  (NaN differs from itself)
    if isinstance(logprobs, (list, tuple)):
        try:
            total = sum(logprobs)
        except Exception:  # noqa: BLE001  (entries that are not numbers)
            return True
        return bool(total != total)  # noqa: PLR0124
    return True


def _has_trained_nan(logprobs: Any, mask: Any) -> bool:
    try:
        values = np.asarray(logprobs, np.float64)
    except Exception:  # noqa: BLE001  (not in host memory, or not numbers)
        return False
    missing = np.isnan(values)
    if mask is None or len(mask) != len(values):  # log-probabilities of the whole sequence have another mask
        return bool(missing.any()) and (mask is None or len(mask) == 0)
    return bool((missing & (np.asarray(mask) != 0)).any())
