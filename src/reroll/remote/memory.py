"""How a process that does nothing but hold a buffer treats its memory."""

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1, 256 << 20
_MMAP_THRESHOLD: Final = -3, 32 << 20
"""Parameters of the GNU allocator, as `malloc.h` numbers them, and bytes."""


def keep_freed_memory() -> None:
    """Let memory of groups that left be used for those that come, instead of giving it back and asking for it again.

    A page that is new from the system costs more than what is written to it. Where there is no GNU allocator, nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, num_bytes in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(parameter, num_bytes)
