"""Columns in one block of memory, and values that are repeated into them.

An allocator returns many blocks of some megabytes to the system at once, and then every page of the next batch costs more
than what is written to it. One block it keeps.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

_ALIGNMENT: Final = 64
_STRETCH: Final = 1 << 14
"""Tokens that are repeated at a time: they stay in the processor's cache, and need no pages of their own."""


def block_of(dtypes: Mapping[str, npt.DTypeLike], size: int) -> dict[str, Any]:
    """Return columns of so many entries, one after another in one block; nothing is written to them."""
    widths = {name: np.dtype(dtype).itemsize * size for name, dtype in dtypes.items()}
    block = np.empty(sum(-(-width // _ALIGNMENT) * _ALIGNMENT for width in widths.values()), np.uint8)
    columns: dict[str, Any] = {}
    start = 0
    for name, width in widths.items():
        columns[name] = block[start : start + width].view(dtypes[name])
        start += -(-width // _ALIGNMENT) * _ALIGNMENT
    return columns


def repeat_into(out: Column, values: Column, counts: Column) -> None:
    """Do what `np.repeat` does, into memory that is there."""
    if not len(out):
        return
    step = max(1, _STRETCH * len(counts) // len(out))
    start = 0
    for first in range(0, len(counts), step):
        stretch = np.repeat(values[first : first + step], counts[first : first + step])
        out[start : start + len(stretch)] = stretch
        start += len(stretch)
