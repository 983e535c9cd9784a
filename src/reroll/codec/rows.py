"""Rollouts as rows: token fields as numbers of arrays, versions as runs, other fields as they are.

`read_row` trusts nothing. `count_plain_rollouts` checks whole groups without decoding them, in a tenth of the time.
"""

from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from reroll.codec.arrays import FLOAT32, INT32, STANDARD, UINT8, Array, ArrayWriter, end_of_arrays
from reroll.codec.frame import Buffer, split
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


# --- groups that need no decoding yet

_BOUND: Final = 1 << 62
_Integer = Annotated[int, Meta(gt=-_BOUND, lt=_BOUND)]
_Whole = Annotated[int, Meta(ge=0, lt=_BOUND)]

# Values without extensions, some levels deep, such as the messages of a dialogue.
_Atom = None | bool | int | float | str
_Level1 = _Atom | list[_Atom] | dict[str, _Atom]
_Level2 = _Atom | list[_Level1] | dict[str, _Level1]
_Plain = _Atom | list[_Level2] | dict[str, _Level2]

_Array = _Whole | None
_Versions = tuple[list[_Integer], list[_Whole]]
_Status = Literal["init", "completed", "aborted", "expired", "failed", "filtered", "archived"]

# In the order of STATE_SLOTS.
_FIELDS: Final[Any] = (
    *(_Array, bool | _Whole | None, _Whole, _Array, _Array, _Array, _Array),
    *(_Versions, _Integer, _Status, _Whole | None),
    *(_Plain,) * 6,
    float | int | None,  # the reward
    *(_Plain,) * 6,
    str | None,
    None,  # groups with further columns are decoded
)
_ROW: Final[Any] = tuple[_FIELDS]
_read_table: Final = msgspec.msgpack.Decoder(list[tuple[_Whole, _Whole]]).decode
_read_body: Final = msgspec.msgpack.Decoder(tuple[Literal[1], list[_ROW]]).decode


def count_plain_rollouts(blob: Buffer, *, partial: bool) -> int | None:
    """Return the number of rollouts in a blob if all can certainly be decoded and put; None if that is unknown.

    Args:
        blob: Bytes that `encode` returned.
        partial: Whether the last tokens of a response may have no version.

    Raises:
        CorruptData: The blob was truncated or altered.
        UnsupportedFormat: A newer version of reroll wrote the blob.

    """
    frame = split(blob)
    try:
        table = _read_table(frame.table)
        _, rows = _read_body(frame.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    try:
        is_valid = all(_is_valid(row, table, partial) for row in rows)
    except IndexError:  # the number of an array that does not exist
        return None
    return len(rows) if is_valid and end_of_arrays(table, frame.arrays_at) == len(frame.blob) else None


def _is_valid(row: Any, table: list[tuple[int, int]], partial: bool) -> bool:
    """Return whether a row's arrays have the right dtypes, and an entry for each response token."""
    prompt, tokens, response, logprobs, mask, input_ids, labels, (values, ends) = row[:8]
    code, length = table[response]
    if (
        code != INT32
        or (logprobs is not None and table[logprobs] not in ((FLOAT32, length), (FLOAT32, 0)))
        or (mask is not None and table[mask] not in ((UINT8, length), (UINT8, 0)))
        or (prompt is not None and table[prompt][0] != INT32)
        or tokens is False
        or len(values) != len(ends)
    ):
        return False
    if not (tokens is None or tokens is True) or input_ids is not None or labels is not None:
        others = (tokens, input_ids, labels)
        if any(table[other][0] != INT32 for other in others if other is not None and other is not True):
            return False
    if not ends:
        return True
    grows = ends[0] > 0 and (len(ends) == 1 or all(start < end for start, end in pairwise(ends)))
    return grows and (ends[-1] == length or (partial and ends[-1] < length))
