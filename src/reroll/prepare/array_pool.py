"""Memory for the arrays of batches: all columns of a batch in one block, and blocks that are reused.

A page that comes fresh from the system costs more than the data that is written to it, and an allocator returns large
blocks to the system when they are freed. So the columns of a batch share one block, and a caller that makes batches again
and again keeps an `ArrayPool`.
"""

import weakref
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

_ALIGNMENT: Final = 64
STRETCH: Final = 1 << 16
"""Tokens that `repeat_into` writes at a time: they stay in the processor's cache and need no pages of their own."""


class ArrayPool:
    """Reuses a block as soon as no array or tensor of the batch in it is referenced. Thread-safe.

    Args:
        spare_blocks: How many unused blocks are kept for later batches.

    """

    def __init__(self, spare_blocks: int = 2) -> None:
        self._spare_blocks = spare_blocks
        self._spare: list[memoryview] = []  # only popped and appended to, which needs no lock

    @property
    def spare_bytes(self) -> int:
        """Bytes of the unused blocks."""
        return sum(block.nbytes for block in list(self._spare))

    def block(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return an array of uninitialised bytes.

        Args:
            num_bytes: its size.

        """
        held = self._find(num_bytes)
        if held is None:
            # An eighth more, free until it is touched, because the next batch may be slightly larger.
            held = np.empty(num_bytes + num_bytes // 8, np.uint8).data
        # This array does not own its memory, so every view of it, however it is cut, has it as its base.
        block = np.frombuffer(held, np.uint8)
        weakref.finalize(block, self._give_back, held).atexit = False
        return block[:num_bytes]

    def _find(self, num_bytes: int) -> memoryview | None:
        """Return a spare block that is large enough; discard smaller ones on the way."""
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


def allocate(dtypes: Mapping[str, npt.DTypeLike], size: int, pool: ArrayPool | None = None) -> dict[str, Any]:
    """Return uninitialised columns of `size` entries each, aligned, in one block."""
    widths = {name: np.dtype(dtype).itemsize * size for name, dtype in dtypes.items()}
    num_bytes = sum(-(-width // _ALIGNMENT) * _ALIGNMENT for width in widths.values())
    block = np.empty(num_bytes, np.uint8) if pool is None else pool.block(num_bytes)
    columns: dict[str, Any] = {}
    start = 0
    for name, width in widths.items():
        columns[name] = block[start : start + width].view(dtypes[name])
        start += -(-width // _ALIGNMENT) * _ALIGNMENT
    return columns


def repeat_into(out: Column, values: Column, counts: Column) -> None:
    """Write `np.repeat(values, counts)` into `out`."""
    if not len(out):
        return
    step = max(1, STRETCH * len(counts) // len(out))
    start = 0
    for first in range(0, len(counts), step):
        stretch = np.repeat(values[first : first + step], counts[first : first + step])
        out[start : start + len(stretch)] = stretch
        start += len(stretch)
