"""What may be a priority: a finite number of at least zero."""

import math
from numbers import Real

import numpy as np

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
