"""Frame of a blob: magic, version, checksum and the lengths of its parts; and the terms that all parts share.

0   3  magic b"RRL"
3   1  version of the format
4   4  CRC-32 of everything from byte 8 on
8   4  length of the table of arrays
12  4  length of the body
16     table, body, arrays; zeros before each array and at the end, up to a multiple of 64

Numbers are little-endian. This module does not look into the parts.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from io import BytesIO
from typing import Any, Final, NamedTuple

from reroll.errors import CorruptData, UnsupportedFormat

FORMAT_VERSION: Final = 1
"""Number of the format of an encoded group; `decode` refuses others."""
ALIGNMENT: Final = 64
"""Arrays start at multiples of it: a cache line, and a multiple of each itemsize that needs alignment."""
PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))
MAX_PART: Final = (1 << 32) - 1
"""Largest table and largest body, in bytes."""
MAX_DEPTH: Final = 100
"""Limit of containers inside of containers, for writing and reading: far below Python's recursion limit."""
ATOMS: Final = frozenset({type(None), bool, int, float, str})
"""Types that MessagePack stores without loss, except integers beyond 64 bits and text with lone surrogates."""

_MAGIC: Final = b"RRL"
_START: Final = struct.Struct("<3sBI")
_LENGTHS: Final = struct.Struct("<II")
_BODY_AT: Final = _START.size + _LENGTHS.size

# zlib releases the interpreter lock for inputs above 5 KiB, and waiting for it beside a busy event loop takes up to
# 5 ms. Blobs up to 1 MiB are therefore summed in pieces that keep the lock.
_PIECE: Final = 5 * 1024
_MAX_IN_PIECES: Final = 1 << 20

Buffer = bytes | bytearray | memoryview


class Code:
    """Extension codes of the body: a number for each type that MessagePack does not have."""

    TUPLE: Final = 1
    SET: Final = 2
    FROZENSET: Final = 3
    DICT: Final = 4  # with keys other than text: key, value, key, value, ...
    INTEGER: Final = 5  # beyond 64 bits: its bytes, little-endian and signed
    TEXT: Final = 6  # with lone surrogates: UTF-8 that allows them
    BYTES: Final = 7  # the number of an array of uint8
    BYTEARRAY: Final = 8  # the number of an array of uint8
    NUMBERS: Final = 9  # a list of only int or only float: the number of an array
    ARRAY: Final = 32
    SCALAR: Final = 33
    TENSOR: Final = 34
    ROLLOUT: Final = 48
    OBJECT: Final = 64  # of a type in the registry: its name and its state
    PICKLE: Final = 65
    REF: Final = 66


class Frame(NamedTuple):
    """The parts of a blob whose checksum is right."""

    table: memoryview
    body: memoryview
    blob: memoryview
    """The whole blob, read-only."""
    arrays_at: int


def join(table: bytes, body: bytes, arrays: Sequence[Any]) -> bytes:
    """Return the blob of these parts; `arrays` has the padding after each array. O(bytes), one copy."""
    blob = b"".join((_START.pack(_MAGIC, FORMAT_VERSION, 0), *_before_arrays(table, body), *arrays))
    checksum = checksum_of(memoryview(blob)[_START.size :])
    # BytesIO writes into bytes that have no other owner and returns the same object, so the blob is not copied again.
    file = BytesIO(blob)
    del blob
    file.write(_START.pack(_MAGIC, FORMAT_VERSION, checksum))
    return file.getvalue()


def split(blob: Buffer) -> Frame:
    """Check a blob and return its parts. O(bytes), no copy.

    Raises:
        CorruptData: The bytes are not a blob, or were truncated or altered.
        UnsupportedFormat: A newer version of reroll wrote the blob.

    """
    try:
        view = memoryview(blob).cast("B").toreadonly()
    except (TypeError, ValueError) as error:  # ValueError: not contiguous
        raise CorruptData(f"a blob must be contiguous bytes, not {type(blob).__name__}") from error
    size = len(view)
    magic, version, checksum = _START.unpack_from(view) if size >= _BODY_AT else (b"", 0, 0)
    if magic != _MAGIC:
        raise CorruptData("the bytes are not a blob of reroll; pass bytes that `encode` returned")
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the blob has format {version}, and this reroll reads up to {FORMAT_VERSION}; upgrade reroll to read it"
        )
    if version < 1 or checksum_of(view[_START.size :]) != checksum:
        raise CorruptData("the checksum does not match: the blob was truncated or altered; use another copy")
    table_size, body_size = _LENGTHS.unpack_from(view, _START.size)
    body_at = _BODY_AT + table_size
    end = body_at + body_size
    if end > size:
        raise CorruptData(f"parts of {table_size} and {body_size} bytes exceed the blob's {size} bytes")
    return Frame(view[_BODY_AT:body_at], view[body_at:end], view, end)


def checksum_of(data: bytes | memoryview) -> int:
    """Return the CRC-32 of bytes.

    Args:
        data: the bytes.

    """
    crc32, size = _crc32(), len(data)
    if size <= _PIECE or size > _MAX_IN_PIECES:
        return crc32(data, 0)
    checksum = 0
    with memoryview(data) as view:
        for start in range(0, size, _PIECE):
            checksum = crc32(view[start : start + _PIECE], checksum)
    return checksum


@cache
def _crc32() -> Callable[[Any, int], int]:
    try:
        from zlib_ng.zlib_ng import crc32  # noqa: PLC0415  (optional)
    except ImportError:
        return zlib.crc32
    found: Callable[[Any, int], int] = crc32
    return found


def _before_arrays(table: bytes, body: bytes) -> tuple[bytes, ...]:
    """Return the bytes between the checksum and the arrays."""
    gap = PADDING[-(_BODY_AT + len(table) + len(body)) % ALIGNMENT]
    return _LENGTHS.pack(len(table), len(body)), table, body, gap
