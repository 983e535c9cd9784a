"""A sum tree: draws positions in proportion to their weights, and changes weights, without a pass over all rows.

leaves    one float64 weight per position
levels    above them, each node is the sum of its 16 children, added from left to right
top       the first level of at most 4,096 nodes; its running sums are kept and searched by bisection

A sum is always computed anew from its children, never adjusted by a difference: nothing drifts, and setting
the old weights again restores the old tree bit for bit. `WeightTree` is numpy only and the oracle;
`tree_numba` compiles the same steps in the same order, so that both give the same positions for the same seed.

The tree validates no weight, holds no lock and owns no random generator.
"""

import os
from itertools import pairwise
from typing import Final

import numpy as np

from reroll.engine.columns import FloatArray, IntArray
from reroll.errors import InvalidArgument

# Measured: with 8 children numpy makes more steps, with 32 it adds more than it saves; the running sums of a top
# of 4,096 cost less than one more level would.
FAN_BITS: Final = 4
FAN: Final = 1 << FAN_BITS
TOP: Final = 4096
_FIRST_CAPACITY: Final = 64


class WeightTree:
    """Weights of the positions 0, 1, 2, ...; a position never set weighs nothing.

    Below, n is the capacity and b the number of positions asked for. About 8.5 bytes a row.
    """

    __slots__ = ("_capacity", "_ladder", "_ladder_is_stale", "_levels", "_nodes")

    def __init__(self) -> None:
        self._allocate(_FIRST_CAPACITY)

    @property
    def capacity(self) -> int:
        """Positions that fit without growing; `set` doubles it when needed."""
        return self._capacity

    @property
    def total(self) -> float:
        """The sum of all weights; O(1), and O(top) after a change."""
        return float(self._running_sums()[-1])

    def set(self, positions: IntArray, weights: FloatArray) -> None:
        """Give these positions (distinct, none negative) these weights; O(b log n).

        No weight is negative and their sum is finite: the caller has checked. Beyond the capacity the tree doubles,
        which is O(n), but O(1) a position over its life. Raises InvalidArgument if the two differ in length.
        """
        where = np.ascontiguousarray(positions, dtype=np.int64)
        values = np.ascontiguousarray(weights, dtype=np.float64)
        if where.size != values.size:
            raise InvalidArgument(
                f"{where.size} positions and {values.size} weights: give one weight to each"
            )
        self._ladder_is_stale = True
        self._write(where, values)

    def get(self, positions: IntArray) -> FloatArray:
        """The weights of these positions; O(b). Raises IndexError beyond the capacity."""
        return self._levels[0].take(positions)

    def draw(self, uniforms: FloatArray) -> IntArray:
        """One position per number in [0, 1), each with probability weight / total; O(b log n).

        Only positions of positive weight are drawn. Raises InvalidArgument if there are none.
        """
        total = self._running_sums()[-1]
        if total == 0.0:
            raise InvalidArgument("nothing to draw: set enough positive weights first")
        return self._descend(np.minimum(np.multiply(uniforms, total), np.nextafter(total, 0.0)))

    def draw_distinct(self, count: int, rng: np.random.Generator) -> IntArray:
        """Draw `count` distinct positions, each by weight among those not drawn before, in the order drawn.

        Draws with replacement and keeps what is new, which has the same distribution. Once most draws repeat, what
        was drawn is taken out (and put back at the end, also on error), so that the next draw is new for certain.
        Expected O(count log n), also if a few positions hold nearly all the weight; at worst, if each weight dwarfs
        all smaller ones, a round per position. Raises InvalidArgument if fewer than `count` weights are positive.
        """
        taken: list[tuple[IntArray, FloatArray]] = []  # out of the tree for now, with their weights
        chosen = np.empty(0, dtype=np.int64)
        missing = count
        try:
            while chosen.size < missing:
                more = missing - chosen.size
                drawn = self.draw(rng.random(more + more // 8 + 8))
                known = chosen.size
                chosen = self._first_occurrences(np.concatenate((chosen, drawn)))[:missing]
                if chosen.size < missing and 2 * (chosen.size - known) < drawn.size:
                    taken.append((chosen, self.get(chosen)))
                    self.set(chosen, np.zeros(chosen.size))
                    missing -= chosen.size
                    chosen = chosen[:0]
        finally:
            for positions, weights in taken:
                self.set(positions, weights)
        return np.concatenate((*(positions for positions, _ in taken), chosen))

    def reserve(self, capacity: int) -> None:
        """Make room for the positions below `capacity`, rounded up to a power of two; O(n) if that grows the tree.

        The order in which weights are added up depends on the capacity alone: a tree that is to go on exactly
        like a saved one reserves its capacity.
        """
        if capacity <= self._capacity:
            return
        old = self._levels
        self._allocate(1 << (capacity - 1).bit_length())
        for level, kept in zip(self._levels, old, strict=False):
            level[: kept.size] = kept
        for below, level in pairwise(self._levels[len(old) - 1 :]):
            level[:] = _sums(below.reshape(-1, FAN))
        self._ladder_is_stale = True

    def clear(self) -> None:
        """Forget all weights and give the memory back."""
        self._allocate(_FIRST_CAPACITY)

    def __getstate__(self) -> FloatArray:
        return self._levels[0]

    def __setstate__(self, leaves: FloatArray) -> None:
        self._allocate(leaves.size)
        self.set(np.arange(leaves.size), leaves)

    def _allocate(self, capacity: int) -> None:
        lengths = [capacity]
        while lengths[-1] > TOP:
            lengths.append(lengths[-1] >> FAN_BITS)
        self._capacity = capacity
        self._nodes: FloatArray = np.zeros(sum(lengths))  # one block of memory, leaves first
        self._levels: list[FloatArray] = np.split(self._nodes, np.cumsum(lengths)[:-1])  # views of it
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
        nodes = positions
        for below, level in pairwise(self._levels):
            children = below.reshape(-1, FAN)
            if positions.size < level.size:
                nodes = nodes >> FAN_BITS
                level[nodes] = _sums(children.take(nodes, axis=0))
            else:  # most nodes change: all of them is cheaper, and bounds the memory of a bulk load
                level[:] = _sums(children)

    def _descend(self, rest: FloatArray) -> IntArray:
        """The leaves at which the running sum of all weights first exceeds each number in `rest`.

        Each step keeps `rest` below the node's sum, so that some running sum of the children exceeds it, and
        the first that does belongs to a child whose own sum is positive: rounding never leads to an empty leaf.
        """
        nodes = self._ladder[1:].searchsorted(rest, side="right")
        before = self._ladder.take(nodes)
        for above, level in zip(self._levels[:0:-1], self._levels[-2::-1], strict=True):
            rest = np.minimum(rest - before, np.nextafter(above.take(nodes), 0.0))
            ladders = level.reshape(-1, FAN).take(nodes, axis=0)
            np.add.accumulate(ladders, axis=1, out=ladders)
            children = (ladders > rest[:, None]).argmax(axis=1)
            nodes = (nodes << FAN_BITS) + children
            if level is not self._levels[0]:
                previous = np.arange(-1, ladders.size - 1, FAN) + children
                before = np.where(children > 0, ladders.take(previous), 0.0)
        return nodes

    def _first_occurrences(self, positions: IntArray) -> IntArray:
        """The distinct positions in order of first appearance."""
        bits = positions.size.bit_length()
        keys = (positions << bits) + np.arange(positions.size)  # sorts by position, then by appearance
        keys.sort()
        found = keys >> bits
        is_first = np.ones(keys.size, dtype=np.bool_)
        np.not_equal(found[1:], found[:-1], out=is_first[1:])
        order = keys[is_first] & ((1 << bits) - 1)
        order.sort()
        return positions.take(order)


def weight_tree(fast: bool | None = None) -> WeightTree:
    """A tree compiled by numba if `fast`, by numpy alone if not; None: whichever is there, numba first.

    REROLL_NO_NUMBA=1 makes None mean numpy. Raises ImportError if `fast` is True and numba is missing.
    """
    if fast is False or (fast is None and os.environ.get("REROLL_NO_NUMBA") == "1"):
        return WeightTree()
    try:
        # Loading numba takes a second: only who builds a tree pays for it.
        from reroll.engine.selectors.tree_numba import NumbaWeightTree  # noqa: PLC0415
    except ImportError as error:
        if fast:
            raise ImportError("the compiled tree needs numba: pip install reroll[fast]") from error
        return WeightTree()
    return NumbaWeightTree()


def _sums(children: FloatArray) -> FloatArray:
    """Sum each row from left to right."""
    sums: FloatArray
    if len(children) == 1:  # numpy would see one long column, and add that up pairwise
        sums = np.add.accumulate(children, axis=1)[:, -1]
    else:  # column upon column: a third of the time of running sums, in the same order
        sums = np.add.reduce(children.T.copy(), axis=0)
    return sums
