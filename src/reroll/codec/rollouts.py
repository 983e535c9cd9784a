"""`Rollout` as a row of values: its arrays by their numbers, its versions as runs, the rest as it is."""

from typing import Any, Final

import numpy as np

from reroll.codec.arrays import Array, ArrayWriter
from reroll.codec.dtypes import CODES
from reroll.codec.limits import Refusal
from reroll.errors import CorruptData, InvalidArgument, UnsupportedFormat
from reroll.rollout import Rollout, Status, VersionRuns
from reroll.rollout.model import STATE_SLOTS

_LENGTH: Final = len(STATE_SLOTS)
VERSIONS_AT: Final = STATE_SLOTS.index("_response_model_steps")
PLAIN_AT: Final = STATE_SLOTS.index("group_uid")
"""Where the fields begin that may hold anything."""

_STATUSES: Final = {status.value: status for status in Status}
_INT32, _FLOAT32, _UINT8 = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.uint8)
_ARRAY_TYPES: Final = (_INT32, _INT32, _INT32, _FLOAT32, _UINT8, _INT32, _INT32)
_ARRAY_CODES: Final = tuple(CODES[dtype] for dtype in _ARRAY_TYPES)
_ARRAYS_AT: Final = tuple(range(len(_ARRAY_TYPES)))
_TOKENS_AT: Final = STATE_SLOTS.index("_tokens")
_DERIVED: Final = True
_COLUMNS_AT: Final = STATE_SLOTS.index("_columns")
_NONE: Final = type(None)


def write_row(rollout: Rollout, arrays: ArrayWriter) -> list[Any]:
    """Return the row of a rollout; the fields from PLAIN_AT on are as they were. Raises Refusal."""
    try:
        row = list(rollout.state())
    except AttributeError as error:
        raise Refusal(f"a Rollout that is not complete: {error}") from error
    arrays.add_columns(row, _ARRAY_CODES)
    row[VERSIONS_AT] = row[VERSIONS_AT].parts
    return row


def read_row(row: Any, arrays: list[Array]) -> Rollout:
    """Return the rollout of a row, which becomes its state; raises CorruptData, UnsupportedFormat."""
    if type(row) is not list or len(row) != _LENGTH:
        raise _wrong_length(row)
    for at in _ARRAYS_AT:
        index = row[at]
        if index is None:
            continue
        if type(index) is int and index >= 0:
            array = row[at] = arrays[index]
            if array.dtype is not _ARRAY_TYPES[at] or array.ndim != 1:
                raise CorruptData(f"a Rollout whose {STATE_SLOTS[at]} is of {array.dtype}")
        elif index is not _DERIVED or at != _TOKENS_AT:
            raise CorruptData(f"a Rollout whose {STATE_SLOTS[at]} is the array {index!r}")
    row[VERSIONS_AT] = read_versions(row[VERSIONS_AT])
    row[9] = read_status(row[9])
    _check_numbers(row)
    return Rollout.from_state(row)


def read_versions(parts: Any) -> VersionRuns:
    """Return the versions with these parts; raises CorruptData."""
    try:
        values, ends = parts
        return VersionRuns.from_parts(values, ends)
    except (TypeError, ValueError, InvalidArgument) as error:
        raise CorruptData(f"versions of {parts!r}") from error


def read_status(text: Any) -> Status:
    """Return the status with this value; raises UnsupportedFormat."""
    status = _STATUSES.get(text) if type(text) is str else None
    if status is None:
        raise UnsupportedFormat(f"there is no status {text!r} in this reroll; upgrade reroll to read it")
    return status


def check_state(state: Any) -> list[Any]:
    """Return a state whose values are already read, as the state of a subclass of Rollout; raises CorruptData."""
    if type(state) is not list or len(state) != _LENGTH:
        raise _wrong_length(state)
    for at, dtype in enumerate(_ARRAY_TYPES):
        array = state[at]
        is_right = array is None or (array is _DERIVED and at == _TOKENS_AT)
        if not is_right and (type(array) is not np.ndarray or array.dtype != dtype or array.ndim != 1):
            raise CorruptData(f"a Rollout whose {STATE_SLOTS[at]} is {array!r}")
    if type(state[VERSIONS_AT]) is not VersionRuns or type(state[9]) is not Status:
        raise CorruptData("a Rollout without versions or status")
    _check_numbers(state)
    return state


def _check_numbers(state: list[Any]) -> None:
    if type(state[8]) is not int or type(state[10]) not in (int, _NONE):
        raise CorruptData(f"a Rollout whose seq_staleness is {state[8]!r} and num_tokens {state[10]!r}")
    columns = state[_COLUMNS_AT]
    if columns is not None and (
        type(columns) is not dict
        or not set(map(type, columns)) <= {str}
        or any(type(column) is not np.ndarray or column.ndim < 1 for column in columns.values())
    ):
        raise CorruptData("a Rollout whose columns are no arrays")


def _wrong_length(row: Any) -> Exception:
    if type(row) is list and len(row) > _LENGTH:
        return UnsupportedFormat(
            "a Rollout with fields that this reroll does not have; upgrade reroll to read it"
        )
    return CorruptData("a Rollout that lacks fields")
