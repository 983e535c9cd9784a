"""Token fields as compact arrays: 4 bytes an id, 4 a log-probability, 1 a mask entry.

Values that do not fit are refused, never rounded or wrapped. An array that has the right dtype and owns its memory is kept
as it is; a view is copied, since it would keep the whole batch alive that it was cut from.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]

_INT32 = np.iinfo(np.int32)


def as_ids(field: str, value: npt.ArrayLike | None) -> Ids | None:
    """Return token ids as int32. Raises InvalidArgument."""
    if value is None:
        return None
    array = _one_dimension(field, value)
    if array.dtype == np.int32:
        return _owned(array)
    if not array.size:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidArgument(f"{field} must be integers, not {array.dtype}; give one token id per entry")
    low, high = int(array.min()), int(array.max())
    if low < _INT32.min or high > _INT32.max:
        raise InvalidArgument(
            f"{field} has ids from {low} to {high}, which do not fit into int32; check the tokenizer"
        )
    return array.astype(np.int32)


def as_floats(field: str, value: npt.ArrayLike | None) -> Floats | None:
    """Return log-probabilities as float32. Raises InvalidArgument."""
    if value is None:
        return None
    array = _one_dimension(field, value)
    if array.dtype == np.float32:
        return _owned(array)
    if array.dtype.kind not in "fiu":
        raise InvalidArgument(f"{field} must be numbers, not {array.dtype}; give one per response token")
    with np.errstate(over="ignore"):  # below the range of float32 a log-probability is -inf
        return array.astype(np.float32)


def as_mask(field: str, value: npt.ArrayLike | None) -> Mask | None:
    """Return a mask of zeros and ones as uint8. Raises InvalidArgument."""
    if value is None:
        return None
    array = _one_dimension(field, value)
    if array.dtype.kind not in "fiub" or not np.isin(array, (0, 1)).all():
        raise InvalidArgument(f"{field} must be zeros and ones, one per response token")
    return _owned(array) if array.dtype == np.uint8 else array.astype(np.uint8)


def as_columns(value: Any, reserved: frozenset[str]) -> dict[str, npt.NDArray[Any]] | None:
    """Return further columns by name, arrays with one entry per token; None if there are none. Raises InvalidArgument."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"columns must be a dict of arrays by name, not {type(value).__name__}")
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, given in value.items():
        if type(name) is not str or not name or name in reserved:
            raise InvalidArgument(
                f"columns has the name {name!r}; use a non-empty string that is not a field of Rollout"
            )
        try:
            array = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgument(
                f"column {name!r} cannot be read as an array ({error}); give an array in host memory"
            ) from error
        if array.ndim < 1 or array.dtype.hasobject or not array.dtype.itemsize:
            raise InvalidArgument(
                f"column {name!r} must have one entry per token, not {array.dtype} of shape {array.shape}"
            )
        columns[name] = array
    return columns or None


def _one_dimension(field: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(
            f"{field} cannot be read as an array ({error}); give a flat list or array of numbers in host memory"
        ) from error
    if array.ndim != 1:
        raise InvalidArgument(
            f"{field} must have one dimension, not shape {array.shape}; give one entry per token"
        )
    return array


def _owned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.flags.owndata else array.copy()


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal; arrays entry by entry (NaN equals NaN), also inside of containers."""
    if left is right:
        return True
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
            return False
        has_nan = left.dtype.kind in "fc" and right.dtype.kind in "fc"
        return np.array_equal(left, right, equal_nan=has_nan)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
