"""The sum tree compiled by numba (`pip install reroll[fast]`): the same nodes, sums and positions as `WeightTree`.

Never import this module at the start: it loads numba, and compiles or loads its functions.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from reroll.engine.columns import FloatArray, IntArray
from reroll.engine.selectors.tree import TOP, WeightTree

F = TypeVar("F", bound=Callable[..., object])


def _compiled(function: F) -> F:
    """Compile on first call. The cache on disk watches this file only: touch it after a change of TOP."""
    try:
        return cast("F", numba.njit(cache=True)(function))
    except RuntimeError:  # nowhere to keep it: a read-only installation and no home directory
        return cast("F", numba.njit(function))


class NumbaWeightTree(WeightTree):
    """A `WeightTree` several times as fast."""

    __slots__ = ()

    def _write(self, positions: IntArray, weights: FloatArray) -> None:
        if not _write(self._nodes, self._capacity, positions, weights):
            if positions.min() < 0:
                raise IndexError(f"position {positions.min()} is negative")
            self.reserve(int(positions.max()) + 1)
            _write(self._nodes, self._capacity, positions, weights)

    def _descend(self, rest: FloatArray) -> IntArray:
        return _descend(self._nodes, self._capacity, self._ladder, rest)

    def _descend_distinct(self, rest: FloatArray) -> IntArray:
        return _first_occurrences(self._descend(rest))


@_compiled
def _write(nodes: FloatArray, capacity: int, positions: IntArray, weights: FloatArray) -> bool:
    """Write leaves and the sums above them; False, and nothing is written, if a position does not fit."""
    for position in positions:
        if position < 0 or position >= capacity:
            return False
    for i in range(positions.size):
        nodes[positions[i]] = weights[i]
    below, length, shift = 0, capacity, 0
    while length > TOP:
        start = below + length
        length >>= 1
        shift += 1
        # Each level in a loop of its own: the processor then fetches many rows from memory at once.
        for i in range(min(positions.size, length)):
            node = positions[i] >> shift if positions.size < length else i
            left = below + 2 * node
            nodes[start + node] = nodes[left] + nodes[left + 1]
        below = start
    return True


@_compiled
def _descend(nodes: FloatArray, capacity: int, ladder: FloatArray, rest: FloatArray) -> IntArray:
    """Find leaves as `WeightTree._descend` does; writes over `rest`."""
    start, length = 0, capacity
    while length > TOP:
        start += length
        length >>= 1
    found = np.empty(rest.size, dtype=np.int64)
    for i in range(rest.size):
        low, width = 0, length  # a power of two: bisection without a branch to mispredict
        while width > 1:
            width >>= 1
            low += width if ladder[low + width] <= rest[i] else 0
        found[i] = low
        rest[i] -= ladder[low]
    while length < capacity:
        length <<= 1
        start -= length
        for i in range(rest.size):
            left = start + 2 * found[i]
            # No branch here either. Where there is nothing on the right, only rounding could lead there.
            goes_right = (rest[i] >= nodes[left]) & (nodes[left + 1] > 0.0)
            rest[i] -= nodes[left] * goes_right
            found[i] = 2 * found[i] + goes_right
    return found


@_compiled
def _first_occurrences(positions: IntArray) -> IntArray:
    """Keep the distinct positions in order of first appearance, through a hash table with linear probing."""
    bits = 4
    while 1 << bits < 2 * positions.size:
        bits += 1
    mask = (1 << bits) - 1
    table = np.full(mask + 1, -1, dtype=np.int64)
    kept = np.empty(positions.size, dtype=np.int64)
    count = 0
    for position in positions:
        # The upper bits of a product by an odd number near 2^32 / golden ratio: regular positions spread out.
        slot = ((position * 0x9E3779B1) & 0xFFFFFFFF) >> (32 - bits)
        while table[slot] >= 0 and table[slot] != position:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = position
            kept[count] = position
            count += 1
    return kept[:count]


def _warm_up() -> None:
    """Compile (or load from the cache) now, so that no later call stalls for it."""
    tree = NumbaWeightTree()
    tree.set(np.arange(2), np.ones(2))
    tree.draw_distinct(2, np.random.default_rng(0))


_warm_up()
