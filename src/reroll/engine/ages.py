"""Which rows of a pool are too stale, found without a look at the others.

Staleness is derived from the oldest version and the training step, so advancing the step rewrites nothing: rows are
kept by version, and expiry reads from the oldest on. Costs: O(log n) a row; `stale`: O(what it finds).
"""

from itertools import takewhile

import numpy as np

from reroll.engine.columns import NO_VERSION, Columns, IntArray
from reroll.engine.selectors.ordered import Ordered


class Ages:
    """The rows of one pool by their oldest version."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        # Those that arrived together leave together, and removing the first ones is quick: so the oldest first.
        self._by_version = Ordered(
            columns, "age", lambda c, s: zip(c.version[s].tolist(), c.timestamp[s].tolist(), strict=True)
        )
        # By the version that token expiry looks at; made when it is first asked for.
        self._by_trainable: Ordered | None = None
        self._told: set[int] = set()  # rows without versions, whose staleness is not 0 as told at put

    def add(self, slots: IntArray) -> None:
        columns = self._columns
        dated = columns.version[slots] != NO_VERSION
        self._by_version.add(slots[dated])
        if not dated.all():
            self._told.update(slots[~dated & (columns.staleness[slots] != 0)].tolist())
        if self._by_trainable is not None:
            self._by_trainable.add(slots[columns.trainable[slots] != NO_VERSION])

    def remove(self, slots: IntArray) -> None:
        columns = self._columns
        dated = columns.version[slots] != NO_VERSION
        self._by_version.remove(slots[dated])
        if self._told:
            self._told.difference_update(slots[~dated].tolist())
        if self._by_trainable is not None:
            self._by_trainable.remove(slots[columns.trainable[slots] != NO_VERSION])

    def stale(self, newest: int | None, newest_trainable: int | None) -> IntArray:
        """Return the rows whose oldest version is at most `newest`, or whose trainable one is at most the other."""
        found = [] if newest is None else _upto(self._by_version, newest)
        if newest_trainable is not None:
            found += _upto(self._trainable_order(), newest_trainable)
        return np.array(list(dict.fromkeys(found)), np.int64)

    def forget_told(self) -> IntArray:
        """Return the rows without versions that still have the staleness they were told; from now on it is 0."""
        slots = np.array(sorted(self._told), np.int64)
        self._told.clear()
        return slots

    def _trainable_order(self) -> Ordered:
        if self._by_trainable is None:
            self._by_trainable = Ordered(
                self._columns, "trainable", lambda c, s: zip(c.trainable[s].tolist(), strict=True)
            )
            slots = np.fromiter((key[-1] for key in self._by_version), np.int64)
            self._by_trainable.add(slots[self._columns.trainable[slots] != NO_VERSION])
        return self._by_trainable


def _upto(order: Ordered, version: int) -> list[int]:
    return [key[-1] for key in takewhile(lambda key: key[0] <= version, order)]
