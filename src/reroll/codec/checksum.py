"""The checksum of a blob: CRC-32, several times as quick where zlib-ng is installed (extras `fast`, `server`, `ray`)."""

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

# zlib gives Python's lock away for every call with more bytes than this. To get it back from a busy event loop takes up
# to 5 ms, and that for 20 us of work: so it is kept, unless there is enough to do.
_LOCKED: Final = 5 * 1024
_MAX_LOCKED: Final = 1 << 20


def checksum_of(data: bytes | memoryview) -> int:
    """Return the CRC-32."""
    crc32, size = _quickest(), len(data)
    if size <= _LOCKED or size > _MAX_LOCKED:
        return crc32(data, 0)
    checksum = 0
    with memoryview(data) as view:
        for start in range(0, size, _LOCKED):
            checksum = crc32(view[start : start + _LOCKED], checksum)
    return checksum


@cache
def _quickest() -> Callable[[Any, int], int]:
    try:
        from zlib_ng.zlib_ng import crc32  # noqa: PLC0415  (optional)
    except ImportError:
        return zlib.crc32
    found: Callable[[Any, int], int] = crc32
    return found
