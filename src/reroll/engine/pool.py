"""The rows of one (task, status)."""

from collections.abc import Mapping
from typing import Any

from reroll.engine.ages import Ages
from reroll.engine.columns import Columns, IntArray
from reroll.engine.selectors.selector import Selector


class Pool:
    """Rows in the order of a sampler, of a remover where rows may be evicted, and by age where they may expire.

    Counting is O(1).
    """

    def __init__(self, columns: Columns, sampler: Selector, remover: Selector | None = None) -> None:
        self._columns = columns
        self.sampler = sampler
        self.remover = remover
        self.ages: Ages | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def add(self, slots: IntArray) -> None:
        self._columns.mark(slots)
        self.sampler.add(slots)
        if self.remover is not None:
            self.remover.add(slots)
        if self.ages is not None:
            self.ages.add(slots)

    def remove(self, slots: IntArray) -> None:
        self._columns.mark(slots)
        self.sampler.remove(slots)
        if self.remover is not None:
            self.remover.remove(slots)
        if self.ages is not None:
            self.ages.remove(slots)

    def touch(self, slots: IntArray) -> None:
        """Follow a change of columns that selectors read."""
        self._columns.mark(slots)
        self.sampler.touch(slots)
        if self.remover is not None:
            self.remover.touch(slots)

    def state(self) -> dict[str, Any]:
        return {
            "sampler": self.sampler.state(),
            "remover": None if self.remover is None else self.remover.state(),
        }

    def restore(self, state: Mapping[str, Any], rows: IntArray) -> None:
        """Become what `state` told; `rows` are the slots of this pool."""
        self.sampler.restore(state["sampler"], rows)
        if self.remover is not None:
            self.remover.restore(state["remover"], rows)
        if self.ages is not None:
            self.ages.add(rows)
