"""A condition on a column of numbers, exactly as Python would decide it value by value.

Python compares 2**53 + 1 with 2.0**53 exactly; arrays convert one side first and are wrong, or overflow. So an operand
is first moved to a number that the column's own type can hold, and the condition is adjusted to that.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reroll.query.nodes import ORDERINGS, Compare, OneOf, Order
from reroll.query.values import MISSING, Sort

Mask: TypeAlias = NDArray[np.bool_]

# What an ordering becomes when its operand moved up, or down.
_MOVED_UP = {Order.GT: Order.GTE, Order.GTE: Order.GTE, Order.LT: Order.LT, Order.LTE: Order.LT}
_MOVED_DOWN = {Order.GT: Order.GT, Order.GTE: Order.GT, Order.LT: Order.LTE, Order.LTE: Order.LTE}


def number_mask(condition: OneOf | Compare, values: NDArray[Any], missing: Mask | None) -> Mask:
    """Return where the condition holds; NaN is missing, as are the values under `missing`."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
    absent: Mask = values != values  # noqa: PLR0124  (NaN differs from itself; integers never do)
    if missing is not None:
        absent |= missing
    if isinstance(condition, Compare):
        return _compare(condition, values) & ~absent
    found = _one_of(condition, values) & ~absent
    return found | absent if MISSING in condition.values else found


def _compare(condition: Compare, values: NDArray[Any]) -> Mask:
    operand: Any = condition.operand[1]
    near = _nearest(operand, values.dtype)
    order = condition.order
    if near > operand:
        order = _MOVED_UP[order]
    elif near < operand:
        order = _MOVED_DOWN[order]
    result: Mask = ORDERINGS[order](values, values.dtype.type(near))
    return result


def _one_of(condition: OneOf, values: NDArray[Any]) -> Mask:
    numbers: list[Any] = [number for sort, number in condition.values if sort is Sort.NUMBER]
    # A number that had to move is one that the column cannot hold, so that nothing there equals it.
    wanted = [near for number in numbers if (near := _nearest(number, values.dtype)) == number]
    if len(wanted) == 1:  # much the most common, and many times faster than a search
        result: Mask = values == values.dtype.type(wanted[0])
        return result
    return np.isin(values, np.array(wanted, dtype=values.dtype))


def _nearest(number: float, dtype: np.dtype[Any]) -> int | float:
    """Return a number of this type such that no other of the type lies between the two."""
    if dtype.kind == "f":
        try:
            return float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf
    limits = np.iinfo(dtype)
    if number >= limits.max:
        return int(limits.max)
    if number <= limits.min:
        return int(limits.min)
    return math.floor(number)
