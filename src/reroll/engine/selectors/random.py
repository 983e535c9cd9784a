"""Selectors by chance without weights: uniform draws, and mixtures of fresh and replayed rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reroll.engine.rows import NO_ROWS, BoolArray, Columns, IntArray
from reroll.engine.selectors.selector import Picks, Rng, Role, Selector, SelectorSpec, Tunable
from reroll.errors import WouldBlock


class DenseSet:
    """Slots at positions 0 to n-1 without gaps, so that a random number is a random row.

    The position of each row is in a column that all dense sets of one role share: a row is in one of them at most.
    The order is arbitrary but reproducible. add, remove: O(1) a row; memory 8 bytes a row.
    """

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
        """Return the positions of rows that it has."""
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

    def remove_one(self, slot: int) -> tuple[int, int]:
        """Remove a row as `remove` does, in a tenth of its time; return its position, and that of the last row."""
        column = getattr(self._columns, self._column)
        self._count = end = self._count - 1
        hole: int = column.item(slot)
        if hole != end:
            mover = self._slots.item(end)
            self._slots[hole] = mover
            column[mover] = hole
            if self._columns.dirty is not None:
                self._columns.dirty.add(mover)
        return hole, end

    def remove(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Remove rows; the last rows fill the holes. Return the old positions of these, and the holes."""
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
        return sources, holes

    def in_order(self, slots: IntArray) -> IntArray:
        """Return rows by their stored positions."""
        return slots[np.argsort(getattr(self._columns, self._column)[slots], kind="stable")]

    def all(self) -> IntArray:
        """Return a copy of the slots by position."""
        return self._slots[: self._count].copy()

    def draw(self, n: int, rng: Rng, *, replace: bool = False) -> IntArray:
        """Return n rows, or all if there are fewer and `replace` is False, each with the same probability. O(n)."""
        if n == 0 or self._count == 0:
            return NO_ROWS
        if replace:
            return self._slots[rng.integers(self._count, size=n)]
        return self._slots[rng.choice(self._count, min(n, self._count), replace=False)]


class UniformSelector(Selector):
    """Every row with the same probability. add, remove: O(1) a row; pick: O(picked)."""

    by_chance = True  # may draw a row more than once with `replace`

    def __init__(self, columns: Columns, role: Role) -> None:
        self._rows = DenseSet(columns, role)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, slots: IntArray) -> None:
        self._rows.add(slots)

    def remove(self, slots: IntArray) -> None:
        if len(slots) == 1:
            self._rows.remove_one(slots.item())
        else:
            self._rows.remove(slots)

    def touch(self, slots: IntArray) -> None:
        pass

    def pick(self, n: int, rng: Rng, *, step: int | None = None, replace: bool = False) -> Picks:  # noqa: ARG002
        return Picks.even(self._rows.draw(n, rng, replace=replace), len(self))

    def total_weight(self, step: int | None) -> float:  # noqa: ARG002
        """Return the sum of all weights. O(1)."""
        return float(len(self))

    def slots(self) -> IntArray:
        return self._rows.all()

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:  # noqa: ARG002
        self.add(self._rows.in_order(slots))


class MixtureSelector(Selector):
    """A share of fresh rows (never sampled) in each batch, the rest replayed: two selectors over disjoint rows.

    Of n picks, floor(n x share) are fresh, and one more with the probability of the remainder. With too few fresh rows
    a pick raises WouldBlock; fresh rows replace missing replayed ones. Costs: those of the parts, plus O(1) a row.
    """

    def __init__(
        self, columns: Columns, role: Role, fresh_share: float, fresh: SelectorSpec, replay: SelectorSpec
    ) -> None:
        self._columns = columns
        self._share = fresh_share
        self._specs = (fresh, replay)
        self._fresh: Selector = fresh.build(columns, role)
        self._replay: Selector = replay.build(columns, role)
        self._is_fresh: set[int] = set()
        self._coin: float | None = None  # drawn once for each pick, and kept while the pick waits

    def __len__(self) -> int:
        return len(self._fresh) + len(self._replay)

    def add(self, slots: IntArray) -> None:
        fresh = self._columns.uses[slots] == 0
        self._fresh.add(slots[fresh])
        self._is_fresh.update(slots[fresh].tolist())
        self._replay.add(slots[~fresh])

    def remove(self, slots: IntArray) -> None:
        fresh = self._held_as_fresh(slots)
        self._fresh.remove(slots[fresh])
        self._is_fresh.difference_update(slots[fresh].tolist())
        self._replay.remove(slots[~fresh])

    def touch(self, slots: IntArray) -> None:
        was, now = self._held_as_fresh(slots), self._columns.uses[slots] == 0
        self._fresh.touch(slots[was & now])
        self._replay.touch(slots[~was & ~now])
        moved = slots[was != now]
        self.remove(moved)
        self.add(moved)

    def can_pick(self, n: int, rng: Rng) -> bool:
        return len(self._fresh) >= self._fresh_count(n, rng) and len(self) >= n

    def pick(self, n: int, rng: Rng, *, step: int | None = None, replace: bool = False) -> Picks:
        fresh = self._fresh_count(n, rng)
        if len(self._fresh) < fresh:
            raise WouldBlock(f"{fresh} of {n} groups must be fresh, but only {len(self._fresh)} are")
        replayed = n - fresh if replace and len(self._replay) else min(n - fresh, len(self._replay))
        self._coin = None
        drawn = self._fresh.pick(n - replayed, rng, step=step)
        return Picks.joined([drawn, self._replay.pick(replayed, rng, step=step, replace=replace)])

    def tune(self, spec: Any) -> bool:
        """Use another share, and other parameters of the parts; return False if a part must be rebuilt."""
        parts = zip((self._fresh, self._replay), self._specs, (spec.fresh, spec.replay), strict=True)
        if not all(old == new or (isinstance(part, Tunable) and part.tune(new)) for part, old, new in parts):
            return False
        self._share, self._specs, self._coin = spec.fresh_share, (spec.fresh, spec.replay), None
        return True

    def slots(self) -> IntArray:
        return np.concatenate((self._fresh.slots(), self._replay.slots()))

    def state(self) -> Mapping[str, Any]:
        return {"coin": self._coin, "fresh": self._fresh.state(), "replay": self._replay.state()}

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:
        self._coin = None if state["coin"] is None else float(state["coin"])
        fresh = self._columns.uses[slots] == 0
        self._fresh.restore(state["fresh"], slots[fresh])
        self._replay.restore(state["replay"], slots[~fresh])
        self._is_fresh = set(slots[fresh].tolist())

    def _fresh_count(self, n: int, rng: Rng) -> int:
        if self._coin is None:
            self._coin = rng.random()
        whole = int(n * self._share)
        return whole + (self._coin < n * self._share - whole)

    def _held_as_fresh(self, slots: IntArray) -> BoolArray:
        return np.fromiter((slot in self._is_fresh for slot in slots.tolist()), np.bool_, len(slots))
