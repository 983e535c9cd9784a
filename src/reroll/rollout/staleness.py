"""How far behind the policy a rollout is: `staleness = training step - oldest version - 1`."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.rollout.foreign import RolloutLike, read_integer, read_length
from reroll.rollout.model import Rollout
from reroll.rollout.tally import tally_versions
from reroll.rollout.versions import VersionRuns


def version_staleness(version: int | None, current_train_step: int) -> int:
    """Return the staleness of what this version made: 0 on policy, -1 one ahead; 0 without a version."""
    return 0 if version is None else current_train_step - version - 1


def write_staleness(rollouts: Iterable[Any], staleness: Iterable[int | None]) -> None:
    """Let each rollout state its staleness, where there is one; nothing is written where it does already."""
    for rollout, value in zip(rollouts, staleness, strict=True):
        if value is None:
            continue
        if type(rollout) is Rollout:
            rollout._seq_staleness = value  # noqa: SLF001  (an integer needs no check, and every hand-out writes it)
        elif rollout.seq_staleness != value:
            rollout.seq_staleness = value


def write_same_staleness(rollouts: Iterable[Any], staleness: int) -> None:
    """Do the same where all have one: a batch has hundreds of rollouts, and mostly one version made each group."""
    for rollout in rollouts:
        if type(rollout) is Rollout:
            rollout._seq_staleness = staleness  # noqa: SLF001
        elif rollout.seq_staleness != staleness:
            rollout.seq_staleness = staleness


def rollout_staleness(rollout: RolloutLike, current_train_step: int, *, model_step: int | None = None) -> int:
    """Return the staleness of a rollout by its oldest token, with `model_step` as if it were stamped already."""
    return version_staleness(tally_versions(rollout, model_step).oldest, current_train_step)


def group_staleness(
    rollouts: Iterable[RolloutLike], current_train_step: int, *, model_step: int | None = None
) -> int:
    """Return the staleness of a group: the largest of its members, 0 for none."""
    return max(
        (rollout_staleness(rollout, current_train_step, model_step=model_step) for rollout in rollouts),
        default=0,
    )


def check_threshold(name: str, threshold: object) -> int | None:
    """Return a threshold as a plain int, or None. Raises InvalidArgument unless it is at least 1."""
    checked = None if threshold is None else read_integer(name, threshold)
    if checked is not None and checked < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {checked}; 1 allows only staleness 0")
    return checked


def effective_response_mask(
    rollout: RolloutLike, current_train_step: int, token_stale_threshold: int | None
) -> list[int] | npt.NDArray[np.uint8]:
    """Return the response mask without the tokens whose own staleness reaches the threshold.

    Zeros and ones, one per response token: a list where the rollout holds lists, an array where it holds
    arrays. No mask keeps all tokens, and a token without a version is fresh. Raises InvalidArgument for a
    threshold below 1.
    """
    check_threshold("token_stale_threshold", token_stale_threshold)
    tokens: Any = rollout.response_ids
    held: Any = rollout.response_model_steps
    given: Any = getattr(rollout, "response_mask", None)
    as_list = not isinstance(held, VersionRuns) and not hasattr(tokens if given is None else given, "shape")
    length = read_length("response_ids", tokens)
    if length is None:  # nothing but the mask or the versions says how long the response is
        length = len(held if given is None else given) if held is not None or given is not None else 0
    mask = np.ones(length, np.uint8)
    if given is not None and len(given):
        if len(given) != length:
            raise InvalidArgument(f"response_mask has {len(given)} entries, but response_ids has {length}")
        mask &= np.asarray(given) != 0
    if token_stale_threshold is not None:
        start = 0
        for version, count in VersionRuns.of(held).runs():
            if version_staleness(version, current_train_step) >= token_stale_threshold:
                mask[start : start + count] = 0
            start += count
    return mask.tolist() if as_list else mask
