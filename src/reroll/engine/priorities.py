"""What may be a priority: a finite number of at least zero."""

import math

from reroll.errors import InvalidPriority, shown
from reroll.rollout.foreign import read_number


def checked_priority(value: object, whose: str = "priority") -> float:
    """Return the value as a float, or raise InvalidPriority that names whose it is."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    priority = read_number(value)
    if priority is None:
        raise InvalidPriority(f"{whose} must be one number, not {shown(value)}")
    if not 0 <= priority < math.inf:
        raise InvalidPriority(f"{whose} must be finite and at least 0, not {priority}")
    return priority
