"""Shards: configurations are divided, and draws are split so that all shards together are like one buffer."""

import math
import random
from collections import Counter

import pytest

from engine.chances import assert_fits
from reroll import (
    Fifo,
    InvalidConfig,
    MinSize,
    Queue,
    ReplayBufferConfig,
    SampleInfo,
    SampleToInsertRatio,
    StalenessWindow,
    TaskConfig,
)
from reroll.remote.draws import shares_of, split, weigh
from reroll.remote.shard import Offer, ShardPlace, divide, divide_limiter


def offer(available: int, size: int, weight: float | None = None) -> Offer:
    return Offer(available, size, math.inf, weight, None, None, is_used_once=True)


@pytest.mark.parametrize(
    ("wanted", "held", "most", "given"),
    [
        (6, [10, 20, 30], [6, 6, 6], [1, 2, 3]),
        (4, [1, 1, 1], [1, 1, 1], [1, 1, 1]),
        (4, [100, 1, 1], [2, 1, 1], [2, 1, 1]),
        (1, [3, 5, 4], [1, 1, 1], [0, 1, 0]),
        (0, [3, 5], [0, 0], [0, 0]),
        (5, [0, 5], [0, 5], [0, 5]),
    ],
)
def test_shards_give_in_proportion_to_what_they_hold(wanted, held, most, given):
    offers = [offer(available, size) for available, size in zip(most, held, strict=True)]
    assert split(wanted, offers, random.random) == given


def test_random_draws_are_split_by_weight_on_average():
    dice, seen = random.Random(1), Counter()
    offers = [offer(9, 9, 1.0), offer(9, 9, 2.5), offer(9, 9, 3.5)]
    for _ in range(10_000):
        counts = split(2, offers, dice.random)
        assert sum(counts) == 2
        seen.update({index: count for index, count in enumerate(counts) if count})
    assert [round(seen[index] / 10_000, 1) for index in range(3)] == [0.3, 0.7, 1.0]


@pytest.mark.parametrize("seed", range(20))
def test_a_split_is_as_large_as_the_shards_allow(seed):
    dice = random.Random(seed)
    for _ in range(50):
        offers = [
            offer(most, dice.randint(most, 20), dice.choice([None, 0.0, dice.random()]))
            for most in (dice.randint(0, 5) for _ in range(4))
        ]
        wanted = dice.randint(0, 15)
        counts = split(wanted, offers, dice.random)
        assert sum(counts) == min(wanted, sum(each.available for each in offers))
        assert all(0 <= count <= each.available for count, each in zip(counts, offers, strict=True))


def test_shares_are_of_the_weight_or_of_the_groups_where_nothing_has_a_weight():
    assert shares_of([offer(1, 1, 3.0), offer(5, 5, 1.0), offer(2, 2, 0.0)]) == [0.75, 0.25, 0.0]
    assert shares_of([offer(1, 1, 0.0), offer(3, 3, 0.0), offer(0, 0, 0.0)]) == [0.25, 0.75, 0.0]


def test_one_group_is_drawn_from_each_shard_by_its_weight():
    dice, seen = random.Random(3), Counter()
    offers = [offer(1, 1, 1.0), offer(1, 1, 2.0), offer(1, 1, 3.0)]
    for _ in range(30_000):
        seen[split(1, offers, dice.random).index(1)] += 1
    assert_fits(seen, {0: 1 / 6, 1: 2 / 6, 2: 3 / 6})


def test_importance_weights_are_of_the_whole_batch():
    infos = [SampleInfo(uid, 1.0, chance, 9.9, 0, 0, 4) for uid, chance in ((1, 0.5), (2, 0.125), (3, 0.0))]
    assert [info.weight for info in weigh(infos, beta=1.0)] == [0.25, 1.0, 1.0]


def test_a_configuration_is_divided():
    config = ReplayBufferConfig(
        capacity=8,
        min_size=2,
        seed=5,
        max_bytes=301,
        store="somewhere",
        tasks={"a": TaskConfig(capacity=3, rate_limiter=Queue(7)), "b": TaskConfig(sampler=Fifo())},
    )
    parts = [divide(config, ShardPlace(index, 3)) for index in range(3)]
    assert [part.capacity for part in parts] == [3, 3, 2]
    assert [part.min_size for part in parts] == [1, 1, 1]
    assert [part.max_bytes for part in parts] == [101, 100, 100]
    assert [part.for_task("a").capacity for part in parts] == [1, 1, 1]
    assert [part.for_task("a").rate_limiter for part in parts] == [Queue(3), Queue(2), Queue(2)]
    assert [part.for_task("b").capacity for part in parts] == [3, 3, 2]
    assert len({part.seed for part in parts}) == len({part.store for part in parts}) == 3
    assert divide(config, ShardPlace()) == config


def test_limiters_are_divided():
    assert divide_limiter(MinSize(7), ShardPlace(0, 3)) == MinSize(3)
    assert divide_limiter(StalenessWindow(2, 8), ShardPlace(1, 3)) == StalenessWindow(2, 3)
    window = divide_limiter(SampleToInsertRatio(2.0, 6, 30.0), ShardPlace(2, 3)).window
    assert (window.spi, window.min_size, window.max_diff) == (2.0, 2, 14.0)


@pytest.mark.parametrize("options", [{"capacity": 2}, {"rate_limiter": Queue(2)}, {"max_bytes": 1}])
def test_what_cannot_be_divided_is_refused(options):
    with pytest.raises(InvalidConfig, match="divided among 3 shards"):
        divide(ReplayBufferConfig(**options), ShardPlace(2, 3))
