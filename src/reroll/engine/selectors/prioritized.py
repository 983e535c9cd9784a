"""Chances in proportion to weight = priority^alpha x 2^(-age / half_life) x reuse_decay^uses.

Age is in policy versions. As time passes, all rows with a version lose the same factor, so their ratios stay, and
nothing is refreshed: what is stored is the weight as of a reference version. Rows without a version do not decay; they
have a tree of their own, and only the sums of both trees are brought to the same time.

Rows that became so old, compared with others, that their weight has no number any more are faint. They are picked only
when the rows in the trees do not suffice, by their ratios, which logarithms still tell. Rows of weight zero come last,
uniformly.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from reroll.engine.columns import NO_VERSION, BoolArray, Columns, FloatArray, IntArray
from reroll.engine.selectors.dense import DenseSet
from reroll.engine.selectors.selector import Picks, Role
from reroll.engine.selectors.tree import weight_tree

# Together these keep the sum of a billion weights finite.
_LARGEST: Final = 1e200
"""Weights saturate here, before ageing."""
_SMALLEST: Final = 1e-290
"""Below this a weight loses its digits: the row is faint."""
_LARGEST_EXPONENT: Final = 256
"""At this many half-lives after the reference version, a new reference is taken, and all weights are rescaled."""
_RAREST: Final = float(np.finfo(np.float64).tiny)
"""The smallest probability whose logarithm is told."""

_NONE: IntArray = np.zeros(0, np.int64)


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

    def weights(self, slots: IntArray) -> FloatArray:
        return self._tree.get(self._rows.positions(slots))

    def add(self, slots: IntArray, weights: FloatArray) -> None:
        if len(slots):
            self._tree.set(self._rows.add(slots), weights)

    def set(self, slots: IntArray, weights: FloatArray) -> None:
        if not len(slots):
            return
        positions = self._rows.positions(slots)
        if np.count_nonzero(
            self._tree.get(positions) != weights
        ):  # a use changes no weight without reuse decay
            self._tree.set(positions, weights)

    def remove(self, slots: IntArray) -> None:
        if not len(slots):
            return
        moves = self._rows.remove(slots)
        empty = np.arange(moves.end, moves.end + len(slots))
        self._tree.set(
            np.concatenate((moves.holes, empty)),
            np.concatenate((self._tree.get(moves.sources), np.zeros(len(slots)))),
        )

    def draw(self, n: int, rng: np.random.Generator, *, replace: bool) -> tuple[IntArray, FloatArray]:
        """Draw n rows, distinct unless `replace`; return their slots and weights."""
        if n == 0 or not len(self):
            return _NONE, _NONE.astype(float)
        positions = self._tree.draw(rng.random(n)) if replace else self._tree.draw_distinct(n, rng)
        return self._rows.at(positions), self._tree.get(positions)

    def rest(self, slots: IntArray) -> float:
        """Return the sum of all weights but these."""
        weights = self.weights(slots)
        self.set(slots, np.zeros(len(slots)))
        rest = self.total
        self.set(slots, weights)
        return rest

    def all(self) -> IntArray:
        return self._rows.all()

    @property
    def capacity(self) -> int:
        """For how many rows there is room; sums depend on it in their last bits."""
        return self._tree.capacity

    def reserve(self, capacity: int) -> None:
        self._tree.reserve(capacity)


class PrioritizedSelector:
    """add, remove, touch: O(log n) a row; pick: O(log n) a row, whatever the weights; rescaling: O(n), every 256
    half-lives.
    """

    by_chance = True  # may draw a row more than once, if asked to

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
        self._ageing = WeightedSet(columns, role)  # without half_life: nobody
        self._lasting = WeightedSet(columns, role)
        self._faint = DenseSet(columns, role)
        self._zero = DenseSet(columns, role)
        self._reference: int | None = None
        self._newest = NO_VERSION

    def __len__(self) -> int:
        return len(self._ageing) + len(self._lasting) + len(self._faint) + len(self._zero)

    def add(self, slots: IntArray) -> None:
        weights, ageing, faint = self._weigh(slots)
        positive = weights > 0
        if positive.all() and not ageing.any():  # the usual case, without the cost of splitting
            self._lasting.add(slots, weights)
            return
        for part, chosen in ((self._ageing, positive & ageing), (self._lasting, positive & ~ageing)):
            part.add(slots[chosen], weights[chosen])
        self._faint.add(slots[faint])
        self._zero.add(slots[~positive & ~faint])

    def remove(self, slots: IntArray) -> None:
        if len(self) == len(self._lasting):
            self._lasting.remove(slots)
            return
        for part in (self._ageing, self._lasting, self._faint, self._zero):
            part.remove(slots[part.holds(slots)])

    def touch(self, slots: IntArray) -> None:
        weights, ageing, _ = self._weigh(slots)
        if (
            self._half_life is None
            and len(self) == len(self._lasting)
            and np.count_nonzero(weights) == len(slots)
        ):
            self._lasting.set(slots, weights)  # the usual case, without the cost of splitting
            return
        positive = weights > 0
        settled = np.zeros(len(slots), np.bool_)
        for part, belongs in ((self._ageing, positive & ageing), (self._lasting, positive & ~ageing)):
            stays = belongs & part.holds(slots)
            part.set(slots[stays], weights[stays])
            settled |= stays
        if not settled.all():  # its weight became zero, or is no longer
            self.remove(slots[~settled])
            self.add(slots[~settled])

    def can_pick(self, n: int, rng: np.random.Generator) -> bool:  # noqa: ARG002
        return len(self) >= n

    def pick(
        self, n: int, rng: np.random.Generator, *, step: int | None = None, replace: bool = False
    ) -> Picks:
        size = len(self)
        positive = len(self._ageing) + len(self._lasting)
        if len(self._faint) and (positive == 0 or (positive < n and not replace)):
            return self._pick_with_faint(n, rng, step=step, replace=replace)
        if positive == 0:
            slots = self._zero.some(n if replace else min(n, size), rng, replace=replace)
            return Picks(slots, np.full(len(slots), 1 / max(size, 1)), np.zeros(len(slots)))
        wanted = n if replace else min(n, positive)
        slots, probability = self._draw(wanted, rng, step, replace)
        picks = Picks(slots, probability, self._log_importance(probability))
        return Picks.joined([picks, self._pick_zero(n - wanted, rng)]) if wanted < n else picks

    def tune(self, spec: Any) -> bool:
        """Take over `beta`, which no stored weight depends on; False where weights would change."""
        if (spec.alpha, spec.half_life, float(spec.reuse_decay)) != (
            self._alpha,
            self._half_life,
            self._reuse_decay,
        ):
            return False
        self._beta = spec.beta
        return True

    def total_weight(self, step: int | None) -> float:
        """Return the weight of all rows together, as of a training step. O(1); faint rows weigh nothing."""
        now = 0 if step is None else step - 1
        age = ((self._reference or 0) - now) / (self._half_life or 1)
        return self._lasting.total + (self._ageing.total * float(np.exp2(age)) if len(self._ageing) else 0.0)

    def slots(self) -> IntArray:
        return np.concatenate((self._ageing.all(), self._lasting.all(), self._faint.all(), self._zero.all()))

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

    def _pick_zero(self, n: int, rng: np.random.Generator) -> Picks:
        slots = self._zero.some(min(n, len(self._zero)), rng)
        return Picks(slots, np.zeros(len(slots)), np.full(len(slots), np.nan))

    def _pick_with_faint(self, n: int, rng: np.random.Generator, *, step: int | None, replace: bool) -> Picks:
        """Pick also from rows whose weights only their logarithms tell. O(faint rows); they are rarely reached."""
        positive = len(self._ageing) + len(self._lasting)
        first, probability = (
            self._draw(positive, rng, step, replace=False) if positive else (_NONE, _NONE.astype(float))
        )
        slots = self._faint.all()
        logs = self._log_weights(slots)
        chances = np.exp(logs - logs.max())
        chances /= chances.sum()
        if replace:
            chosen = rng.choice(len(slots), n, p=chances)
        else:  # adding Gumbel noise and taking the largest is drawing one after the other without replacement
            chosen = np.argsort(-(logs + rng.gumbel(size=len(slots))), kind="stable")[: n - positive]
        # Beside rows that are not faint, these have a chance that is too small for a number.
        faint = np.zeros(len(chosen)) if positive else chances[chosen]
        picked, probability = np.concatenate((first, slots[chosen])), np.concatenate((probability, faint))
        picks = Picks(picked, probability, self._log_importance(probability))
        return Picks.joined([picks, self._pick_zero(n - len(picked), rng)])

    def _log_importance(self, probability: FloatArray) -> FloatArray:
        # The logarithm of a probability that underflowed to zero would be infinite: as rare as a row can be.
        logs: FloatArray = np.log(len(self) * np.maximum(probability, _RAREST))
        return -self._beta * logs

    def _log_weights(self, slots: IntArray) -> FloatArray:
        columns = self._columns
        logs = self._alpha * np.log(columns.priority[slots])
        if self._reuse_decay != 1:
            logs += columns.uses[slots] * np.log(self._reuse_decay)
        decayed: FloatArray = logs + columns.version[slots] * (np.log(2) / (self._half_life or 1))
        return decayed

    def _weigh(self, slots: IntArray) -> tuple[FloatArray, BoolArray, BoolArray]:
        """Return the weights, as of the reference version, which rows age, and which of those are faint: 0 here."""
        columns = self._columns
        weights: FloatArray = columns.priority[slots]
        with np.errstate(over="ignore") if self._may_overflow else nullcontext():  # saturates
            if self._alpha != 1:
                weights **= self._alpha
            if self._reuse_decay != 1:
                weights *= self._reuse_decay ** columns.uses[slots]
        np.minimum(weights, _LARGEST, out=weights)
        if self._half_life is None:
            nobody = np.zeros(len(slots), np.bool_)
            return weights, nobody, nobody
        versions = columns.version[slots]
        ageing = versions != NO_VERSION
        if ageing.any():
            self._renew_reference(int(versions[ageing].max()))
            since = versions[ageing] - (self._reference or 0)
            before = weights > 0
            weights[ageing] *= np.exp2(np.maximum(since / self._half_life, -1e4))
            faint = before & ageing & (weights < _SMALLEST)
            weights[faint] = 0
            return weights, ageing, faint
        return weights, ageing, ageing

    def _renew_reference(self, newest: int) -> None:
        """Keep stored weights far from overflow: rescale all when versions have run away from the reference."""
        self._newest = max(self._newest, newest)
        if self._reference is None:
            self._reference = newest
        elif newest - self._reference > _LARGEST_EXPONENT * (self._half_life or 1):
            rows = self._ageing.all()
            self._ageing.remove(rows)
            self._reference = newest
            self.add(rows)  # some are faint from now on

    def _draw(
        self, n: int, rng: np.random.Generator, step: int | None, replace: bool
    ) -> tuple[IntArray, FloatArray]:
        """Draw n rows of positive weight and tell their probabilities."""
        for part, other in ((self._lasting, self._ageing), (self._ageing, self._lasting)):
            if not len(other):
                slots, weights = part.draw(n, rng, replace=replace)
                return slots, weights / part.total
        return self._draw_from_both(n, rng, step, replace)

    def _draw_from_both(
        self, n: int, rng: np.random.Generator, step: int | None, replace: bool
    ) -> tuple[IntArray, FloatArray]:
        """Draw from both trees as if they were one.

        Draws from each are in the order of drawing from it alone; at each turn the tree is chosen by what is left in it.
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
        else:  # what is left in a tree after each of its draws: sums, for differences would lose the small ones
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
