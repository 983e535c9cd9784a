"""A sum tree: draws positions in proportion to their weights, and changes weights, without a pass over all rows.

leaves    one float64 weight per position
levels    above them, each node is the sum of its two children
top       the first level of at most 2,048 nodes; its running sums are stored and searched by bisection

A sum is always computed anew from its children, never adjusted by a difference: nothing drifts, and setting the old
weights again restores the old tree bit for bit. `WeightTree` uses numpy alone and is the oracle; `CompiledTree` does the
same steps in the same order with numba, so that both give the same positions for the same seed.

The tree validates no weight, holds no lock and owns no random generator.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.engine.rows import FloatArray, IntArray
from reroll.errors import InvalidArgument, missing_extra

# Measured: with more children per node, a level takes longer to add up than the saved levels; a top of twice the length
# takes longer than the level below it.
TOP: Final = 2048
_FIRST_CAPACITY: Final = 64


class WeightTree:
    """Weights of the positions 0, 1, 2, ..., all 0 at first. About 16 bytes a row.

    In costs, n is the capacity and b the number of positions.
    """

    __slots__ = ("_capacity", "_children", "_ladder", "_ladder_is_stale", "_levels", "_nodes")

    def __init__(self) -> None:
        self._allocate(_FIRST_CAPACITY)

    @property
    def capacity(self) -> int:
        """The number of positions that fit without growing; `set` doubles it when needed."""
        return self._capacity

    @property
    def total(self) -> float:
        """The sum of all weights; O(1), and O(top) after a change."""
        return float(self._running_sums()[-1])

    def set(self, positions: IntArray, weights: FloatArray) -> None:
        """Set the weights of distinct positions. O(b log n).

        The caller has checked that no weight is negative and that their sum is finite. Beyond the capacity the tree
        doubles, which is O(n), but O(1) a position over its life. Raises InvalidArgument if the lengths differ.
        """
        where = np.ascontiguousarray(positions, dtype=np.int64)
        values = np.ascontiguousarray(weights, dtype=np.float64)
        if where.size != values.size:
            raise InvalidArgument(
                f"positions and weights differ in length: {where.size} and {values.size}; give each position one weight"
            )
        self._ladder_is_stale = True
        self._write(where, values)

    def get(self, positions: IntArray) -> FloatArray:
        """Return the weights of positions. O(b). Raises IndexError beyond the capacity."""
        weights: FloatArray = self._levels[0][positions]
        return weights

    def draw(self, uniforms: FloatArray) -> IntArray:
        """Return one position per number in [0, 1), each with probability weight / total. O(b log n).

        Only positions of positive weight are drawn. Raises InvalidArgument if there are none.
        """
        return self._descend(self._targets(uniforms))

    def draw_distinct(self, count: int, rng: np.random.Generator) -> IntArray:
        """Draw `count` distinct positions, each by weight among those not drawn before, in the order drawn.

        Draws with replacement and keeps new positions, which has the same distribution. If they are too few, their
        weights are set to 0 (and restored at the end, also on error), and another round draws the rest. Expected
        O(count log n), even if a few positions have nearly all the weight; at worst, if each weight dwarfs all smaller
        ones, a round per position. Raises InvalidArgument if fewer than `count` weights are positive.
        """
        taken: list[tuple[IntArray, FloatArray]] = []  # set to 0 for now, with their weights
        chosen = np.empty(0, dtype=np.int64)
        missing = count
        try:
            while missing:
                if chosen.size:
                    taken.append((chosen, self.get(chosen)))
                    self.set(chosen, np.zeros(chosen.size))
                targets = self._targets(rng.random(missing + missing // 8 + 8))
                chosen = self._descend_distinct(targets)[:missing]
                missing -= chosen.size
        finally:
            for positions, weights in taken:
                self.set(positions, weights)
        return np.concatenate((*(positions for positions, _ in taken), chosen)) if taken else chosen

    def reserve(self, capacity: int) -> None:
        """Make room for the positions below `capacity`, rounded up to a power of two; O(n) if that grows the tree.

        The order of additions depends on the capacity alone: a tree that must continue exactly like a saved one
        reserves the same capacity.
        """
        if capacity <= self._capacity:
            return
        old = self._levels
        self._allocate(1 << (capacity - 1).bit_length())
        for level, kept in zip(self._levels, old, strict=False):
            level[: kept.size] = kept
        for (left, right), level in zip(
            self._children[len(old) - 1 :], self._levels[len(old) :], strict=True
        ):
            np.add(left, right, out=level)
        self._ladder_is_stale = True

    def _allocate(self, capacity: int) -> None:
        lengths = [capacity]
        while lengths[-1] > TOP:
            lengths.append(lengths[-1] >> 1)
        self._capacity = capacity
        self._nodes: FloatArray = np.zeros(sum(lengths))  # one block of memory, leaves first
        self._levels: list[FloatArray] = np.split(self._nodes, np.cumsum(lengths)[:-1])  # views of it
        # For each level but the leaves, two views of the one below: the left child of every node, and the right one.
        self._children = [(below[0::2], below[1::2]) for below in self._levels[:-1]]
        self._ladder: FloatArray = np.zeros(lengths[-1] + 1)  # running sums of the top, from 0.0 to the total
        self._ladder_is_stale = False

    def _running_sums(self) -> FloatArray:
        if self._ladder_is_stale:
            np.add.accumulate(self._levels[-1], out=self._ladder[1:])
            self._ladder_is_stale = False
        return self._ladder

    def _write(self, positions: IntArray, weights: FloatArray) -> None:
        try:
            self._levels[0][positions] = weights
        except IndexError:
            self.reserve(int(positions.max()) + 1)
            self._levels[0][positions] = weights
        # numpy indexes by a plain number in a fifth of the time of an array of one.
        nodes: IntArray | int = int(positions[0]) if positions.size == 1 else positions
        for (left, right), level in zip(self._children, self._levels[1:], strict=True):
            if positions.size < level.size:
                nodes = nodes >> 1
                level[nodes] = left[nodes] + right[nodes]
            else:  # most nodes change: computing all is cheaper, and bounds the memory of a bulk load
                np.add(left, right, out=level)

    def _targets(self, uniforms: FloatArray) -> FloatArray:
        """Scale numbers in [0, 1) to numbers below the sum of all weights."""
        total = self._running_sums()[-1]
        if total == 0.0:
            raise InvalidArgument("nothing to draw: too few weights are positive; set more")
        targets: FloatArray = np.minimum(np.multiply(uniforms, total), np.nextafter(total, 0.0))
        return targets

    def _descend(self, rest: FloatArray) -> IntArray:
        """Return the leaves at which the running sum of all weights first exceeds each number in `rest`."""
        leaves, order = self._descend_in_order(rest)
        found = np.empty_like(leaves)
        found[order] = leaves
        return found

    def _descend_distinct(self, rest: FloatArray) -> IntArray:
        """Return the leaves of `_descend`, each only at its first appearance."""
        leaves, order = self._descend_in_order(rest)
        found = np.empty_like(leaves)
        found[order] = leaves
        differs = leaves[1:] != leaves[:-1]
        if np.count_nonzero(differs) < differs.size:
            runs = np.concatenate(([0], differs.nonzero()[0] + 1))  # where each leaf starts
            is_first = np.zeros(found.size, dtype=np.bool_)
            is_first[np.minimum.reduceat(order, runs)] = True
            found = found[is_first]
        return found

    def _descend_in_order(self, rest: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the leaves in ascending order, and the index into `rest` of each."""
        order = rest.argsort()  # sorted, memory access and bisection are faster
        rest = rest[order]
        nodes = self._ladder[1:].searchsorted(rest, side="right")
        rest -= self._ladder[nodes]
        leaves = self._walk(nodes, rest)
        if np.count_nonzero(self._levels[0][leaves]) < leaves.size:
            leaves = self._walk(nodes, rest, past_empty=True)
        return leaves, order

    def _walk(self, nodes: IntArray, rest: FloatArray, *, past_empty: bool = False) -> IntArray:
        """Walk down from nodes of the top: to the right, if `rest` reaches the sum on the left.

        A rounded `rest` may reach the whole sum of a node whose right side is empty, and so end at an empty leaf. With
        `past_empty` each step checks the right side, which is seldom worth the time.
        """
        nodes, rest = nodes.copy(), rest.copy()
        for left, right in reversed(self._children):
            before = left[nodes]
            goes_right = rest >= before
            if past_empty:
                goes_right &= right[nodes] > 0.0
            before *= goes_right
            rest -= before
            nodes += nodes
            nodes += goes_right
        return nodes


def weight_tree(fast: bool | None = None) -> WeightTree:
    """Return a tree that is compiled by numba (`fast`), or uses numpy alone; None: compiled if numba is installed.

    REROLL_NO_NUMBA=1 makes None mean numpy. Raises ImportError if `fast` is True and numba is missing.
    """
    if fast is False or (fast is None and os.environ.get("REROLL_NO_NUMBA") == "1"):
        return WeightTree()
    try:
        return CompiledTree(_compiled())
    except ImportError as error:
        if fast:
            raise missing_extra("the compiled tree", "numba", "fast") from error
        return WeightTree()


class _Compiled(NamedTuple):
    """The functions below, compiled."""

    write: Callable[[FloatArray, int, IntArray, FloatArray], bool]
    descend: Callable[[FloatArray, int, FloatArray, FloatArray], IntArray]
    first_occurrences: Callable[[IntArray], IntArray]


@cache
def _compiled() -> _Compiled:
    """Compile the functions below, or load them from numba's cache. Raises ImportError without numba.

    Loading numba takes a second, so only the first compiled tree imports it. The cache watches this file.
    """
    import numba  # noqa: PLC0415

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True)(function)
        except RuntimeError:  # no place for the cache: a read-only installation and no home directory
            return numba.njit(function)

    functions = _Compiled(compiled(_write), compiled(_descend), compiled(_first_occurrences))
    tree = CompiledTree(functions)  # compile now, so that no later call stalls
    tree.set(np.arange(2), np.ones(2))
    tree.draw_distinct(2, np.random.default_rng(0))
    return functions


class CompiledTree(WeightTree):
    """A `WeightTree` with compiled steps, about twice as fast.

    256 distinct draws and updates among a million rows take 106 us, and 197 us with numpy; one takes 25 us, and 64 us.
    """

    __slots__ = ("_functions",)

    def __init__(self, functions: _Compiled) -> None:
        super().__init__()
        self._functions = functions

    def _write(self, positions: IntArray, weights: FloatArray) -> None:
        if not self._functions.write(self._nodes, self._capacity, positions, weights):
            if positions.min() < 0:
                raise IndexError(f"position {positions.min()} is negative")
            self.reserve(int(positions.max()) + 1)
            self._functions.write(self._nodes, self._capacity, positions, weights)

    def _descend(self, rest: FloatArray) -> IntArray:
        return self._functions.descend(self._nodes, self._capacity, self._ladder, rest)

    def _descend_distinct(self, rest: FloatArray) -> IntArray:
        return self._functions.first_occurrences(self._descend(rest))


def _write(nodes: FloatArray, capacity: int, positions: IntArray, weights: FloatArray) -> bool:
    """Write leaves and the sums above them; return False, with nothing written, if a position does not fit."""
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
        # One loop per level lets the processor fetch many rows from memory at once.
        for i in range(min(positions.size, length)):
            node = positions[i] >> shift if positions.size < length else i
            left = below + 2 * node
            nodes[start + node] = nodes[left] + nodes[left + 1]
        below = start
    return True


def _descend(nodes: FloatArray, capacity: int, ladder: FloatArray, rest: FloatArray) -> IntArray:
    """Return the leaves of `WeightTree._descend`; overwrites `rest`."""
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
            # No branch here either. Only rounding could lead to an empty right side.
            goes_right = (rest[i] >= nodes[left]) & (nodes[left + 1] > 0.0)
            rest[i] -= nodes[left] * goes_right
            found[i] = 2 * found[i] + goes_right
    return found


def _first_occurrences(positions: IntArray) -> IntArray:
    """Return distinct positions in order of first appearance, by a hash table with linear probing."""
    bits = 4
    while 1 << bits < 2 * positions.size:
        bits += 1
    mask = (1 << bits) - 1
    table = np.full(mask + 1, -1, dtype=np.int64)
    kept = np.empty(positions.size, dtype=np.int64)
    count = 0
    for position in positions:
        # The upper bits of a product with an odd number near 2^32 / golden ratio spread regular positions.
        slot = ((position * 0x9E3779B1) & 0xFFFFFFFF) >> (32 - bits)
        while table[slot] >= 0 and table[slot] != position:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = position
            kept[count] = position
            count += 1
    return kept[:count]
