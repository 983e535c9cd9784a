"""The rows of one (task, status)."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from reroll.engine.ages import Ages
from reroll.engine.columns import Columns, IntArray
from reroll.engine.selectors.ordered import Ordered
from reroll.engine.selectors.selector import Selector, SelectorSpec, Tunable

_MOST_NEW: Final = 8


class Pool:
    """Rows in the order of a sampler, of a remover where rows may be evicted, by age where they may expire, and by
    priority where the largest one is asked for.

    Counting is O(1). Newcomers are filed together, when somebody asks for an order, or many wait: one by one each would
    cost nearly as much as all of them, and it is the put that would pay.
    """

    def __init__(
        self,
        columns: Columns,
        sampler: Selector,
        remover: Selector | None = None,
        ages: Ages | None = None,
        by_priority: Ordered | None = None,
    ) -> None:
        self._columns = columns
        self._sampler = sampler
        self._remover = remover
        self._ages = ages
        self._by_priority = by_priority
        self._new: list[int] = []  # rows that are not filed yet, in order of arrival
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def sampler(self) -> Selector:
        """Who chooses rows to be handed out."""
        self._file()
        return self._sampler

    @property
    def remover(self) -> Selector | None:
        """Who chooses rows to be evicted, if any may be."""
        self._file()
        return self._remover

    @property
    def ages(self) -> Ages | None:
        """Who knows which rows are too stale, if they may expire."""
        self._file()
        return self._ages

    def largest_priority(self) -> float | None:
        """Return the largest priority of a row; None if there is none, or the pool does not sort by priority. O(1)."""
        self._file()
        first = None if self._by_priority is None else next(iter(self._by_priority), None)
        return None if first is None else float(self._columns.priority[first[-1]])

    def set_sampler(self, spec: SelectorSpec) -> None:
        """Select by other parameters of the same kind of selector from now on. O(rows) unless it takes them over."""
        self._file()
        if isinstance(self._sampler, Tunable) and self._sampler.tune(spec):
            return
        rows = self._sampler.slots()
        self._sampler.remove(rows)
        self._sampler = spec.build(self._columns, "sampler")
        self._sampler.add(rows)

    def add_one(self, slot: int) -> None:
        """Do what `add` does, later."""
        if self._columns.dirty is not None:
            self._columns.dirty.add(slot)
        self._count += 1
        self._new.append(slot)
        if len(self._new) > _MOST_NEW:
            self._file()

    def add(self, slots: IntArray) -> None:
        self._file()
        self._count += len(slots)
        self._columns.mark(slots)
        self._add(slots)

    def remove(self, slots: IntArray) -> None:
        self._file()
        self._count -= len(slots)
        self._columns.mark(slots)
        self._sampler.remove(slots)
        if self._remover is not None:
            self._remover.remove(slots)
        if self._ages is not None:
            self._ages.remove(slots)
        if self._by_priority is not None:
            self._by_priority.remove(slots)

    def touch(self, slots: IntArray) -> None:
        """Follow a change of columns that selectors read."""
        self._file()
        self._columns.mark(slots)
        self._sampler.touch(slots)
        if self._remover is not None:
            self._remover.touch(slots)
        if self._by_priority is not None:
            self._by_priority.touch(slots)

    def state(self) -> dict[str, Any]:
        self._file()
        return {
            "sampler": self._sampler.state(),
            "remover": None if self._remover is None else self._remover.state(),
        }

    def restore(self, state: Mapping[str, Any], rows: IntArray) -> None:
        """Become what `state` told; `rows` are the slots of this pool."""
        self._count = len(rows)
        self._sampler.restore(state["sampler"], rows)
        if self._remover is not None:
            self._remover.restore(state["remover"], rows)
        if self._ages is not None:
            self._ages.add(rows)
        if self._by_priority is not None:
            self._by_priority.add(rows)

    def _add(self, slots: IntArray) -> None:
        self._sampler.add(slots)
        if self._remover is not None:
            self._remover.add(slots)
        if self._ages is not None:
            self._ages.add(slots)
        if self._by_priority is not None:
            self._by_priority.add(slots)

    def _file(self) -> None:
        """Put newcomers where they belong, by what their columns hold now: nobody has asked for an order since they came."""
        if self._new:
            new, self._new = np.array(self._new, np.int64), []
            self._add(new)
