"""What a value is to a query, and when two values are the same.

Python says True == 1 and orders nothing against None; a query language must answer more carefully. So each
value is seen together with its sort, and only values of one sort are ever compared.
"""

import math
from enum import Enum
from typing import TypeAlias

import numpy as np

Scalar: TypeAlias = bool | int | float | str | None


class Sort(Enum):
    """The sorts of values; two values of different sorts are neither equal nor ordered."""

    MISSING = "missing"
    BOOLEAN = "boolean"
    NUMBER = "number"
    TEXT = "text"
    OTHER = "other"  # nothing a query can ask for: equal to nothing, ordered with nothing


Typed: TypeAlias = tuple[Sort, Scalar]
"""A value with its sort: equal and hashed alike exactly when a query calls two values equal."""

MISSING: Typed = (Sort.MISSING, None)


def typed(value: object) -> Typed:
    """Return the value with its sort, as plain Python; None and NaN are missing."""
    if value is None:
        return MISSING
    # Made plain, because subclasses may bring an equality of their own: numpy's floats, which are floats, call
    # 2**53 + 1 and 2.0**53 equal.
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    if isinstance(value, str):
        return Sort.TEXT, str.__str__(value)
    if isinstance(value, bool):
        return Sort.BOOLEAN, value
    if isinstance(value, int):
        return Sort.NUMBER, int.__int__(value)
    if isinstance(value, float):
        return MISSING if math.isnan(value) else (Sort.NUMBER, float.__float__(value))
    return Sort.OTHER, None
