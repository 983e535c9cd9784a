"""How much better each member of a group is than the others, and the priority that follows from it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument

Values = npt.NDArray[np.float64]
Method = str | Callable[[Values], npt.ArrayLike]
"""`standard`, `centered`, `leave_one_out`, or a function from the rewards of a group to its advantages."""

METHODS: Final = ("standard", "centered", "leave_one_out")
EPS: Final = 1e-8


def advantages_of(rewards: npt.ArrayLike, method: Method = "standard") -> Values:
    """Return the advantage of each member of one group.

    standard: (r - mean) / (std + 1e-8), of the population; centered: r - mean; leave_one_out: r - mean of the others,
    0 for a single member. Raises InvalidArgument for rewards that are not finite, and for a function that does not
    return one finite number for each.
    """
    array = np.asarray(rewards, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InvalidArgument(f"rewards must be finite numbers, one for each rollout, not {rewards!r}")
    return advantages_by_group(array, [len(array)], method)


def advantages_by_group(
    rewards: Values, sizes: Sequence[int] | npt.NDArray[np.int64], method: Method
) -> Values:
    """Return the same for groups of these sizes, one after another; all at once, but for a function of the user's."""
    if callable(method):
        parts = np.split(rewards, np.cumsum(sizes)[:-1]) if len(sizes) else []
        return np.concatenate([np.empty(0), *(_by(method, part) for part in parts if len(part))])
    if method not in METHODS:
        raise InvalidArgument(f"{method!r} is no advantage; use a function or one of: {', '.join(METHODS)}")
    group = np.repeat(np.arange(len(sizes)), sizes)
    count = np.maximum(sizes, 1)
    centered: Values = rewards - (np.bincount(group, rewards, len(sizes)) / count)[group]
    if method == "standard":
        std = np.sqrt(np.bincount(group, centered**2, len(sizes)) / count)
        centered /= (std + EPS)[group]
    elif method == "leave_one_out":
        centered *= (count / np.maximum(count - 1, 1))[group]  # a single member is 0 already
    return centered


def _by(method: Callable[[Values], npt.ArrayLike], rewards: Values) -> Values:
    found = np.asarray(method(rewards), np.float64)
    if found.shape != rewards.shape or not np.isfinite(found).all():
        name = getattr(method, "__name__", repr(method))
        raise InvalidArgument(
            f"{name} must return a finite advantage for each of {len(rewards)} rewards, not {found!r}"
        )
    return found


def priority_of(advantages: npt.ArrayLike) -> float:
    """Return the priority of a group: the mean of the absolute advantages, 0 for none."""
    array: npt.NDArray[Any] = np.abs(np.asarray(advantages, np.float64))
    return float(array.mean()) if array.size else 0.0
