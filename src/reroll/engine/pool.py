"""The rows of one (task, status)."""

from collections.abc import Mapping
from typing import Any

from reroll.engine.columns import IntArray
from reroll.engine.selectors.selector import Selector


class Pool:
    """Rows in the order of a sampler, and of a remover where rows may be evicted. Counting is O(1)."""

    def __init__(self, sampler: Selector, remover: Selector | None = None) -> None:
        self.sampler = sampler
        self.remover = remover

    def __len__(self) -> int:
        return len(self.sampler)

    def add(self, slots: IntArray) -> None:
        self.sampler.add(slots)
        if self.remover is not None:
            self.remover.add(slots)

    def remove(self, slots: IntArray) -> None:
        self.sampler.remove(slots)
        if self.remover is not None:
            self.remover.remove(slots)

    def touch(self, slots: IntArray) -> None:
        """Follow a change of columns that selectors read."""
        self.sampler.touch(slots)
        if self.remover is not None:
            self.remover.touch(slots)

    def state(self) -> dict[str, Any]:
        return {
            "sampler": self.sampler.state(),
            "remover": None if self.remover is None else self.remover.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.sampler.restore(state["sampler"])
        if self.remover is not None:
            self.remover.restore(state["remover"])
