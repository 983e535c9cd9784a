"""A fixed share of fresh rows (never sampled) in each batch, the rest replayed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reroll.engine.columns import Columns, IntArray
from reroll.engine.selectors.selector import Picks, Role, Selector, SelectorSpec, Tunable
from reroll.errors import WouldBlock


class MixtureSelector:
    """Two selectors over disjoint rows; costs are theirs, plus O(1) a row.

    Of n picks, floor(n x share) are fresh, and one more with the probability of the rest. Too few fresh rows:
    WouldBlock. Too few replayed ones: fresh rows stand in.
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
        self._coin: float | None = None  # drawn once for each pick, kept while the pick has to wait

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

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:
        return len(self._fresh) >= self._fresh_count(n, rng) and len(self) >= n

    def pick(
        self, n: int, rng: np.random.Generator, *, step: int | None = None, replace: bool = False
    ) -> Picks:
        fresh = self._fresh_count(n, rng)
        if len(self._fresh) < fresh:
            raise WouldBlock(f"{fresh} of {n} groups must be fresh, but only {len(self._fresh)} are")
        replayed = n - fresh if replace and len(self._replay) else min(n - fresh, len(self._replay))
        self._coin = None
        return Picks.joined(
            [
                self._fresh.pick(n - replayed, rng, step=step),
                self._replay.pick(replayed, rng, step=step, replace=replace),
            ]
        )

    def tune(self, spec: Any) -> bool:
        """Take over the share, and parameters of the parts that those can take over; False where one cannot."""
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

    def _fresh_count(self, n: int, rng: np.random.Generator) -> int:
        if self._coin is None:
            self._coin = rng.random()
        whole = int(n * self._share)
        return whole + (self._coin < n * self._share - whole)

    def _held_as_fresh(self, slots: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.fromiter((slot in self._is_fresh for slot in slots.tolist()), np.bool_, len(slots))
