"""Which rows of a pool are too stale, found without a look at the others.

Staleness is derived from the oldest version and the training step, so advancing the step rewrites nothing: rows are
kept by version, and expiry reads from the oldest on. Newcomers wait to be filed, some dozens at once: most rows are
trained long before anybody asks. Costs: O(log n) a row; `stale`: O(what it finds).
"""

from itertools import takewhile
from typing import Final

import numpy as np

from reroll.engine.columns import NO_VERSION, Columns, IntArray
from reroll.engine.selectors.ordered import Ordered

_MOST_NEW: Final = 64  # filing so many takes some dozen microseconds


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
        self._new: dict[int, None] = {}  # rows that are not filed yet

    def add(self, slots: IntArray) -> None:
        self._new.update(dict.fromkeys(slots.tolist()))
        if len(self._new) > _MOST_NEW:
            self._file()

    def remove(self, slots: IntArray) -> None:
        new = self._new
        if new:
            slots = np.array([slot for slot in slots.tolist() if new.pop(slot, slot) is not None], np.int64)
        if not len(slots):
            return
        columns = self._columns
        dated = columns.version[slots] != NO_VERSION
        self._by_version.remove(slots[dated])
        if self._told:
            self._told.difference_update(slots[~dated].tolist())
        if self._by_trainable is not None:
            self._by_trainable.remove(slots[columns.trainable[slots] != NO_VERSION])

    def stale(self, newest: int | None, newest_trainable: int | None) -> IntArray:
        """Return the rows whose oldest version is at most `newest`, or whose trainable one is at most the other."""
        self._file()
        found = [] if newest is None else _upto(self._by_version, newest)
        if newest_trainable is not None:
            found += _upto(self._trainable_order(), newest_trainable)
        return np.array(list(dict.fromkeys(found)), np.int64)

    def forget_told(self) -> IntArray:
        """Return the rows without versions that still have the staleness they were told; from now on it is 0."""
        self._file()
        slots = np.array(sorted(self._told), np.int64)
        self._told.clear()
        return slots

    def _file(self) -> None:
        """Put newcomers where they belong."""
        if not self._new:
            return
        columns, slots = self._columns, np.array(list(self._new), np.int64)
        self._new.clear()
        dated = columns.version[slots] != NO_VERSION
        self._by_version.add(slots[dated])
        if not dated.all():
            self._told.update(slots[~dated & (columns.staleness[slots] != 0)].tolist())
        if self._by_trainable is not None:
            self._by_trainable.add(slots[columns.trainable[slots] != NO_VERSION])

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
