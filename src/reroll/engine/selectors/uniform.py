"""Every row with the same chance."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reroll.engine.columns import Columns, IntArray
from reroll.engine.selectors.dense import DenseSet
from reroll.engine.selectors.selector import Picks, Role


class UniformSelector:
    """add, remove: O(1) a row; pick: O(n picked)."""

    by_chance = True  # may draw a row more than once, if asked to

    def __init__(self, columns: Columns, role: Role) -> None:
        self._rows = DenseSet(columns, role)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, slots: IntArray) -> None:
        self._rows.add(slots)

    def remove(self, slots: IntArray) -> None:
        self._rows.remove(slots)

    def touch(self, slots: IntArray) -> None:
        pass

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:  # noqa: ARG002
        return len(self) >= n

    def pick(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        step: int | None = None,  # noqa: ARG002
        replace: bool = False,
    ) -> Picks:
        size = len(self)
        slots = self._rows.some(n if replace else min(n, size), rng, replace=replace)
        return Picks(slots, np.full(len(slots), 1 / max(size, 1)), np.zeros(len(slots)))

    def total_weight(self, step: int | None) -> float:  # noqa: ARG002
        """Return the weight of all rows together. O(1)."""
        return float(len(self))

    def slots(self) -> IntArray:
        return self._rows.all()

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:  # noqa: ARG002
        self._rows.add(self._rows.in_order(slots))
