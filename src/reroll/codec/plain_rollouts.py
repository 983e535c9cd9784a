"""Whether a blob can be decoded later: it holds rollouts that can be put, and nothing in them could fail then.

Most do, and telling so takes a tenth of the time that decoding takes. Of others nothing is said: decode them to know.
"""

from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from reroll.codec.arrays import end_of_arrays
from reroll.codec.dtypes import CODES
from reroll.codec.framing import Buffer, split
from reroll.codec.lowering import ROWS

_BOUND: Final = 1 << 62
_Integer = Annotated[int, Meta(gt=-_BOUND, lt=_BOUND)]
_Whole = Annotated[int, Meta(ge=0, lt=_BOUND)]

# Text, numbers, lists and dicts, some levels deep, such as the messages of a dialogue. Whatever needs a reader of its own
# is none of these.
_Atom = None | bool | int | float | str
_Level1 = _Atom | list[_Atom] | dict[str, _Atom]
_Level2 = _Atom | list[_Level1] | dict[str, _Level1]
_Plain = _Atom | list[_Level2] | dict[str, _Level2]

_Array = _Whole | None
_Versions = tuple[list[_Integer], list[_Whole]]
_Status = Literal["init", "completed", "aborted", "expired", "failed", "filtered", "archived"]
_Reward = float | int | None

# The order is that of STATE_SLOTS.
_FIELDS: Final[Any] = (
    *(_Array, bool | _Whole | None, _Whole, _Array, _Array, _Array, _Array),
    *(_Versions, _Integer, _Status, _Whole | None),
    *(_Plain,) * 6,
    _Reward,
    *(_Plain,) * 6,
    str | None,
    None,  # with columns: decode it
)
_ROW: Final[Any] = tuple[_FIELDS]
_read_table: Final = msgspec.msgpack.Decoder(list[tuple[_Whole, _Whole]]).decode
_read_body: Final = msgspec.msgpack.Decoder(tuple[Literal[1], list[_ROW]]).decode

_INT32, _FLOAT32, _UINT8 = (CODES[np.dtype(kind)] for kind in (np.int32, np.float32, np.uint8))


def count_plain_rollouts(blob: Buffer, *, partial: bool) -> int | None:
    """Return how many rollouts a blob holds that surely can be decoded and put, None if that is not known.

    With `partial`, the last tokens may lack a version. Raises CorruptData, UnsupportedFormat for a blob that was cut or
    altered, or is of a newer format.
    """
    frame = split(blob)
    try:
        table = _read_table(frame.table)
        _, rows = _read_body(frame.body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    try:
        is_right = all(_is_right(row, table, partial) for row in rows)
    except IndexError:  # an array that is not there
        return None
    return len(rows) if is_right and end_of_arrays(table, frame.arrays_at) == len(frame.blob) else None


def _is_right(row: Any, table: list[tuple[int, int]], partial: bool) -> bool:
    """Tell whether a row names arrays of the right types, with one entry for each response token."""
    prompt, tokens, response, logprobs, mask, input_ids, labels, (values, ends) = row[:8]
    code, length = table[response]
    if (
        code != _INT32
        or (logprobs is not None and table[logprobs] not in ((_FLOAT32, length), (_FLOAT32, 0)))
        or (mask is not None and table[mask] not in ((_UINT8, length), (_UINT8, 0)))
        or (prompt is not None and table[prompt][0] != _INT32)
        or tokens is False
    ):
        return False
    if not (tokens is None or tokens is True) or input_ids is not None or labels is not None:
        others = (tokens, input_ids, labels)
        if any(table[other][0] != _INT32 for other in others if other is not None and other is not True):
            return False
    if len(values) != len(ends):
        return False
    if not ends:
        return True
    grows = ends[0] > 0 and (len(ends) == 1 or all(start < end for start, end in pairwise(ends)))
    return grows and (ends[-1] == length or (partial and ends[-1] < length))


assert ROWS == 1  # noqa: S101  (a Literal cannot be computed)
