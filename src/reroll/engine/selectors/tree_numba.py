"""The sum tree compiled by numba (`pip install reroll[fast]`): the same nodes, sums and positions as `WeightTree`.

Never import this module at the start: it loads numba, and compiles or loads its functions.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

from reroll.engine.columns import FloatArray, IntArray
from reroll.engine.selectors.tree import FAN, FAN_BITS, TOP, WeightTree

F = TypeVar("F", bound=Callable[..., object])


def _compiled(function: F) -> F:
    """Compile on first call. The cache on disk watches this file only: touch it after a change of FAN_BITS or TOP."""
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

    def _first_occurrences(self, positions: IntArray) -> IntArray:
        return _first_occurrences(positions)


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
        length >>= FAN_BITS
        shift += FAN_BITS
        # Each level in a loop of its own: the processor then fetches many rows from memory at once.
        for i in range(min(positions.size, length)):
            node = positions[i] >> shift if positions.size < length else i
            first = below + (node << FAN_BITS)
            total = 0.0
            for child in range(first, first + FAN):
                total += nodes[child]
            nodes[start + node] = total
        below = start
    return True


@_compiled
def _descend(nodes: FloatArray, capacity: int, ladder: FloatArray, rest: FloatArray) -> IntArray:
    """Find leaves as `WeightTree._descend` does; writes over `rest`."""
    start, length = 0, capacity
    while length > TOP:
        start += length
        length >>= FAN_BITS
    found = np.empty(rest.size, dtype=np.int64)
    for i in range(rest.size):
        low, width = 0, length  # a power of two: bisection without a branch to mispredict
        while width > 1:
            width >>= 1
            low += width if ladder[low + width] <= rest[i] else 0
        found[i] = low
        rest[i] -= ladder[low]
    while length < capacity:
        above = start
        length <<= FAN_BITS
        start -= length
        for i in range(rest.size):
            total = nodes[above + found[i]]
            target = rest[i] if rest[i] < total else np.nextafter(total, 0.0)
            first = start + (found[i] << FAN_BITS)
            running, before, child = 0.0, 0.0, 0
            for j in range(FAN):
                running += nodes[first + j]
                if running <= target:
                    before = running
                    child = j + 1
            found[i] = (found[i] << FAN_BITS) + child
            rest[i] = target - before
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
