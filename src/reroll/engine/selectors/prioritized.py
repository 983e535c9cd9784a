"""Draws in proportion to weight = priority^alpha x 2^(-age / half_life) x reuse_decay^uses.

Age is in policy versions. As versions pass, all rows with a version lose the same factor and their ratios stay, so nothing
is rewritten: a tree stores their weights as of a reference version. Rows without a version do not decay; they have a
tree of their own, and a draw brings only the sums of both trees to the same version. Rows of weight zero come last,
uniformly.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from reroll.engine.rows import NO_ROWS, NO_VERSION, BoolArray, Columns, FloatArray, IntArray
from reroll.engine.selectors.random import DenseSet
from reroll.engine.selectors.selector import Picks, Role
from reroll.engine.selectors.tree import weight_tree

# Together these keep the sum of a billion weights finite, and every weight a normal number.
_LARGEST: Final = 1e200
"""Larger weights are clamped to this, before ageing."""
_SMALLEST: Final = 1e-290
"""Smaller positive weights of ageing rows are clamped to this: some 960 half-lives after the reference version."""
_LARGEST_EXPONENT: Final = 256
"""After this many half-lives a new reference version is set, and all weights are rescaled."""
_RAREST: Final = float(np.finfo(np.float64).tiny)
"""Smaller probabilities are clamped to this before their logarithm is taken."""


class WeightedSet:
    """Rows with positive weights. set, remove, draw: O(log n) a row; about 32 bytes a row."""

    def __init__(self, columns: Columns, role: Role) -> None:
        self._rows = DenseSet(columns, role)
        self._tree = weight_tree()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def total(self) -> float:
        return self._tree.total

    def holds(self, slots: IntArray) -> BoolArray:
        return self._rows.holds(slots)

    def add(self, slots: IntArray, weights: FloatArray) -> None:
        if len(slots):
            self._tree.set(self._rows.add(slots), weights)

    def set(self, slots: IntArray, weights: FloatArray) -> None:
        if not len(slots):
            return
        positions = self._rows.positions(slots)
        # Without reuse decay a use changes no weight.
        if np.count_nonzero(self._tree.get(positions) != weights):
            self._tree.set(positions, weights)

    def remove(self, slots: IntArray) -> None:
        if len(slots) == 1:
            hole, end = self._rows.remove_one(slots.item())
            last = np.array([end])
            if hole == end:
                self._tree.set(last, np.zeros(1))
            else:
                self._tree.set(np.array([hole, end]), np.array([self._tree.get(last).item(), 0.0]))
        elif len(slots):
            filled = self._rows.remove(slots)
            empty = np.arange(filled.end, filled.end + len(slots))
            self._tree.set(
                np.concatenate((filled.holes, empty)),
                np.concatenate((self._tree.get(filled.sources), np.zeros(len(slots)))),
            )

    def draw(self, n: int, rng: np.random.Generator, *, replace: bool) -> tuple[IntArray, FloatArray]:
        """Draw n rows, distinct unless `replace`; return their slots and weights."""
        if n == 0 or not len(self):
            return NO_ROWS, NO_ROWS.astype(float)
        positions = self._tree.draw(rng.random(n)) if replace else self._tree.draw_distinct(n, rng)
        return self._rows.at(positions), self._tree.get(positions)

    def rest(self, slots: IntArray) -> float:
        """Return the sum of all weights but these."""
        weights = self._tree.get(self._rows.positions(slots))
        self.set(slots, np.zeros(len(slots)))
        rest = self.total
        self.set(slots, weights)
        return rest

    def all(self) -> IntArray:
        return self._rows.all()

    @property
    def capacity(self) -> int:
        """The rows that fit without growing; the last bits of sums depend on it."""
        return self._tree.capacity

    def reserve(self, capacity: int) -> None:
        self._tree.reserve(capacity)


class PrioritizedSelector:
    """add, remove, touch, pick: O(log n) a row, whatever the weights; rescaling: O(n), every 256 half-lives."""

    by_chance = True  # may draw a row more than once with `replace`

    def __init__(
        self,
        columns: Columns,
        role: Role,
        *,
        alpha: float,
        beta: float,
        half_life: float | None,
        reuse_decay: float,
    ) -> None:
        self._columns = columns
        self._alpha, self._beta = alpha, beta
        self._half_life, self._reuse_decay = half_life, float(reuse_decay)
        self._may_overflow = alpha > 1 or reuse_decay > 1
        self._ageing = WeightedSet(columns, role)  # empty without half_life
        self._lasting = WeightedSet(columns, role)
        self._zero = DenseSet(columns, role)
        self._reference: int | None = None
        self._newest = NO_VERSION

    def __len__(self) -> int:
        return len(self._ageing) + len(self._lasting) + len(self._zero)

    def add(self, slots: IntArray) -> None:
        weights, ageing = self._weigh(slots)
        positive = weights > 0
        if positive.all() and not ageing.any():  # the usual case, without the cost of splitting
            self._lasting.add(slots, weights)
            return
        for part, chosen in ((self._ageing, positive & ageing), (self._lasting, positive & ~ageing)):
            part.add(slots[chosen], weights[chosen])
        self._zero.add(slots[~positive])

    def remove(self, slots: IntArray) -> None:
        if len(self) == len(self._lasting):
            self._lasting.remove(slots)
            return
        for part in (self._ageing, self._lasting, self._zero):
            part.remove(slots[part.holds(slots)])

    def touch(self, slots: IntArray) -> None:
        weights, ageing = self._weigh(slots)
        positive = weights > 0
        if self._half_life is None and len(self) == len(self._lasting) and positive.all():
            self._lasting.set(slots, weights)  # the usual case, without the cost of splitting
            return
        done = np.zeros(len(slots), np.bool_)
        for part, belongs in ((self._ageing, positive & ageing), (self._lasting, positive & ~ageing)):
            stays = belongs & part.holds(slots)
            part.set(slots[stays], weights[stays])
            done |= stays
        if not done.all():  # the weight became zero, or is no longer zero
            self.remove(slots[~done])
            self.add(slots[~done])

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:  # noqa: ARG002
        return len(self) >= n

    def pick(
        self, n: int, rng: np.random.Generator, *, step: int | None = None, replace: bool = False
    ) -> Picks:
        size = len(self)
        positive = len(self._ageing) + len(self._lasting)
        if positive == 0:
            slots = self._zero.draw(n if replace else min(n, size), rng, replace=replace)
            return Picks(slots, np.full(len(slots), 1 / max(size, 1)), np.zeros(len(slots)))
        wanted = n if replace else min(n, positive)
        slots, probability = self._draw(wanted, rng, step, replace)
        # A probability that underflowed to zero counts as the smallest number: its logarithm would be infinite.
        logs = np.log(size * np.maximum(probability, _RAREST))
        picks = Picks(slots, probability, -self._beta * logs)
        if wanted == n:
            return picks
        zero = self._zero.draw(min(n - wanted, len(self._zero)), rng)
        return Picks.joined([picks, Picks(zero, np.zeros(len(zero)), np.full(len(zero), np.nan))])

    def tune(self, spec: Any) -> bool:
        """Use another `beta`, on which no stored weight depends; return False if weights would change."""
        weighing = (spec.alpha, spec.half_life, float(spec.reuse_decay))
        if weighing != (self._alpha, self._half_life, self._reuse_decay):
            return False
        self._beta = spec.beta
        return True

    def total_weight(self, step: int | None) -> float:
        """Return the sum of all weights as of a training step. O(1)."""
        now = 0 if step is None else step - 1
        age = ((self._reference or 0) - now) / (self._half_life or 1)
        return self._lasting.total + (self._ageing.total * float(np.exp2(age)) if len(self._ageing) else 0.0)

    def slots(self) -> IntArray:
        return np.concatenate((self._ageing.all(), self._lasting.all(), self._zero.all()))

    def state(self) -> Mapping[str, Any]:
        return {
            "reference": self._reference,
            "newest": self._newest,
            "ageing_capacity": self._ageing.capacity,
            "lasting_capacity": self._lasting.capacity,
        }

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:
        self._reference = None if state["reference"] is None else int(state["reference"])
        self._newest = int(state["newest"])
        self._ageing.reserve(int(state["ageing_capacity"]))
        self._lasting.reserve(int(state["lasting_capacity"]))
        self.add(self._zero.in_order(slots))

    def _weigh(self, slots: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return the weights as of the reference version, and which rows age."""
        columns = self._columns
        weights: FloatArray = columns.priority[slots]
        with np.errstate(over="ignore") if self._may_overflow else nullcontext():  # clamped below
            if self._alpha != 1:
                weights **= self._alpha
            if self._reuse_decay != 1:
                weights *= self._reuse_decay ** columns.uses[slots]
        np.minimum(weights, _LARGEST, out=weights)
        if self._half_life is None:
            return weights, np.zeros(len(slots), np.bool_)
        versions = columns.version[slots]
        ageing = versions != NO_VERSION
        if ageing.any():
            self._renew_reference(int(versions[ageing].max()))
            since = versions[ageing] - (self._reference or 0)
            positive = ageing & (weights > 0)
            weights[ageing] *= np.exp2(np.maximum(since / self._half_life, -1e4))
            weights[positive] = np.maximum(weights[positive], _SMALLEST)
        return weights, ageing

    def _renew_reference(self, newest: int) -> None:
        """Rescale all weights, far before they overflow, once versions are far from the reference."""
        self._newest = max(self._newest, newest)
        if self._reference is None:
            self._reference = newest
        elif newest - self._reference > _LARGEST_EXPONENT * (self._half_life or 1):
            rows = self._ageing.all()
            self._ageing.remove(rows)
            self._reference = newest
            self.add(rows)

    def _draw(
        self, n: int, rng: np.random.Generator, step: int | None, replace: bool
    ) -> tuple[IntArray, FloatArray]:
        """Draw n rows of positive weight; return them and their probabilities."""
        for part, other in ((self._lasting, self._ageing), (self._ageing, self._lasting)):
            if not len(other):
                slots, weights = part.draw(n, rng, replace=replace)
                return slots, weights / part.total
        return self._draw_from_both(n, rng, step, replace)

    def _draw_from_both(
        self, n: int, rng: np.random.Generator, step: int | None, replace: bool
    ) -> tuple[IntArray, FloatArray]:
        """Draw from both trees as if they were one.

        Rows of each tree come in the order of draws from it alone; for each turn, the remaining weights choose the tree.
        """
        now = self._newest if step is None else step - 1
        parts = (self._ageing, self._lasting)
        age = ((self._reference or 0) - now) / (self._half_life or 1)
        # The smaller factor is below one and may underflow to zero; the larger never overflows.
        factors = (np.exp2(min(age, 0.0)), np.exp2(min(-age, 0.0)))
        total = sum(part.total * factor for part, factor in zip(parts, factors, strict=True))
        drawn, weights = [], []
        for part, factor in zip(parts, factors, strict=True):
            slots, own = part.draw(n if replace else min(n, len(part)), rng, replace=replace)
            drawn.append(slots)
            weights.append(own * factor)
        if replace:
            left = [np.full(n + 1, part.total * factor) for part, factor in zip(parts, factors, strict=True)]
        else:  # the remaining weight after each draw: sums, because differences would lose small weights
            left = [
                np.cumsum(np.append(part.rest(slots) * factor, own[::-1]))[::-1]
                for part, slots, own, factor in zip(parts, drawn, weights, factors, strict=True)
            ]
        taken = [0, 0]
        slots = np.empty(n, np.int64)
        probability = np.empty(n)
        for turn, chance in enumerate(rng.random(n).tolist()):
            rests = [float(left[which][taken[which]]) for which in (0, 1)]
            which = 0 if chance * (rests[0] + rests[1]) < rests[0] else 1
            if taken[which] == len(drawn[which]):  # rounding may leave a rest where no row is left
                which = 1 - which
            place = taken[which]
            slots[turn] = drawn[which][place]
            probability[turn] = weights[which][place] / total if total > 0 else 1 / n
            taken[which] += 1
        return slots, probability
