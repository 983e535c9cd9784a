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
from reroll.engine.selectors.selector import Picks, Rng, Role, Selector
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
        self.rows = DenseSet(columns, role)
        self.tree = weight_tree()  # by position in `rows`

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> float:
        return self.tree.total

    def add(self, slots: IntArray, weights: FloatArray) -> None:
        if len(slots):
            self.tree.set(self.rows.add(slots), weights)

    def set(self, slots: IntArray, weights: FloatArray) -> None:
        positions = self.rows.positions(slots)
        # Without reuse decay a use changes no weight.
        if np.count_nonzero(self.tree.get(positions) != weights):
            self.tree.set(positions, weights)

    def remove(self, slots: IntArray) -> None:
        if len(slots) == 1:  # where the row was the last one, the second weight overwrites the first
            hole, end = self.rows.remove_one(slots.item())
            self.tree.set(np.array([hole, end]), np.array([self.tree.get(np.array([end])).item(), 0.0]))
        elif len(slots):
            sources, holes = self.rows.remove(slots)
            empty = np.arange(len(self), len(self) + len(slots))
            weights = np.concatenate((self.tree.get(sources), np.zeros(len(slots))))
            self.tree.set(np.concatenate((holes, empty)), weights)

    def draw(self, n: int, rng: Rng, *, replace: bool) -> tuple[IntArray, FloatArray]:
        """Draw n rows, distinct unless `replace`; return their slots and weights."""
        if n == 0 or not len(self):
            return NO_ROWS, NO_ROWS.astype(float)
        positions = self.tree.draw(rng.random(n)) if replace else self.tree.draw_distinct(n, rng)
        return self.rows.at(positions), self.tree.get(positions)

    def rest(self, slots: IntArray) -> float:
        """Return the sum of all weights but these."""
        weights = self.tree.get(self.rows.positions(slots))
        self.set(slots, np.zeros(len(slots)))
        rest = self.total
        self.set(slots, weights)
        return rest


class PrioritizedSelector(Selector):
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
        for part in (self._ageing, self._lasting):
            part.remove(slots[part.rows.holds(slots)])
        self._zero.remove(slots[self._zero.holds(slots)])

    def touch(self, slots: IntArray) -> None:
        weights, ageing = self._weigh(slots)
        positive = weights > 0
        if self._half_life is None and len(self) == len(self._lasting) and positive.all():
            self._lasting.set(slots, weights)  # the usual case, without the cost of splitting
            return
        done = np.zeros(len(slots), np.bool_)
        for part, belongs in ((self._ageing, positive & ageing), (self._lasting, positive & ~ageing)):
            stays = belongs & part.rows.holds(slots)
            part.set(slots[stays], weights[stays])
            done |= stays
        if not done.all():  # the weight became zero, or is no longer zero
            self.remove(slots[~done])
            self.add(slots[~done])

    def pick(self, n: int, rng: Rng, *, step: int | None = None, replace: bool = False) -> Picks:
        size = len(self)
        positive = size - len(self._zero)
        if positive == 0:
            return Picks.even(self._zero.draw(n, rng, replace=replace), size)
        wanted = n if replace else min(n, positive)
        slots, probability = self._draw(wanted, rng, step, replace)
        # A probability that underflowed to zero counts as the smallest number: its logarithm would be infinite.
        logs = np.log(size * np.maximum(probability, _RAREST))
        picks = Picks(slots, probability, -self._beta * logs)
        if wanted == n:
            return picks
        zero = self._zero.draw(n - wanted, rng)
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
        return np.concatenate((self._ageing.rows.all(), self._lasting.rows.all(), self._zero.all()))

    def state(self) -> Mapping[str, Any]:
        return {
            "reference": self._reference,
            "newest": self._newest,
            # The last bits of sums depend on the capacities.
            "ageing_capacity": self._ageing.tree.capacity,
            "lasting_capacity": self._lasting.tree.capacity,
        }

    def restore(self, state: Mapping[str, Any], slots: IntArray) -> None:
        self._reference = None if state["reference"] is None else int(state["reference"])
        self._newest = int(state["newest"])
        self._ageing.tree.reserve(int(state["ageing_capacity"]))
        self._lasting.tree.reserve(int(state["lasting_capacity"]))
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
            rows = self._ageing.rows.all()
            self._ageing.remove(rows)
            self._reference = newest
            self.add(rows)

    def _draw(self, n: int, rng: Rng, step: int | None, replace: bool) -> tuple[IntArray, FloatArray]:
        """Draw n rows of positive weight from both trees as if they were one; return them and their probabilities.

        Rows of each tree come in the order of draws from it alone; for each turn, the remaining weights choose the tree.
        """
        parts = (self._ageing, self._lasting)
        if not (len(parts[0]) and len(parts[1])):
            part = max(parts, key=len)
            slots, weights = part.draw(n, rng, replace=replace)
            return slots, weights / part.total
        now = self._newest if step is None else step - 1
        age = ((self._reference or 0) - now) / (self._half_life or 1)
        # The smaller factor is below one and may underflow to zero; the larger never overflows.
        factors = (np.exp2(min(age, 0.0)), np.exp2(min(-age, 0.0)))
        totals = [part.total * factor for part, factor in zip(parts, factors, strict=True)]
        drawn, own, left = [], [], []
        for part, factor, total in zip(parts, factors, totals, strict=True):
            slots, weights = part.draw(n if replace else min(n, len(part)), rng, replace=replace)
            drawn.append(slots.tolist())
            own.append((weights * factor).tolist())
            if replace:
                left.append(np.full(n + 1, total))
            else:  # the remaining weight after each draw: sums, because differences would lose small weights
                left.append(np.cumsum(np.append(part.rest(slots) * factor, own[-1][::-1]))[::-1])
        taken, picked, chances = [0, 0], [], []
        for turn in rng.random(n).tolist():
            rests = [float(left[which][taken[which]]) for which in (0, 1)]
            which = 0 if turn * (rests[0] + rests[1]) < rests[0] else 1
            if taken[which] == len(drawn[which]):  # rounding may leave a rest where no row is left
                which = 1 - which
            picked.append(drawn[which][taken[which]])
            chances.append(own[which][taken[which]])
            taken[which] += 1
        total = sum(totals)
        return np.array(picked, np.int64), np.array(chances) / total if total > 0 else np.full(n, 1 / n)
