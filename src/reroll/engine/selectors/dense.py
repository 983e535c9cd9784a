"""A set of slots without gaps: position 0 to n-1, so that a random number is a random member.

The position of each row stands in a column that all dense sets of one role share: a row is in one of them at most, and
`slots[position[slot]] == slot` tells whether it is this one.
"""

from typing import NamedTuple

import numpy as np

from reroll.engine.columns import BoolArray, Columns, IntArray
from reroll.engine.selectors.selector import Role


class Moves(NamedTuple):
    """What a removal did: rows moved from the end into the holes; positions from `end` on are empty now."""

    sources: IntArray
    holes: IntArray
    end: int


class DenseSet:
    """Slots in arbitrary but reproducible order. add, remove: O(1) a row; memory 8 bytes a row."""

    def __init__(self, columns: Columns, role: Role) -> None:
        self._columns = columns
        self._column = f"{role}_position"
        self._slots = np.zeros(64, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def at(self, positions: IntArray) -> IntArray:
        return self._slots[positions]

    def positions(self, slots: IntArray) -> IntArray:
        """Return where these members stand."""
        found: IntArray = getattr(self._columns, self._column)[slots].astype(np.int64)
        return found

    def holds(self, slots: IntArray) -> BoolArray:
        positions = self.positions(slots)
        inside = positions < self._count
        held: BoolArray = inside & (self._slots[np.where(inside, positions, 0)] == slots)
        return held

    def add(self, slots: IntArray) -> IntArray:
        """Append rows and return their positions."""
        start, end = self._count, self._count + len(slots)
        if end > len(self._slots):
            grown = np.zeros(max(end, 2 * len(self._slots)), np.int64)
            grown[:start] = self._slots[:start]
            self._slots = grown
        positions = np.arange(start, end)
        self._slots[start:end] = slots
        getattr(self._columns, self._column)[slots] = positions
        self._count = end
        return positions

    def remove(self, slots: IntArray) -> Moves:
        """Take rows out; the last ones fill their holes."""
        positions = self.positions(slots)
        end = self._count - len(slots)
        stays = np.ones(len(slots), np.bool_)
        stays[positions[positions >= end] - end] = False
        sources = np.flatnonzero(stays) + end
        holes = positions[positions < end]
        movers = self._slots[sources]
        self._slots[holes] = movers
        getattr(self._columns, self._column)[movers] = holes
        self._columns.mark(movers)
        self._count = end
        return Moves(sources, holes, end)

    def in_order(self, slots: IntArray) -> IntArray:
        """Return rows by the positions that their columns tell: where they stood when those were saved."""
        return slots[np.argsort(getattr(self._columns, self._column)[slots], kind="stable")]

    def all(self) -> IntArray:
        """Return a copy of the slots by position."""
        return self._slots[: self._count].copy()

    def some(self, n: int, rng: np.random.Generator, *, replace: bool = False) -> IntArray:
        """Return n members, distinct unless `replace`, each with the same chance. O(n)."""
        if n == 0 or self._count == 0:
            return np.zeros(0, np.int64)
        if replace:
            return self._slots[rng.integers(self._count, size=n)]
        return self._slots[rng.choice(self._count, n, replace=False)]
