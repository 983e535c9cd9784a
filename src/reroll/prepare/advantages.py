"""Advantages of the members of a group, and the priority of a group that follows from them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument

Values = npt.NDArray[np.float64]
Method = str | Callable[[Values], npt.ArrayLike]
"""One of METHODS, or a function from the rewards of one group to its advantages."""

METHODS: Final = ("grpo", "centered", "leave_one_out")
EPS: Final = 1e-8


def advantages_of(rewards: npt.ArrayLike, method: Method = "grpo") -> Values:
    """Return the advantage of each member of one group.

    Args:
        rewards: One finite number for each member.
        method: `"grpo"`: (r - mean) / (std + 1e-8), with the standard deviation of the population. `"centered"`:
            r - mean (Dr. GRPO). `"leave_one_out"`: r - mean of the other members (RLOO). Or a function.

    Returns:
        One float64 for each reward; 0 for a group with one member.

    Raises:
        InvalidArgument: A reward is not finite, the method is unknown, or the function does not return one finite
            number for each reward.

    """
    array = np.asarray(rewards, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InvalidArgument(f"rewards must be finite numbers, one for each rollout, not {rewards!r}")
    return advantages_by_group(array, [len(array)], method)


def advantages_by_group(
    rewards: Values, sizes: Sequence[int] | npt.NDArray[np.int64], method: Method
) -> Values:
    """Return the advantages of consecutive groups of these sizes; vectorised unless `method` is a function."""
    if callable(method):
        parts = np.split(rewards, np.cumsum(sizes)[:-1]) if len(sizes) else []
        return np.concatenate([np.empty(0), *(_call(method, part) for part in parts if len(part))])
    if method not in METHODS:
        raise InvalidArgument(
            f"advantage is unknown: {method!r}; use a function or one of: {', '.join(METHODS)}"
        )
    group = np.repeat(np.arange(len(sizes)), sizes)
    count = np.maximum(sizes, 1)
    centered: Values = rewards - (np.bincount(group, rewards, len(sizes)) / count)[group]
    if method == "grpo":
        std = np.sqrt(np.bincount(group, centered**2, len(sizes)) / count)
        centered /= (std + EPS)[group]
    elif method == "leave_one_out":
        centered *= (count / np.maximum(count - 1, 1))[group]  # 0 already for a single member
    return centered


def _call(method: Callable[[Values], npt.ArrayLike], rewards: Values) -> Values:
    """Return the advantages that a user's function computes for one group."""
    found = np.asarray(method(rewards), np.float64)
    if found.shape != rewards.shape or not np.isfinite(found).all():
        name = getattr(method, "__name__", repr(method))
        raise InvalidArgument(
            f"{name} must return a finite advantage for each of {len(rewards)} rewards, not {found!r}"
        )
    return found


def priority_of(advantages: npt.ArrayLike) -> float:
    """Return the priority of a group: the mean of its absolute advantages, 0 for an empty group.

    Args:
        advantages: of its members.

    """
    array: npt.NDArray[Any] = np.abs(np.asarray(advantages, np.float64))
    return float(array.mean()) if array.size else 0.0
