"""Rows with a live selector, exact probabilities of draws, and a chi-square test."""

import itertools
import math
from collections import Counter

import numpy as np

from reroll.engine.rows import Columns


class Rows:
    """Rows by index, in real columns, with one selector."""

    def __init__(self, spec, rows, *, seed=0, step=None):
        self.columns = Columns()
        self.selector = spec.build(self.columns, "sampler")
        self.rng = np.random.default_rng(seed)
        self.step = step
        self.slots = []
        self.ticks = 0
        for row in rows:
            self.add(row)

    def add(self, row):
        self.ticks += 1
        own = {"uid": self.ticks, "timestamp": self.ticks, "touched": self.ticks}
        self.slots.append(self.columns.allocate({**own, **row}))
        self.selector.add(np.array(self.slots[-1:]))

    def remove(self, *indices):
        slots = np.array([self.slots[index] for index in indices])
        self.selector.remove(slots)
        self.columns.release(slots)

    def update(self, index, **values):
        for name, value in values.items():
            getattr(self.columns, name)[self.slots[index]] = value
        self.selector.touch(np.array([self.slots[index]]))

    def pick(self, n, **kwargs):
        return self.selector.pick(n, self.rng, step=self.step, **kwargs)

    def order(self, n, **kwargs):
        """Return the indices that were picked, in order."""
        index_of = {slot: index for index, slot in enumerate(self.slots)}
        return tuple(index_of[slot] for slot in self.pick(n, **kwargs).slots.tolist())

    def probabilities(self):
        """Return the probability that each row has now, by index; every row is picked to learn it."""
        picks = self.pick(len(self.selector))
        chance_of = dict(zip(picks.slots.tolist(), picks.probability.tolist(), strict=True))
        return [chance_of.get(slot) for slot in self.slots]


def ordered_draws(weights, n):
    """Return the exact probability of each sequence of n distinct indices, drawn by weight one after the other."""
    result = {}
    for sequence in itertools.permutations(range(len(weights)), n):
        chance, left = 1.0, math.fsum(weights)
        for index in sequence:
            chance *= weights[index] / left if left > 0 else 0.0
            left = math.fsum(
                w for other, w in enumerate(weights) if other not in sequence[: sequence.index(index) + 1]
            )
        if chance > 0:
            result[sequence] = chance
    return result


def assert_drawn_by(weights, draw, n=1, rounds=4_000):
    """Draw many times and compare the sequences with their exact probabilities."""
    expected = ordered_draws(weights, n)
    observed = Counter(draw(n) for _ in range(rounds))
    assert set(observed) <= set(expected), f"impossible: {set(observed) - set(expected)}"
    assert_fits(observed, expected)


def assert_fits(observed, expected):
    """Chi-square of counts against probabilities; what is expected less than ten times counts as one outcome."""
    total = sum(observed.values())
    statistic, freedom, rare_seen, rare_expected = 0.0, -1, 0, 0.0
    for outcome, chance in expected.items():
        if total * chance < 10:
            rare_seen += observed[outcome]
            rare_expected += total * chance
        else:
            statistic += (observed[outcome] - total * chance) ** 2 / (total * chance)
            freedom += 1
    if rare_expected > 1:
        statistic += (rare_seen - rare_expected) ** 2 / rare_expected
        freedom += 1
    assert statistic < critical(freedom), (statistic, freedom, observed)


def critical(freedom):
    """Return a bound that chi-square exceeds less than once in a hundred thousand (Wilson and Hilferty)."""
    part = 2 / (9 * max(freedom, 1))
    return max(freedom, 1) * (1 - part + 4.4 * math.sqrt(part)) ** 3
