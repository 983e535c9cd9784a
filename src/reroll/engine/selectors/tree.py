"""A sum tree: draws positions in proportion to their weights, and changes weights, without a pass over all rows.

leaves    one float64 weight per position
levels    above them, each node is the sum of its two children
top       the first level of at most 2,048 nodes; its running sums are kept and searched by bisection

A sum is always computed anew from its children, never adjusted by a difference: nothing drifts, and setting
the old weights again restores the old tree bit for bit. `WeightTree` is numpy only and the oracle;
`tree_numba` compiles the same steps in the same order, so that both give the same positions for the same seed.

The tree validates no weight, holds no lock and owns no random generator.
"""

import os
from typing import Final

import numpy as np

from reroll.engine.columns import FloatArray, IntArray
from reroll.errors import InvalidArgument

# Measured: with more children a level has to add up running sums of each node, which takes numpy longer than the steps
# down that it saves; twice as long a top would cost more than the level below it.
TOP: Final = 2048
_FIRST_CAPACITY: Final = 64


class WeightTree:
    """Weights of the positions 0, 1, 2, ...; a position never set weighs nothing.

    Below, n is the capacity and b the number of positions asked for. About 16 bytes a row.
    """

    __slots__ = ("_capacity", "_children", "_ladder", "_ladder_is_stale", "_levels", "_nodes")

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
        weights: FloatArray = self._levels[0][positions]
        return weights

    def draw(self, uniforms: FloatArray) -> IntArray:
        """One position per number in [0, 1), each with probability weight / total; O(b log n).

        Only positions of positive weight are drawn. Raises InvalidArgument if there are none.
        """
        return self._descend(self._targets(uniforms))

    def draw_distinct(self, count: int, rng: np.random.Generator) -> IntArray:
        """Draw `count` distinct positions, each by weight among those not drawn before, in the order drawn.

        Draws with replacement and keeps what is new, which has the same distribution. If that was not enough, what was
        drawn is taken out (and put back at the end, also on error), so that the next round finds others.
        Expected O(count log n), also if a few positions hold nearly all the weight; at worst, if each weight dwarfs
        all smaller ones, a round per position. Raises InvalidArgument if fewer than `count` weights are positive.
        """
        taken: list[tuple[IntArray, FloatArray]] = []  # out of the tree for now, with their weights
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

        The order in which weights are added up depends on the capacity alone: a tree that is to go on exactly
        like a saved one reserves its capacity.
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
        # One position goes as a plain number, which numpy takes in a fifth of the time of an array of one.
        nodes: IntArray | int = int(positions[0]) if positions.size == 1 else positions
        for (left, right), level in zip(self._children, self._levels[1:], strict=True):
            if positions.size < level.size:
                nodes = nodes >> 1
                level[nodes] = left[nodes] + right[nodes]
            else:  # most nodes change: all of them is cheaper, and bounds the memory of a bulk load
                np.add(left, right, out=level)

    def _targets(self, uniforms: FloatArray) -> FloatArray:
        """From numbers in [0, 1) to numbers below the sum of all weights."""
        total = self._running_sums()[-1]
        if total == 0.0:
            raise InvalidArgument("nothing to draw: set enough positive weights first")
        targets: FloatArray = np.minimum(np.multiply(uniforms, total), np.nextafter(total, 0.0))
        return targets

    def _descend(self, rest: FloatArray) -> IntArray:
        """The leaves at which the running sum of all weights first exceeds each number in `rest`."""
        leaves, order = self._descend_in_order(rest)
        found = np.empty_like(leaves)
        found[order] = leaves
        return found

    def _descend_distinct(self, rest: FloatArray) -> IntArray:
        """The same leaves, each only where it appears first."""
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
        """The leaves in ascending order, and which number of `rest` each belongs to."""
        order = rest.argsort()  # neighbours in the tree one after the other: memory and bisection are quicker
        rest = rest[order]
        nodes = self._ladder[1:].searchsorted(rest, side="right")
        rest -= self._ladder[nodes]
        leaves = self._walk(nodes, rest)
        if np.count_nonzero(self._levels[0][leaves]) < leaves.size:
            leaves = self._walk(nodes, rest, past_empty=True)
        return leaves, order

    def _walk(self, nodes: IntArray, rest: FloatArray, *, past_empty: bool = False) -> IntArray:
        """Walk down from nodes of the top: to the right, if `rest` reaches the sum on the left.

        A rounded `rest` may reach the node's whole sum, also where there is nothing on the right, and from there come to
        an empty leaf. With `past_empty` each step looks, and stays on the left then; which is seldom worth the time.
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
