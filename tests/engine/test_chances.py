"""Random selectors draw by the chances that they promise: sequences of distinct draws against exact probabilities."""

from collections import Counter

import pytest

from engine.chances import Rows, assert_drawn_by, assert_fits, ordered_draws
from reroll import Fifo, Mixture, Prioritized, Table, Uniform
from reroll.errors import WouldBlock

pytestmark = pytest.mark.usefixtures("trees")

HEAVY = [99.0, 0.4, 0.3, 0.2, 0.1]  # one holds 99 % of the mass
MIXED = [5.0, 1.0, 0.5, 2.0, 3.0]


def with_priorities(*priorities):
    return [{"priority": priority} for priority in priorities]


CASES = {
    "uniform": (Uniform(), with_priorities(*MIXED), [1] * 5),
    "uniform, all priorities zero": (Uniform(), with_priorities(0, 0, 0, 0, 0), [1] * 5),
    "prioritized": (Prioritized(), with_priorities(*MIXED), MIXED),
    "one holds nearly all": (Prioritized(), with_priorities(*HEAVY), HEAVY),
    "all zero": (Prioritized(), with_priorities(0, 0, 0, 0, 0), [1] * 5),
    "alpha": (Prioritized(alpha=0.5), with_priorities(*MIXED), [p**0.5 for p in MIXED]),
    "alpha of two": (Prioritized(alpha=2), with_priorities(*MIXED), [p**2 for p in MIXED]),
    "alpha of zero": (Prioritized(alpha=0), with_priorities(*MIXED), [1] * 5),
    "reuse": (
        Prioritized(reuse_decay=0.5),
        [{"priority": p, "uses": uses} for p, uses in zip(MIXED, (0, 1, 2, 3, 0), strict=True)],
        [5, 0.5, 0.125, 0.25, 3],
    ),
    "versions": (
        Prioritized(half_life=2),
        [{"priority": p, "version": v} for p, v in zip(MIXED, (9, 7, 9, 3, 6), strict=True)],
        [5, 0.5, 0.5, 0.25, 3 * 2**-1.5],
    ),
    "versions, and some without": (
        Prioritized(half_life=2),
        [
            {"priority": 5, "version": 9},
            {"priority": 1},
            {"priority": 4, "version": 5},
            {"priority": 2, "version": 3},
            {"priority": 0.5},
        ],
        [5, 1, 1, 0.25, 0.5],
    ),
    "everything at once": (
        Prioritized(alpha=2, half_life=1, reuse_decay=0.5),
        [
            {"priority": 2, "version": 8, "uses": 1},
            {"priority": 1, "uses": 1},
            {"priority": 3, "version": 9, "uses": 3},
            {"priority": 2},
            {"priority": 1, "version": 7},
        ],
        [1.0, 0.5, 9 / 8, 4, 0.25],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_first_pick(case):
    spec, rows, weights = CASES[case]
    assert_drawn_by(weights, Rows(spec, rows, seed=11, step=10).order, 1, rounds=4_000)


@pytest.mark.parametrize("case", CASES)
def test_distinct_picks_and_who_is_among_them(case):
    spec, rows, weights = CASES[case]
    world = Rows(spec, rows, seed=12, step=10)
    sequences = Counter(world.order(3) for _ in range(4_000))
    expected = ordered_draws(weights, 3)
    assert_fits(sequences, expected)
    sets, expected_sets = Counter(), Counter()
    for counts, total in ((sequences, sets), (expected, expected_sets)):
        for sequence, count in counts.items():
            total[frozenset(sequence)] += count
    assert_fits(sets, expected_sets)


@pytest.mark.parametrize("case", CASES)
def test_with_replacement(case):
    spec, rows, weights = CASES[case]
    world = Rows(spec, rows, seed=13, step=10)
    total = sum(weights)
    assert_fits(
        Counter(index for _ in range(200) for index in world.order(40, replace=True)),
        {index: weight / total for index, weight in enumerate(weights)},
    )


@pytest.mark.parametrize("case", CASES)
def test_probabilities_are_shares_of_the_weights(case):
    spec, rows, weights = CASES[case]
    shares = [weight / sum(weights) for weight in weights]
    assert Rows(spec, rows, step=10).probabilities() == pytest.approx(shares, rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_draws_after_updates_and_deletes(case):
    """Others came and went, and every row was something else before: nothing of that may be left."""
    spec, rows, weights = CASES[case]
    noise = [{"priority": 7.0, "uses": 2, **({"version": 9} if i % 2 else {})} for i in range(40)]
    world = Rows(spec, [], seed=14, step=10)
    for row, other in zip(rows, noise, strict=False):
        world.add({**row, "priority": 50.0, "uses": 1})
        world.add(other)
    for other in noise[5:]:
        world.add(other)
    for index in range(5):
        world.update(2 * index, priority=rows[index]["priority"], uses=rows[index].get("uses", 0))
        world.order(2)
    world.remove(1, 3, 5)
    world.remove(*range(10, 45))
    world.remove(9, 7)
    assert_drawn_by(weights, lambda n: tuple(index // 2 for index in world.order(n)), 2, rounds=4_000)


def test_deleted_rows_are_never_drawn():
    world = Rows(Prioritized(), with_priorities(1, 1e9, 1, 0, 5), seed=1)
    world.remove(1, 3)
    for n in (1, 2, 5):
        assert all({1, 3}.isdisjoint(world.order(n)) for _ in range(300))


def test_rows_of_weight_zero_come_last_and_uniformly():
    world = Rows(Prioritized(), with_priorities(0, 3, 0, 1, 0), seed=2)
    rest = Counter()
    for _ in range(6_000):
        order = world.order(4)
        assert set(order[:2]) == {1, 3}
        rest[order[2:]] += 1
    assert_fits(rest, ordered_draws([1, 0, 1, 0, 1], 2))


def test_rows_of_weight_zero_have_probability_zero_and_the_largest_weight():
    world = Rows(Prioritized(beta=0.5), with_priorities(0, 3, 0, 1), seed=3)
    picks = world.pick(4)
    assert sorted(picks.probability.tolist()) == [0, 0, 0.25, 0.75]
    assert picks.probability[2:].tolist() == [0, 0]
    assert picks.weights()[2:].tolist() == [1, 1]
    assert picks.weights().min() == pytest.approx((4 * 0.75) ** -0.5 / (4 * 0.25) ** -0.5)


def test_all_zero_is_uniform_with_probability_one_nth():
    picks = Rows(Prioritized(), with_priorities(0, 0, 0, 0)).pick(3)
    assert picks.probability.tolist() == [0.25] * 3
    assert picks.weights().tolist() == [1] * 3


@pytest.mark.parametrize("beta", [0, 0.4, 1, 3])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_importance_weights_are_by_definition(beta, n):
    world = Rows(Prioritized(beta=beta), with_priorities(*MIXED), seed=4)
    for _ in range(20):
        picks = world.pick(n)
        raw = (5 * picks.probability) ** -float(beta)
        assert picks.weights() == pytest.approx(raw / raw.max(), rel=1e-12)


def test_importance_weights_survive_extreme_priorities():
    picks = Rows(Prioritized(), with_priorities(1e-290, 1e190, 5e-324, 1.0), seed=5).pick(4)
    weights = picks.weights()
    assert weights.max() == 1
    assert (weights >= 0).all()


@pytest.mark.parametrize("giant", [{"version": 9}, {}], ids=["ageing", "lasting"])
def test_a_giant_leaves_the_others_their_chances(giant):
    """Once the giant is drawn, the rest is drawn by weight, although the giant was 10^17 times all of them."""
    rows = [{"priority": 1e17, **giant}, *({"priority": 1.0, "version": 9} for _ in range(3))]
    rows += [{"priority": 1.0} for _ in range(3)]
    world = Rows(Prioritized(half_life=1), rows, seed=6, step=10)
    seconds = Counter()
    for _ in range(3_000):
        first, second = world.order(2)
        assert first == 0
        seconds[second] += 1
    assert_fits(seconds, dict.fromkeys(range(1, 7), 1 / 6))


# --- half-life


@pytest.mark.parametrize("half_life", [1, 0.5, 30])
def test_thousands_of_versions_keep_the_ratios_exact(half_life):
    world = Rows(Prioritized(half_life=half_life), [], seed=7)
    window = 20
    for version in range(0, 5_000, 7):
        world.step = version + 1
        world.add({"priority": 1.0 + version % 3, "version": version})
        if len(world.slots) > window:
            world.remove(len(world.slots) - window - 1)
        if version % 250 == 0 or version > 4_980:
            first = max(0, len(world.slots) - window)
            versions = [7 * index for index in range(first, len(world.slots))]
            weights = [(1.0 + v % 3) * 2 ** ((v - version) / half_life) for v in versions]
            shares = [weight / sum(weights) for weight in weights]
            assert world.probabilities()[first:] == pytest.approx(shares, rel=1e-9)


@pytest.mark.parametrize(("newest", "has_ratios"), [(900, True), (5_000, False)])
def test_old_rows_stay_when_new_ones_leave(newest, has_ratios):
    """Within 900 half-lives old rows keep their ratios; beyond, their weights are clamped, and none is ever lost."""
    world = Rows(Prioritized(half_life=1), [{"version": 0}, {"version": 1}, {"version": 3}], seed=8, step=4)
    before = world.probabilities()
    assert before == pytest.approx([1 / 11, 2 / 11, 8 / 11])
    world.step = newest + 1
    world.add({"version": newest})
    assert world.order(1) == (3,)
    world.remove(3)
    assert world.probabilities()[:3] == pytest.approx(before if has_ratios else [1 / 3] * 3)


def test_without_versions_nothing_decays():
    world = Rows(Prioritized(half_life=1), with_priorities(1, 3), step=5_000)
    assert world.probabilities() == [0.25, 0.75]


def test_a_priority_update_sets_the_signal_and_decay_stays():
    world = Rows(Prioritized(half_life=1), [{"version": 9}, {"version": 7}, {}], step=10)
    world.update(1, priority=4.0)
    assert world.probabilities() == pytest.approx([1 / 3] * 3)
    world.step = 11
    assert world.probabilities() == pytest.approx([0.25, 0.25, 0.5])


# --- mixture


def mixed(share, unused, used, **parts):
    rows = [{"uses": 0}] * unused + [{"uses": 1, "priority": 1.0 + i} for i in range(used)]
    return Rows(Mixture(share, **parts), rows, seed=9, step=1)


@pytest.mark.parametrize(
    ("share", "n", "whole", "rest"), [(0.3, 5, 1, 0.5), (0.25, 3, 0, 0.75), (0.5, 4, 2, 0)]
)
def test_share_of_fresh_rows(share, n, whole, rest):
    world = mixed(share, 10, 10)
    counts = Counter(sum(index < 10 for index in world.order(n)) for _ in range(4_000))
    assert set(counts) == {whole} | ({whole + 1} if rest else set())
    assert_fits(counts, {whole: 1 - rest, whole + 1: rest})


def test_parts_of_a_mixture_draw_as_they_would_alone():
    world = mixed(0.5, 5, 4, fresh=Fifo(), replay=Prioritized())
    assert_drawn_by([1, 2, 3, 4], lambda n: tuple(i - 5 for i in world.order(2 * n) if i >= 5), 2)
    assert sorted(i for i in world.order(4) if i < 5) == [0, 1]
    uniform = mixed(0.5, 4, 5, fresh=Uniform())
    assert_drawn_by([1, 1, 1, 1], lambda n: tuple(i for i in uniform.order(2 * n) if i < 4), 2)


def test_probabilities_in_a_mixture_are_those_of_the_part():
    world = mixed(0.5, 3, 4)
    picks = world.pick(4)
    chances = dict(zip(picks.slots.tolist(), picks.probability.tolist(), strict=True))
    for index, slot in enumerate(world.slots):
        if slot in chances:
            assert chances[slot] == pytest.approx(1 if index < 3 else (index - 2) / 10)


def test_an_unfilled_fresh_part_waits():
    world = mixed(0.5, 1, 10)
    assert not world.selector.can_pick(4, world.rng)
    for _ in range(3):
        with pytest.raises(WouldBlock, match="fresh"):
            world.pick(4)
    world.add({"uses": 0})
    assert len(world.order(4)) == 4


def test_what_was_tossed_for_a_pick_that_waits_still_counts_when_it_goes_on():
    counts = Counter()
    world = mixed(0.5, 0, 10)
    for _ in range(2_000):
        try:
            picked = world.order(1)
        except WouldBlock:
            world.add({"uses": 0})
            picked = world.order(1)
            assert picked == (len(world.slots) - 1,)
            world.remove(len(world.slots) - 1)
        counts[picked[0] >= 10] += 1
    assert_fits(counts, {True: 0.5, False: 0.5})


def test_an_unfilled_replay_part_is_given_from_fresh():
    assert sorted(mixed(0.5, 10, 1).order(4)) == [0, 1, 2, 10]
    assert sorted(mixed(0.0, 10, 0).order(4)) == [0, 1, 2, 3]


def test_what_is_used_moves_from_fresh_to_replay():
    world = mixed(1.0, 2, 0)
    assert world.order(1) == (0,)
    world.update(0, uses=1)
    assert world.order(1) == (1,)
    world.update(1, uses=1)
    with pytest.raises(WouldBlock):
        world.pick(1)
    world.update(0, uses=0)
    assert world.order(1) == (0,)


# --- through a table


@pytest.mark.parametrize("priorities", [MIXED, HEAVY, [0.0] * 5], ids=["mixed", "heavy", "all zero"])
def test_draws_of_a_table(priorities):
    table = Table(5, Prioritized(), Fifo(), None, seed=21)
    for key in range(20):
        table.insert(key % 7, key % 7, priority=1 + key)
    table.reset()
    for key, priority in enumerate(priorities):
        table.insert(key, key, priority)
    weights = priorities if any(priorities) else [1] * 5
    assert_drawn_by(weights, lambda n: tuple(table.sample(n)), 2, rounds=2_500)
