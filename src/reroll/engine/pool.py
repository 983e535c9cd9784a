"""A pool: the resident rows of one task and status, in the orders in which they leave."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

import numpy as np

from reroll.engine.rows import NO_VERSION, Columns, IntArray
from reroll.engine.selectors.ordered import Ordered
from reroll.engine.selectors.selector import Selector, SelectorSpec, Tunable

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
        self._by_version = Ordered(
            columns, "age", lambda c, s: zip(c.version[s].tolist(), c.timestamp[s].tolist(), strict=True)
        )
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
            found += _up_to(self._trainable_order(), newest_trainable)
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

    def _trainable_order(self) -> Ordered:
        if self._by_trainable is None:
            self._by_trainable = Ordered(
                self._columns, "trainable", lambda c, s: zip(c.trainable[s].tolist(), strict=True)
            )
            slots = self._by_version.slots()
            self._by_trainable.add(slots[self._columns.trainable[slots] != NO_VERSION])
        return self._by_trainable


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
        remover: Selector | None = None,
        versions: VersionIndex | None = None,
        by_priority: Ordered | None = None,
    ) -> None:
        self._columns = columns
        self._sampler = sampler
        self._remover = remover
        self._versions = versions
        self._by_priority = by_priority
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

    def evictee(self, rng: np.random.Generator, step: int | None) -> IntArray:
        """Return the row that the remover evicts next; the pool has a remover and is not empty."""
        self._add_new()
        assert self._remover is not None  # noqa: S101  (callers check it)
        if isinstance(self._remover, Ordered):
            return np.array([self._remover.first()])
        return self._remover.pick(1, rng, step=step).slots

    def largest_priority(self) -> float | None:
        """Return the largest priority of a row; None if the pool is empty or has no order by priority. O(1)."""
        self._add_new()
        if self._by_priority is None or not len(self._by_priority):
            return None
        return self._columns.priority.item(self._by_priority.first())

    def set_sampler(self, spec: SelectorSpec) -> None:
        """Change the parameters of the sampler. O(rows), unless the sampler can be tuned."""
        self._add_new()
        if isinstance(self._sampler, Tunable) and self._sampler.tune(spec):
            return
        rows = self._sampler.slots()
        self._sampler.remove(rows)
        self._sampler = spec.build(self._columns, "sampler")
        self._sampler.add(rows)

    def add(self, slots: IntArray) -> None:
        self._count += len(slots)
        if len(slots) == 1:
            self._new.append(slots.item())
            if len(self._new) > _MAX_NEW:
                self._add_new()
            return
        self._add_new()
        self._add(slots)

    def remove(self, slots: IntArray) -> None:
        self._add_new()
        self._count -= len(slots)
        self._sampler.remove(slots)
        if self._remover is not None:
            self._remover.remove(slots)
        if self._versions is not None:
            self._versions.remove(slots)
        if self._by_priority is not None:
            self._by_priority.remove(slots)

    def touch(self, slots: IntArray) -> None:
        """Update the orders after a change of columns that selectors read."""
        self._add_new()
        self._columns.mark(slots)
        self._sampler.touch(slots)
        if self._remover is not None:
            self._remover.touch(slots)
        if self._by_priority is not None:
            self._by_priority.touch(slots)

    def state(self) -> dict[str, Any]:
        self._add_new()
        return {
            "sampler": self._sampler.state(),
            "remover": None if self._remover is None else self._remover.state(),
        }

    def restore(self, state: Mapping[str, Any], rows: IntArray) -> None:
        """Restore an empty pool from `state`; `rows` are the slots of its rows."""
        self._count = len(rows)
        self._sampler.restore(state["sampler"], rows)
        if self._remover is not None:
            self._remover.restore(state["remover"], rows)
        if self._versions is not None:
            self._versions.add(rows)
        if self._by_priority is not None:
            self._by_priority.add(rows)

    def _add(self, slots: IntArray) -> None:
        self._sampler.add(slots)
        if self._remover is not None:
            self._remover.add(slots)
        if self._versions is not None:
            self._versions.add(slots)
        if self._by_priority is not None:
            self._by_priority.add(slots)

    def _add_new(self) -> None:
        """Add new rows to the orders, by their current column values."""
        if self._new:
            new, self._new = np.array(self._new, np.int64), []
            self._add(new)
