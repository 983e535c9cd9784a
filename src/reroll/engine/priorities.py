"""What may be a priority: a finite number of at least zero."""

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np

from reroll.engine.columns import FloatArray
from reroll.errors import InvalidPriority


def checked_priority(value: object, whose: str = "priority") -> float:
    """Return the value as a float, or raise InvalidPriority that names whose it is."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        raise InvalidPriority(f"{whose} must be one number, not {value!r}")
    try:
        priority = float(value)
    except OverflowError:
        priority = math.inf
    if not 0 <= priority < math.inf:
        raise InvalidPriority(f"{whose} must be finite and at least 0, not {priority}")
    return priority


def checked_priorities(values: Sequence[float] | FloatArray, count: int) -> FloatArray:
    """Return the values as an array of `count` floats, or raise InvalidPriority. One pass, vectorised."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidPriority(f"priorities must be a flat sequence of numbers: {error}") from None
    if array.dtype.kind not in "iuf" or array.shape != (count,):
        raise InvalidPriority(f"priorities must be {count} numbers, not {array.dtype} of shape {array.shape}")
    priorities: FloatArray = array.astype(np.float64)
    good = np.isfinite(priorities) & (priorities >= 0)
    if not good.all():
        worst = int(np.argmin(good))
        raise InvalidPriority(f"priority {worst} must be finite and at least 0, not {priorities[worst]}")
    return priorities
