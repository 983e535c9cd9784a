"""Equality of field values, which may be or hold numpy arrays."""

from typing import Any

import numpy as np


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal, arrays entry by entry (NaN equals NaN) and also inside containers."""
    if left is right:
        return True
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return _same_arrays(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return (
            type(left) is type(right)
            and len(left) == len(right)
            and all(same(mine, theirs) for mine, theirs in zip(left, right, strict=True))
        )
    return bool(left == right)


def _same_arrays(left: Any, right: Any) -> bool:
    if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
        return False
    numeric = left.dtype.kind in "fc" and right.dtype.kind in "fc"
    return np.array_equal(left, right, equal_nan=numeric)
