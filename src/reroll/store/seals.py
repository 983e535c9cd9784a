"""Checksums over what is stored, as it comes back from SQLite: integers as int64, no negative zero, one NaN.

A payload has a checksum of its own, which whoever decodes it verifies; a second pass over its bytes would cost a third
of a write. Its seal covers its uid, its length and its first bytes, where that checksum stands: so a blob under another
uid is found, and a blob that was cut.
"""

import math
import struct
from zlib import crc32

import msgspec

from reroll.store.change import Blob, Row
from reroll.store.schema import COLUMNS, TYPES

HEAD_BYTES = 64
"""How much of a payload its seal covers."""

_FIRST_NUMBER = COLUMNS.index("timestamp")
_FIRST_BLOB = COLUMNS.index("group_id")
_MEAN, _STD = COLUMNS.index("reward_mean"), COLUMNS.index("reward_std")
_NUMBERS = struct.Struct(
    "<q" + "".join("d" if TYPES[name] == "REAL" else "q" for name in COLUMNS[_FIRST_NUMBER:_FIRST_BLOB])
)
_PRIORITY = COLUMNS.index("priority")
_LABEL = struct.Struct("<qq")
_encode = msgspec.msgpack.Encoder().encode


def row_seal(row: Row) -> int:
    """Return the checksum of a row; raises `struct.error`, `TypeError` or `IndexError` for what is no row."""
    numbers = list(row[_FIRST_NUMBER:_FIRST_BLOB])
    for index in (_PRIORITY, _MEAN, _STD):
        value = row[index] + 0.0  # -0.0 is stored as 0.0
        numbers[index - _FIRST_NUMBER] = value if value == value else math.nan  # noqa: PLR0124  (any NaN)
    return crc32(_encode((row[1:_FIRST_NUMBER], row[_FIRST_BLOB:])), crc32(_NUMBERS.pack(row[0], *numbers)))


def restored(values: Row) -> Row:
    """Return a row as it was written: SQLite has NULL for NaN."""
    if values[_MEAN] is None or values[_STD] is None:
        row = list(values)
        for index in (_MEAN, _STD):
            if row[index] is None:
                row[index] = math.nan
        return tuple(row)
    return values


def payload_seal(uid: int, blob: Blob) -> int:
    """Return the checksum of a payload's uid, length and first bytes. O(1)."""
    with memoryview(blob).cast("B") as view:
        return crc32(view[:HEAD_BYTES], crc32(_LABEL.pack(uid, len(view))))


def seal_of(*values: int | str | bytes) -> int:
    """Return the checksum of a fact, of the state, or of an entry about the file."""
    return crc32(_encode(values))
