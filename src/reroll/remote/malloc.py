"""Allocator settings for a process that only hosts a buffer."""

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1, 256 << 20
_MMAP_THRESHOLD: Final = -3, 32 << 20
"""Parameters of the GNU allocator by their numbers in `malloc.h`, and bytes."""


def keep_freed_memory() -> None:
    """Reuse the memory of groups that left for groups that arrive, instead of returning it to the system.

    A new page from the system costs more than writing to it. Does nothing without the GNU allocator.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, num_bytes in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(parameter, num_bytes)
