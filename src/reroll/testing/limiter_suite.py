"""LimiterSuite: what every rate limiter holds to."""

import random
from collections.abc import Iterator
from copy import copy
from itertools import pairwise

import pytest

from reroll.engine.limits import Counters, Limiter, Unlimited, limiter_of
from reroll.engine.selectors.specs import Uniform
from reroll.table import Table

_SEEDS = pytest.mark.parametrize("seed", range(5))


class LimiterSuite:
    """Subclass as `class TestMine(LimiterSuite): limiter = Mine(...)`; pytest runs the rest.

    A limiter that is not described by its `window` alone sets `is_windowed = False`.
    """

    limiter: Limiter
    is_windowed = True

    @_SEEDS
    def test_asking_changes_nothing(self, seed: int) -> None:
        for counters in self._walk(seed):
            before = copy(counters)
            answers = [self._ask(counters, k) for k in (1, 2, 5)]
            assert [self._ask(counters, k) for k in (1, 2, 5)] == answers
            assert counters == before

    @_SEEDS
    def test_agrees_with_the_inequalities(self, seed: int) -> None:
        if not self.is_windowed:
            pytest.skip("the limiter is more than a window")
        spi, min_size, min_diff, max_diff = self.limiter.window
        for c in self._walk(seed):
            size = c.inserts - c.deletes
            for k in (1, 2, 3, 7):
                may_insert = size + k <= min_size or (c.inserts + k) * spi - c.samples <= max_diff
                may_sample = size >= min_size and c.inserts * spi - c.samples - k >= min_diff
                assert self._ask(c, k) == (may_insert, may_sample), (c, k)

    @_SEEDS
    def test_someone_can_always_go_on(self, seed: int) -> None:
        for counters in self._walk(seed):
            assert any(self._ask(counters, 1)), f"inserts and samples wait for each other: {counters}"

    @_SEEDS
    def test_who_may_do_many_may_do_few(self, seed: int) -> None:
        for counters in self._walk(seed):
            answers = [self._ask(counters, k) for k in (1, 2, 3, 4, 8)]
            for fewer, more in pairwise(answers):
                assert all(few or not many for few, many in zip(fewer, more, strict=True))

    def test_both_sides_get_their_turn(self) -> None:
        walked = list(self._walk(0))
        assert walked[-1].inserts > walked[0].inserts
        assert walked[-1].samples > walked[0].samples

    def test_replacing_the_rule_keeps_the_counters(self) -> None:
        table = Table(100, Uniform(), Uniform(), None, self.limiter, seed=0)
        key = 0
        while table.can_insert(1) and key < 10:
            table.insert(key, None)
            key += 1
        before = table.info
        table.rate_limiter = Unlimited()
        assert table.can_insert(1)
        assert table.can_sample(1)
        table.rate_limiter = self.limiter
        assert table.info == before

    def test_is_a_limiter(self) -> None:
        assert limiter_of(self.limiter) is self.limiter
        assert isinstance(self.limiter.type, str)
        assert hash(self.limiter) == hash(copy(self.limiter))
        assert self.limiter == copy(self.limiter)

    def _ask(self, counters: Counters, k: int) -> tuple[bool, bool]:
        return self.limiter.can_insert(counters, k), self.limiter.can_sample(counters, k)

    def _walk(self, seed: int, steps: int = 300) -> Iterator[Counters]:
        """Yield the counters as producers, a trainer and deletions take turns at random, each when allowed."""
        dice = random.Random(seed)
        counters = Counters()
        unused = 0
        for _ in range(steps):
            yield copy(counters)
            turn, k, size = dice.random(), dice.choice((1, 1, 2, 3)), counters.size
            if turn < 0.45 and self.limiter.can_insert(counters, 1):
                counters.inserts += 1
                unused += 1
            elif turn < 0.9 and 0 < k <= size and self.limiter.can_sample(counters, k):
                counters.samples += k
                unused -= min(unused, dice.randint(0, k))
            elif turn < 0.95 and unused:  # deleted before it was ever sampled: refunded
                counters.inserts -= 1
                unused -= 1
            elif turn > 0.95 and size > unused:
                counters.deletes += 1
