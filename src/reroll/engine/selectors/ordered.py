"""Selectors that leave nothing to chance: the rows with the smallest keys come first."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from reroll.engine.columns import NO_VERSION, Columns, IntArray
from reroll.engine.selectors.chunks import Key, SortedChunks
from reroll.engine.selectors.selector import Picks

OrderRole = Literal["sampler", "remover", "age", "trainable", "peak"]
KeysOf = Callable[[Columns, IntArray], Iterable[Key]]
"""The sort keys of rows; each ends with a timestamp, which makes it unique."""


class Ordered:
    """Rows by key. add, remove, touch: O(log n) a row; pick: O(n picked)."""

    def __init__(self, columns: Columns, role: OrderRole, keys_of: KeysOf) -> None:
        self._columns = columns
        self._keys_of = keys_of
        self._order = SortedChunks()
        self._filed: list[Key | None] = columns.filed[role]  # shared with the other orders of this role

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over (key, slot) in order."""
        return iter(self._order)

    def add(self, slots: IntArray) -> None:
        filed, rows = self._filed, slots.tolist()
        if not rows:
            return
        if (missing := max(rows) + 1 - len(filed)) > 0:
            filed.extend([None] * missing)
        for slot, key in zip(rows, self._keys_of(self._columns, slots), strict=True):
            unique = (*key, slot)
            filed[slot] = unique
            self._order.add(unique)

    def remove(self, slots: IntArray) -> None:
        filed = self._filed
        keys: list[Any] = []
        for slot in slots.tolist():
            keys.append(filed[slot])
            filed[slot] = None
        self._order.remove_all(keys)

    def touch(self, slots: IntArray) -> None:
        if not len(slots):
            return
        filed: list[Any] = self._filed
        rows = zip(slots.tolist(), self._keys_of(self._columns, slots), strict=True)
        moved = np.array([slot for slot, key in rows if filed[slot][:-1] != key], np.int64)
        self.remove(moved)
        self.add(moved)

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:  # noqa: ARG002
        return len(self) >= n

    def pick(
        self,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002
        *,
        step: int | None = None,  # noqa: ARG002
        replace: bool = False,  # noqa: ARG002
    ) -> Picks:
        return Picks.certain(_slots(self._order.first(n)))

    def slots(self) -> IntArray:
        return _slots(self._order)

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:  # noqa: ARG002
        self.add(slots)


class ByStaleness:
    """Rows by staleness: the largest first (`sign` -1, Stalest) or the smallest (`sign` 1, Freshest), then the oldest.

    Staleness of a row with versions is derived from the task's step, so advancing the step changes no order among
    those, and nothing is rewritten: they are kept by version, the others by the staleness they were told, and a pick
    merges both. Costs as for Ordered.
    """

    def __init__(self, columns: Columns, role: OrderRole, sign: int) -> None:
        self._columns = columns
        self._sign = sign
        # The smallest version is the stalest: opposite sign.
        self._by_version = Ordered(columns, role, lambda c, s: _zip(-sign * c.version[s], c.timestamp[s]))
        self._by_value = Ordered(columns, role, lambda c, s: _zip(sign * c.staleness[s], c.timestamp[s]))
        self._derived = (
            False  # whether the task has a step; until then all rows keep the value they were told
        )

    def __len__(self) -> int:
        return len(self._by_version) + len(self._by_value)

    def add(self, slots: IntArray) -> None:
        dated, others = self._split(slots)
        self._by_version.add(dated)
        self._by_value.add(others)

    def remove(self, slots: IntArray) -> None:
        dated, others = self._split(slots)
        self._by_version.remove(dated)
        self._by_value.remove(others)

    def touch(self, slots: IntArray) -> None:
        dated, others = self._split(slots)
        self._by_version.touch(dated)
        self._by_value.touch(others)

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:  # noqa: ARG002
        return len(self) >= n

    def pick(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        step: int | None = None,
        replace: bool = False,  # noqa: ARG002
    ) -> Picks:
        if step is not None and not self._derived:
            self._derive()
        if not len(self._by_value):
            return self._by_version.pick(n, rng)
        if not len(self._by_version):
            return self._by_value.pick(n, rng)
        shift = self._sign * ((step or 0) - 1)  # from a signed version to a signed staleness
        derived = ((key + shift, *rest) for key, *rest in self._by_version)
        return Picks.certain(_slots(islice(merge(derived, self._by_value), n)))

    def slots(self) -> IntArray:
        return np.concatenate((self._by_version.slots(), self._by_value.slots()))

    def state(self) -> Mapping[str, Any]:
        return {"derived": self._derived}

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:
        self._derived = bool(state["derived"])
        self.add(slots)

    def _split(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Return the rows that are kept by version, and the others; a row is the same while it is held."""
        if not self._derived:
            return slots[:0], slots
        dated = self._columns.version[slots] != NO_VERSION
        if dated.all():
            return slots, slots[:0]
        return slots[dated], slots[~dated]

    def _derive(self) -> None:
        """Once, when the task sees its first step: file rows that have versions by version. O(rows)."""
        slots = self._by_value.slots()
        self._by_value.remove(slots)
        self._derived = True
        self.add(slots)


def _zip(*columns: Any) -> Iterable[Key]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _slots(keys: Iterable[Any]) -> IntArray:
    return np.fromiter(map(itemgetter(-1), keys), np.int64)
