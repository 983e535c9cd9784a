"""The outermost bytes of a blob: what it is, whether it is whole, and where its three parts are.

0   3  magic b"RRL"
3   1  version of the format
4   4  CRC-32 of everything from byte 8 on
8   4  length of the table of arrays
12  4  length of the body
16     table, body, arrays; zeros before each array and at the end, up to a multiple of 64

Numbers are little-endian. Nothing here looks into the parts.
"""

import struct
from collections.abc import Iterable, Sequence
from io import BytesIO
from mmap import mmap
from typing import Any, Final, NamedTuple

from reroll.codec.checksum import checksum_of
from reroll.codec.limits import Refusal
from reroll.errors import CorruptData, UnsupportedFormat

FORMAT_VERSION: Final = 1
ALIGNMENT: Final = 64
"""Where arrays start: a cache line, and a multiple of every itemsize that needs alignment."""

_MAGIC: Final = b"RRL"
_START: Final = struct.Struct("<3sBI")
_LENGTHS: Final = struct.Struct("<II")
_BODY_AT: Final = _START.size + _LENGTHS.size
_LARGEST: Final = (1 << 32) - 1
PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))

Buffer = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """The parts of a blob that is whole."""

    table: memoryview
    body: memoryview
    blob: memoryview
    """All of it, read-only."""
    arrays_at: int


def join(table: bytes, body: bytes, arrays: Sequence[Any]) -> bytes:
    """Return the blob of these parts; each array is already followed by its padding. Raises Refusal."""
    blob = b"".join((_START.pack(_MAGIC, FORMAT_VERSION, 0), *_after_start(table, body), *arrays))
    checksum = checksum_of(memoryview(blob)[_START.size :])
    # A file in memory writes into bytes that nobody else holds, and gives the same object back: large groups are
    # copied once. Checksums of each array by itself would let go of the interpreter's lock once for each.
    file = BytesIO(blob)
    del blob
    file.write(_START.pack(_MAGIC, FORMAT_VERSION, checksum))
    return file.getvalue()


def join_into(memory: mmap, table: bytes, body: bytes, arrays: Sequence[Any]) -> bytes | memoryview:
    """Write the blob of these parts where the memory's position is, and return a view of it; bytes if it has no room."""
    start = memory.tell()
    if not _fit(memory, (bytes(_START.size), *_after_start(table, body), *arrays)):
        memory.seek(start)
        return join(table, body, arrays)
    blob = memoryview(memory)[start : memory.tell()]
    _START.pack_into(blob, 0, _MAGIC, FORMAT_VERSION, checksum_of(blob[_START.size :]))
    return blob.toreadonly()


def _fit(memory: mmap, parts: Iterable[Any]) -> bool:
    """Write parts one after the other; return whether there was room for all."""
    try:
        for part in parts:
            memory.write(part)
    except ValueError:
        return False
    return True


def _after_start(table: bytes, body: bytes) -> tuple[bytes, ...]:
    """Return what stands between the start of a blob and its arrays. Raises Refusal."""
    if max(len(table), len(body)) > _LARGEST:
        raise Refusal(
            "holds more than 4 GB besides its arrays; keep large data in numpy arrays, or put smaller groups"
        )
    gap = PADDING[-(_BODY_AT + len(table) + len(body)) % ALIGNMENT]
    return _LENGTHS.pack(len(table), len(body)), table, body, gap


def split(blob: Buffer) -> Frame:
    """Check a blob and return its parts; raises CorruptData, UnsupportedFormat."""
    try:
        view = memoryview(blob).cast("B").toreadonly()
    except (TypeError, ValueError) as error:  # ValueError: not contiguous
        raise CorruptData(f"a stored value is contiguous bytes, not {type(blob).__name__}") from error
    size = len(view)
    magic, version, checksum = _START.unpack_from(view) if size >= _BODY_AT else (b"", 0, 0)
    if magic != _MAGIC:
        raise CorruptData(
            "these bytes do not start as a value stored by reroll does; read what `encode` returned"
        )
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"stored in format {version}, and this reroll reads up to {FORMAT_VERSION}; upgrade reroll to read it"
        )
    if version < 1 or checksum_of(view[_START.size :]) != checksum:
        raise CorruptData("the checksum does not fit: these bytes were cut or altered; use another copy")
    table_size, body_size = _LENGTHS.unpack_from(view, _START.size)
    body_at = _BODY_AT + table_size
    end = body_at + body_size
    if end > size:
        raise CorruptData(f"parts of {table_size} and {body_size} bytes do not fit into {size} bytes")
    return Frame(view[_BODY_AT:body_at], view[body_at:end], view, end)
