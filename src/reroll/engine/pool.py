"""A pool: the resident rows of one task and status, in the orders in which they leave."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

import numpy as np

from reroll.engine.rows import NO_VERSION, Columns, IntArray
from reroll.engine.selectors.ordered import Ordered, by_columns
from reroll.engine.selectors.selector import Rng, Selector, SelectorSpec, Tunable

_MAX_NEW: Final = 8
_MAX_NEW_VERSIONS: Final = 64  # adding as many takes some dozen microseconds


class VersionIndex:
    """Rows by policy version, to find stale rows without a pass over the others.

    Staleness follows from the version and the training step, so a new step rewrites nothing. New rows are added in
    batches: most of them are trained before a caller asks. add, remove: O(log n) a row; stale: O(found).
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        # Rows that arrive together leave together, and removal of the first rows is fast: ties by age.
        self._by_version = Ordered(columns, "age", by_columns("version", "timestamp"))
        self._by_trainable: Ordered | None = None  # for token expiry; built on first use
        self._declared: set[int] = set()  # rows without versions whose declared staleness is not 0
        self._new: dict[int, None] = {}  # rows that are not in the orders yet

    def add(self, slots: IntArray) -> None:
        self._new.update(dict.fromkeys(slots.tolist()))
        if len(self._new) > _MAX_NEW_VERSIONS:
            self._add_new()

    def remove(self, slots: IntArray) -> None:
        new = self._new
        if new:
            slots = np.array([slot for slot in slots.tolist() if new.pop(slot, slot) is not None], np.int64)
        if not len(slots):
            return
        columns = self._columns
        has_version = columns.version[slots] != NO_VERSION
        self._by_version.remove(slots[has_version])
        if self._declared:
            self._declared.difference_update(slots[~has_version].tolist())
        if self._by_trainable is not None:
            self._by_trainable.remove(slots[columns.trainable[slots] != NO_VERSION])

    def stale(self, newest: int | None, newest_trainable: int | None) -> IntArray:
        """Return rows whose oldest version is at most `newest`, or whose `trainable` is at most `newest_trainable`."""
        self._add_new()
        found = [] if newest is None else _up_to(self._by_version, newest)
        if newest_trainable is not None:
            if self._by_trainable is None:
                self._by_trainable = Ordered(self._columns, "trainable", by_columns("trainable"))
                slots = self._by_version.slots()
                self._by_trainable.add(slots[self._columns.trainable[slots] != NO_VERSION])
            found += _up_to(self._by_trainable, newest_trainable)
        return np.array(list(dict.fromkeys(found)), np.int64)

    def pop_declared(self) -> IntArray:
        """Return the rows without versions whose declared staleness is not 0; the caller sets it to 0."""
        self._add_new()
        slots = np.array(sorted(self._declared), np.int64)
        self._declared.clear()
        return slots

    def _add_new(self) -> None:
        """Add new rows to the orders, by their current column values."""
        if not self._new:
            return
        columns, slots = self._columns, np.array(list(self._new), np.int64)
        self._new.clear()
        has_version = columns.version[slots] != NO_VERSION
        self._by_version.add(slots[has_version])
        if not has_version.all():
            self._declared.update(slots[~has_version & (columns.staleness[slots] != 0)].tolist())
        if self._by_trainable is not None:
            self._by_trainable.add(slots[columns.trainable[slots] != NO_VERSION])


def _up_to(order: Ordered, version: int) -> list[int]:
    return [key[-1] for key in takewhile(lambda key: key[0] <= version, order)]


class Pool:
    """Rows in the orders of a sampler, of a remover if rows may be evicted, by version if they may expire, and by
    priority if the largest one is asked for.

    New rows are added to these orders together, when a caller asks for an order or many rows are new: one by one,
    each would cost nearly as much as all of them. Counting is O(1).
    """

    def __init__(
        self,
        columns: Columns,
        sampler: Selector,
        remover: Selector | None,
        versions: VersionIndex | None,
        by_priority: Ordered | None,
    ) -> None:
        self._columns = columns
        self._sampler = sampler
        self._remover = remover
        self._versions = versions
        self._by_priority = by_priority
        self._selectors: list[Selector] = [one for one in (sampler, remover, by_priority) if one is not None]
        self._new: list[int] = []  # rows that are not in the orders yet, in order of arrival
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def sampler(self) -> Selector:
        """The selector that chooses rows for delivery."""
        self._add_new()
        return self._sampler

    @property
    def versions(self) -> VersionIndex | None:
        """The index of stale rows; None if rows never expire."""
        self._add_new()
        return self._versions

    def evictees(self, n: int, rng: Rng, step: int | None) -> IntArray:
        """Return the n rows that the remover evicts next; the pool has a remover and these rows."""
        self._add_new()
        assert self._remover is not None  # noqa: S101  (callers check it)
        if n == 1 and isinstance(self._remover, Ordered):  # a third of the time of a pick
            return np.array([next(iter(self._remover))[-1]])
        return self._remover.pick(n, rng, step=step).slots

    def largest_priority(self) -> float | None:
        """Return the largest priority of a row; None if the pool is empty or has no order by priority. O(1)."""
        self._add_new()
        first = None if self._by_priority is None else next(iter(self._by_priority), None)
        return None if first is None else self._columns.priority.item(first[-1])

    def set_sampler(self, spec: SelectorSpec) -> None:
        """Change the parameters of the sampler. O(rows), unless the sampler can be tuned."""
        self._add_new()
        if isinstance(self._sampler, Tunable) and self._sampler.tune(spec):
            return
        rows = self._sampler.slots()
        self._sampler.remove(rows)
        self._selectors[0] = self._sampler = spec.build(self._columns, "sampler")
        self._sampler.add(rows)

    def add(self, slots: IntArray) -> None:
        self._count += len(slots)
        if len(slots) != 1:
            self._add_new()
            self._add(slots)
            return
        self._new.append(slots.item())
        if len(self._new) > _MAX_NEW:
            self._add_new()

    def remove(self, slots: IntArray) -> None:
        self._add_new()
        self._count -= len(slots)
        for selector in self._selectors:
            selector.remove(slots)
        if self._versions is not None:
            self._versions.remove(slots)

    def touch(self, slots: IntArray) -> None:
        """Update the orders after a change of columns that selectors read."""
        self._add_new()
        self._columns.mark(slots)
        for selector in self._selectors:
            selector.touch(slots)

    def state(self) -> dict[str, Any]:
        sampler = self.sampler.state()
        return {"sampler": sampler, "remover": None if self._remover is None else self._remover.state()}

    def restore(self, state: Mapping[str, Any], rows: IntArray) -> None:
        """Restore an empty pool from `state`; `rows` are the slots of its rows."""
        self._count = len(rows)
        self._sampler.restore(state["sampler"], rows)
        if self._remover is not None:
            self._remover.restore(state["remover"], rows)
        if self._by_priority is not None:
            self._by_priority.add(rows)
        if self._versions is not None:
            self._versions.add(rows)

    def _add(self, slots: IntArray) -> None:
        for selector in self._selectors:
            selector.add(slots)
        if self._versions is not None:
            self._versions.add(slots)

    def _add_new(self) -> None:
        """Add new rows to the orders, by their current column values."""
        if self._new:
            new, self._new = np.array(self._new, np.int64), []
            self._add(new)
