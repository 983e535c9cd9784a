"""Draws over shards are those from one buffer, and configurations are divided; no Ray is needed for this."""

import random
from collections import Counter

import pytest

from engine.chances import assert_fits, ordered_draws
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
from reroll.ray.dividing import divided, limiter_part
from reroll.ray.drawing import Drawn, by_count, by_weight, multinomial, shares_of, weighed

WEIGHTS = {"a": [5.0], "b": [1.0, 3.0], "c": [2.0, 0.5, 0.5]}


def drawn_by(weights: list[float], dice: random.Random) -> Drawn:
    """Draw all of a shard, one after the other, by weight."""
    left, infos = dict(enumerate(weights)), []
    while left:
        (chosen,) = dice.choices(list(left), list(left.values()))
        infos.append(SampleInfo(chosen, 1.0, left.pop(chosen) / sum(weights), 1.0, 0, 0, len(weights)))
    return Drawn(sum(weights), len(weights), 1.0, infos)


def test_draws_over_uneven_shards_are_those_from_one():
    dice, seen = random.Random(1), Counter()
    names = list(WEIGHTS)
    flat = [(name, place) for name in names for place in range(len(WEIGHTS[name]))]
    for _ in range(20_000):
        parts = [drawn_by(WEIGHTS[name], dice) for name in names]
        counts = by_weight(3, parts, dice)
        picks = [
            (name, info.uid)
            for name, part, n in zip(names, parts, counts, strict=True)
            for info in part.infos[:n]
        ]
        seen[frozenset(flat.index(pick) for pick in picks)] += 1
    weights = [weight for name in names for weight in WEIGHTS[name]]
    expected = Counter()
    for order, chance in ordered_draws(weights, 3).items():
        expected[frozenset(order)] += chance
    assert_fits(seen, expected)


def test_groups_without_weight_come_last():
    dice = random.Random(2)
    heavy = Drawn(2.0, 2, 1.0, [SampleInfo(uid, 1.0, 0.5, 1.0, 0, 0, 2) for uid in (1, 2)])
    none = Drawn(0.0, 1, 1.0, [SampleInfo(3, 0.0, 0.0, 1.0, 0, 0, 1)])
    assert by_weight(2, [none, heavy], dice) == [0, 2]
    assert by_weight(3, [none, heavy], dice) == [1, 2]
    assert by_weight(9, [none, heavy], dice) == [1, 2]


def test_groups_without_weight_have_the_same_chance_whatever_their_shard_had_beside_them():
    dice, seen = random.Random(4), Counter()
    zero = SampleInfo(1, 0.0, 0.0, 1.0, 0, 0, 1)
    both = Drawn(9.0, 10, 1.0, [*(SampleInfo(uid, 1.0, 1 / 9, 1.0, 0, 0, 10) for uid in range(2, 11)), zero])
    for _ in range(3_000):
        seen[by_weight(10, [both, Drawn(0.0, 1, 1.0, [zero])], dice)[1]] += 1
    assert_fits(seen, {0: 0.5, 1: 0.5})


def test_shares_are_of_the_weight_or_of_the_groups_where_nothing_has_a_weight():
    assert shares_of([(3.0, 1), (1.0, 5), (0.0, 2)]) == [0.75, 0.25, 0.0]
    assert shares_of([(0.0, 1), (0.0, 3), (0.0, 0)]) == [0.25, 0.75, 0.0]


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
    assert by_count(wanted, held, most) == given


def test_shards_are_drawn_from_by_weight_with_replacement():
    counts = multinomial(30_000, [1.0, 2.0, 3.0], random.Random(3))
    assert_fits(dict(enumerate(counts)), {0: 1 / 6, 1: 2 / 6, 2: 3 / 6})


def test_importance_weights_are_of_the_whole_batch():
    infos = [SampleInfo(uid, 1.0, chance, 9.9, 0, 0, 4) for uid, chance in ((1, 0.5), (2, 0.125), (3, 0.0))]
    assert [info.weight for info in weighed(infos, beta=1.0)] == [0.25, 1.0, 1.0]


def test_a_configuration_is_divided():
    config = ReplayBufferConfig(
        capacity=8,
        min_size=2,
        seed=5,
        max_bytes=301,
        store="somewhere",
        tasks={"a": TaskConfig(capacity=3, rate_limiter=Queue(7)), "b": TaskConfig(sampler=Fifo())},
    )
    parts = divided(config, 3)
    assert [part.capacity for part in parts] == [3, 3, 2]
    assert [part.min_size for part in parts] == [1, 1, 1]
    assert [part.max_bytes for part in parts] == [101, 100, 100]
    assert [part.for_task("a").capacity for part in parts] == [1, 1, 1]
    assert [part.for_task("a").rate_limiter for part in parts] == [Queue(3), Queue(2), Queue(2)]
    assert [part.for_task("b").capacity for part in parts] == [3, 3, 2]
    assert len({part.seed for part in parts}) == len({part.store for part in parts}) == 3
    assert divided(config, 1) == [config]


def test_limiters_are_divided():
    assert limiter_part(MinSize(7), 0, 3) == MinSize(3)
    assert limiter_part(StalenessWindow(2, 8), 1, 3) == StalenessWindow(2, 3)
    window = limiter_part(SampleToInsertRatio(2.0, 6, 30.0), 2, 3).window
    assert (window.spi, window.min_size, window.max_diff) == (2.0, 2, 14.0)


@pytest.mark.parametrize("options", [{"capacity": 2}, {"rate_limiter": Queue(2)}, {"max_bytes": 1}])
def test_what_cannot_be_divided_is_refused(options):
    with pytest.raises(InvalidConfig, match="divided among 3 shards"):
        divided(ReplayBufferConfig(**options), 3)
