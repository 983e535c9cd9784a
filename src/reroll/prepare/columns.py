"""Columns in one block of memory, memory that is used again, and values that are repeated into columns.

A page of memory that comes from the system costs more than what is written to it. An allocator returns many blocks of some
megabytes, and every larger one, to the system when they are freed; so the columns of a batch lie in one block, and whoever
makes batches again and again keeps a `Memory`.
"""

import weakref
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

_ALIGNMENT: Final = 64
STRETCH: Final = 1 << 16
"""Tokens that are repeated at a time: they stay in the processor's cache, and need no pages of their own."""


class Memory:
    """Blocks that are used again as soon as nobody holds an array, or a tensor, of the batch that lay in them.

    At most `spare_blocks` wait for their next use. Any thread may ask for blocks and let batches go.
    """

    def __init__(self, spare_blocks: int = 2) -> None:
        self._spare_blocks = spare_blocks
        self._spare: list[memoryview] = []  # only popped and appended to, which needs no lock

    @property
    def spare_bytes(self) -> int:
        """Bytes that wait for their next use."""
        return sum(block.nbytes for block in list(self._spare))

    def block(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return memory of so many bytes; what is in it is left over from before."""
        held = self._found(num_bytes)
        if held is None:
            # An eighth more, which costs nothing before it is touched, for the next batch, which is as large or so.
            held = np.empty(num_bytes + num_bytes // 8, np.uint8).data
        # Every view has this array as its base, however it was cut, since the array does not own what it shows.
        block = np.frombuffer(held, np.uint8)
        weakref.finalize(block, self._give_back, held).atexit = False
        return block[:num_bytes]

    def _found(self, num_bytes: int) -> memoryview | None:
        """Return a spare block that is large enough; those that are too small are let go."""
        while True:
            try:
                held = self._spare.pop()
            except IndexError:
                return None
            if held.nbytes >= num_bytes:
                return held

    def _give_back(self, held: memoryview) -> None:
        if len(self._spare) < self._spare_blocks:
            self._spare.append(held)


def block_of(dtypes: Mapping[str, npt.DTypeLike], size: int, memory: Memory | None = None) -> dict[str, Any]:
    """Return columns of so many entries, one after another in one block; nothing is written to them."""
    widths = {name: np.dtype(dtype).itemsize * size for name, dtype in dtypes.items()}
    num_bytes = sum(-(-width // _ALIGNMENT) * _ALIGNMENT for width in widths.values())
    block = np.empty(num_bytes, np.uint8) if memory is None else memory.block(num_bytes)
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
    step = max(1, STRETCH * len(counts) // len(out))
    start = 0
    for first in range(0, len(counts), step):
        stretch = np.repeat(values[first : first + step], counts[first : first + step])
        out[start : start + len(stretch)] = stretch
        start += len(stretch)
