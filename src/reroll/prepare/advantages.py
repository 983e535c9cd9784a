"""How much better each member of a group is than the others, and the priority that follows from it."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument

Values = npt.NDArray[np.float64]
Method = str | Callable[[Values], npt.ArrayLike]
"""`standard`, `centered`, `leave_one_out`, or a function from the rewards of a group to its advantages."""

EPS: Final = 1e-8


def _standard(rewards: Values) -> Values:
    centered: Values = rewards - rewards.mean()
    return centered / (rewards.std() + EPS)


def _centered(rewards: Values) -> Values:
    centered: Values = rewards - rewards.mean()
    return centered


def _leave_one_out(rewards: Values) -> Values:
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / (count - 1)) if count > 1 else np.zeros(1)


METHODS: Final[dict[str, Callable[[Values], Values]]] = {
    "standard": _standard,
    "centered": _centered,
    "leave_one_out": _leave_one_out,
}


def advantages_of(rewards: npt.ArrayLike, method: Method = "standard") -> Values:
    """Return the advantage of each member of one group.

    standard: (r - mean) / (std + 1e-8), of the population; centered: r - mean; leave_one_out: r - mean of the others,
    0 for a single member. Raises InvalidArgument for rewards that are not finite, and for a function that does not
    return one finite number for each.
    """
    array = np.asarray(rewards, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InvalidArgument(f"rewards must be finite numbers, one for each rollout, not {rewards!r}")
    if not len(array):
        return array
    if not callable(method):
        return _named(method)(array)
    found = np.asarray(method(array), np.float64)
    if found.shape != array.shape or not np.isfinite(found).all():
        name = getattr(method, "__name__", repr(method))
        raise InvalidArgument(
            f"{name} must return a finite advantage for each of {len(array)} rewards, not {found!r}"
        )
    return found


def priority_of(advantages: npt.ArrayLike) -> float:
    """Return the priority of a group: the mean of the absolute advantages, 0 for none."""
    array: npt.NDArray[Any] = np.abs(np.asarray(advantages, np.float64))
    return float(array.mean()) if array.size else 0.0


def _named(method: str) -> Callable[[Values], Values]:
    if method not in METHODS:
        raise InvalidArgument(f"{method!r} is no advantage; use a function or one of: {', '.join(METHODS)}")
    return METHODS[method]
