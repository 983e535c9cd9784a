"""Rollouts as rows: token fields as numbers of arrays, versions as runs, other fields as they are.

`read_row` trusts nothing.
"""

from typing import Any, Final

import numpy as np

from reroll.codec.arrays import FLOAT32, INT32, STANDARD, UINT8, Array, ArrayWriter
from reroll.errors import CorruptData, InvalidArgument, NotStorable, UnsupportedFormat
from reroll.rollout import Rollout, Status, VersionRuns
from reroll.rollout.rollout import STATE_SLOTS

PLAIN_AT: Final = STATE_SLOTS.index("group_uid")
"""Index of the first field that may hold any value."""
VERSIONS_AT: Final = STATE_SLOTS.index("_response_model_steps")

_ARRAY_CODES: Final = (INT32, INT32, INT32, FLOAT32, UINT8, INT32, INT32)
_ARRAY_DTYPES: Final = tuple(STANDARD[code] for code in _ARRAY_CODES)
_TOKENS_AT: Final = STATE_SLOTS.index("_tokens")
_STALENESS_AT: Final = STATE_SLOTS.index("_seq_staleness")
_STATUS_AT: Final = STATE_SLOTS.index("_status")
_NUM_TOKENS_AT: Final = STATE_SLOTS.index("_num_tokens")
_COLUMNS_AT: Final = STATE_SLOTS.index("_columns")
_DERIVED: Final = True
_STATUSES: Final = {status.value: status for status in Status}


def write_row(rollout: Rollout, arrays: ArrayWriter) -> list[Any]:
    """Return the row of a rollout; fields from PLAIN_AT on are not encoded yet. Raises NotStorable."""
    try:
        row = list(rollout.state())
    except AttributeError as error:
        raise NotStorable(f"the Rollout is incomplete: {error}") from error
    arrays.add_columns(row, _ARRAY_CODES)
    row[VERSIONS_AT] = row[VERSIONS_AT].parts
    return row


def read_row(row: Any, arrays: list[Array]) -> Rollout:
    """Return the rollout of a row, which becomes its state. Raises CorruptData, UnsupportedFormat."""
    if type(row) is not list or len(row) < len(STATE_SLOTS):
        raise CorruptData("a Rollout has too few fields")
    if len(row) > len(STATE_SLOTS):
        raise UnsupportedFormat(
            "a Rollout has fields that this reroll does not have; upgrade reroll to read it"
        )
    for at, dtype in enumerate(_ARRAY_DTYPES):
        index = row[at]
        if index is None:
            continue
        if type(index) is int and index >= 0:
            array = row[at] = arrays[index]
            if array.dtype is not dtype or array.ndim != 1:
                raise CorruptData(f"{STATE_SLOTS[at]} of a Rollout has dtype {array.dtype}")
        elif index is not _DERIVED or at != _TOKENS_AT:
            raise CorruptData(f"{STATE_SLOTS[at]} of a Rollout is the array {index!r}")
    row[VERSIONS_AT] = read_versions(row[VERSIONS_AT])
    row[_STATUS_AT] = read_status(row[_STATUS_AT])
    _check_fields(row)
    return Rollout.from_state(row)


def read_versions(parts: Any) -> VersionRuns:
    """Return the versions with these parts. Raises CorruptData."""
    try:
        values, ends = parts
        return VersionRuns.from_parts(values, ends)
    except (TypeError, ValueError, InvalidArgument) as error:
        raise CorruptData(f"invalid versions: {parts!r}") from error


def read_status(text: Any) -> Status:
    """Return the status with this value. Raises UnsupportedFormat."""
    status = _STATUSES.get(text) if type(text) is str else None
    if status is None:
        raise UnsupportedFormat(f"this reroll has no status {text!r}; upgrade reroll to read it")
    return status


def check_state(state: list[Any]) -> list[Any]:
    """Return a decoded state if it can be the state of a Rollout. Raises CorruptData."""
    for at, dtype in enumerate(_ARRAY_DTYPES):
        array = state[at]
        is_valid = array is None or (array is _DERIVED and at == _TOKENS_AT)
        if not is_valid and (type(array) is not np.ndarray or array.dtype != dtype or array.ndim != 1):
            raise CorruptData(f"{STATE_SLOTS[at]} of a Rollout is {array!r}")
    if type(state[VERSIONS_AT]) is not VersionRuns or type(state[_STATUS_AT]) is not Status:
        raise CorruptData("a Rollout has no versions or no status")
    _check_fields(state)
    return state


def _check_fields(state: list[Any]) -> None:
    staleness, num_tokens = state[_STALENESS_AT], state[_NUM_TOKENS_AT]
    if type(staleness) is not int or not (num_tokens is None or type(num_tokens) is int):
        raise CorruptData(f"a Rollout has seq_staleness {staleness!r} and num_tokens {num_tokens!r}")
    columns = state[_COLUMNS_AT]
    if columns is not None and (
        type(columns) is not dict
        or not set(map(type, columns)) <= {str}
        or any(type(column) is not np.ndarray or column.ndim < 1 for column in columns.values())
    ):
        raise CorruptData("columns of a Rollout are not a dict of arrays")
