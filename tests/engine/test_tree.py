"""The sum tree, in both implementations, against lists and exact probabilities."""

import itertools
import math
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.engine.selectors import tree as module
from reroll.engine.selectors.tree import WeightTree, weight_tree
from reroll.errors import InvalidArgument

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs reroll[fast]")
IMPLEMENTATIONS = [pytest.param(False, id="numpy"), pytest.param(True, id="numba", marks=needs_numba)]
both = pytest.mark.parametrize("fast", IMPLEMENTATIONS)

TINIEST = 5e-324
# Around these sizes the tree is one flat level, then two, three, six and ten deep.
DEPTHS = [1, 64, 65, 2048, 2049, 4097, 65_536, 1_048_576]
# Integers up to 2^20 add without rounding in any order, so a list model knows every bit.
exact_weights = st.integers(0, 2**20).map(float)
any_weights = st.one_of(
    st.just(0.0),
    st.floats(TINIEST, 1e-300),
    st.floats(1e-3, 1e3),
    st.floats(1e190, 1e200),
)
positions = st.integers(0, 100_000)
batches = st.lists(
    st.dictionaries(positions, exact_weights, min_size=1, max_size=40),
    min_size=1,
    max_size=6,
)
uniforms = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30)


def filled(fast, weights):
    tree = weight_tree(fast)
    tree.set(np.arange(len(weights)), np.asarray(weights, dtype=float))
    return tree


def chi_square(observed, probabilities):
    expected = observed.sum() * probabilities
    return float(((observed - expected) ** 2 / expected).sum())


def far_tail(freedom):
    """A bound that chi-square exceeds about once in a million: mean plus six standard deviations."""
    return freedom + 6 * math.sqrt(2 * freedom)


def snapshot(tree):
    return tree.capacity, tree._nodes.tobytes(), tree.total


@both
@given(batches=batches)
def test_set_get_and_total_follow_a_dictionary(fast, batches):
    tree, model = weight_tree(fast), {}
    for batch in batches:
        tree.set(np.array(list(batch)), np.array(list(batch.values())))
        model.update(batch)
        assert tree.total == sum(model.values())
        assert tree.get(np.array(list(model))).tolist() == list(model.values())
        assert tree.capacity > max(model)
    assert tree.get(np.arange(tree.capacity)).sum() == tree.total


@both
@given(batches=batches, uniforms=uniforms)
def test_draw_lands_where_the_prefix_sum_first_exceeds_the_target(fast, batches, uniforms):
    model = {position: weight for batch in batches for position, weight in batch.items()}
    model[3] = 1.0  # never all zero
    tree = weight_tree(fast)
    for batch in batches:
        tree.set(np.array(list(batch)), np.array(list(batch.values())))
    tree.set(np.array([3]), np.ones(1))
    order = sorted(model)
    sums = list(itertools.accumulate(model[position] for position in order))
    expected = [
        next(p for p, s in zip(order, sums, strict=True) if s > uniform * sums[-1]) for uniform in uniforms
    ]
    assert tree.draw(np.array(uniforms)).tolist() == expected


@both
@pytest.mark.parametrize("size", DEPTHS)
def test_every_node_is_the_sum_of_its_children(fast, size):
    rng = np.random.default_rng(size)
    tree = weight_tree(fast)
    for some in np.array_split(rng.permutation(size), 7):  # grows in steps, and mixes large and small batches
        tree.set(some, rng.random(some.size) * 10.0 ** rng.integers(-5, 5, some.size))
    some = rng.integers(size, size=1)
    tree.set(some, np.array([0.5]))
    for below, level in itertools.pairwise(tree._levels):
        assert level.tolist() == [left + right for left, right in below.reshape(level.size, 2).tolist()]
    assert len(tree._levels[-1]) <= module.TOP
    assert tree.total == list(itertools.accumulate(tree._levels[-1].tolist()))[-1]
    assert np.isclose(tree.total, math.fsum(tree._levels[0]))


@both
@pytest.mark.parametrize("size", DEPTHS)
def test_growing_keeps_every_weight_and_agrees_with_a_tree_built_at_once(fast, size):
    rng = np.random.default_rng(size)
    weights = rng.random(size)
    at_once = filled(fast, weights)
    grown = weight_tree(fast)
    capacities = []
    start = 0
    for stop in sorted({1, 3, 64, 65, 1000, 2048, 2049, 30_000, 65_537, 500_000, size}):
        if stop <= size:
            grown.set(np.arange(start, stop), weights[start:stop])
            capacities.append(grown.capacity)
            start = stop
    assert snapshot(grown) == snapshot(at_once)
    assert grown.get(np.arange(size)).tolist() == weights.tolist()
    assert capacities == sorted(capacities)
    assert all(capacity.bit_count() == 1 for capacity in capacities)


@both
def test_growth_one_by_one_doubles(fast):
    tree = weight_tree(fast)
    capacities = []
    for position in range(10_000):
        tree.set(np.array([position]), np.array([1.0]))
        assert tree.capacity > position
        capacities.append(tree.capacity)
    assert sorted(set(capacities)) == [64 << i for i in range(9)]
    assert tree.total == 10_000


@both
def test_reserving_the_saved_capacity_restores_the_order_of_additions(fast):
    rng = np.random.default_rng(5)
    weights = rng.random(100)
    shrunk = filled(fast, rng.random(70_000))
    shrunk.set(np.arange(70_000), np.concatenate((weights, np.zeros(69_900))))
    again = weight_tree(fast)
    again.reserve(shrunk.capacity)
    again.set(np.arange(100), weights)
    assert snapshot(again) == snapshot(shrunk)
    again.reserve(10)
    assert again.capacity == shrunk.capacity


@both
def test_setting_the_old_weights_again_restores_every_bit(fast):
    rng = np.random.default_rng(7)
    tree = filled(fast, rng.random(70_000) * 10.0 ** rng.integers(-200, 200, 70_000))
    before = snapshot(tree)
    some = rng.choice(70_000, 300, replace=False)
    old = tree.get(some)
    tree.set(some, rng.random(300) * 1e250)
    assert snapshot(tree) != before
    tree.set(some, old)
    assert snapshot(tree) == before


@both
def test_swap_remove_moves_the_last_weight_into_the_hole(fast):
    tree = filled(fast, [1.0, 2.0, 4.0, 8.0])
    tree.set(np.array([1, 3]), np.array([8.0, 0.0]))
    assert tree.get(np.arange(4)).tolist() == [1.0, 8.0, 4.0, 0.0]
    assert tree.total == 13.0


@both
def test_a_small_change_computes_only_the_sums_above_it(fast):
    tree = filled(fast, np.ones(5000))
    for level in tree._levels[1:]:
        level[5] = -1.0  # nobody computes it anew
    tree.set(np.array([4999]), np.array([3.0]))
    assert [level[5] for level in tree._levels[1:]] == [-1.0, -1.0]
    tree.set(np.array([5 * 2]), np.array([1.0]))
    assert [level[5] for level in tree._levels[1:]] == [2.0, -1.0]


@both
def test_setting_one_position_or_none_is_setting_several(fast):
    weights = np.random.default_rng(9).random(5000)
    at_once, one_by_one = filled(fast, weights), filled(fast, np.zeros(5000))
    for position, weight in enumerate(weights):
        one_by_one.set(np.array([position]), np.array([weight]))
    one_by_one.set(np.array([], np.int64), np.array([]))
    assert snapshot(one_by_one) == snapshot(at_once)


@both
def test_memory_is_about_sixteen_bytes_a_row_when_full(fast):
    tree = filled(fast, np.ones(2**20))
    assert tree._nodes.nbytes + tree._ladder.nbytes < 16.1 * 2**20


@both
def test_nothing_to_draw_and_uneven_arguments_are_refused(fast):
    tree = filled(fast, [0.0, 0.0])
    for refused in (
        lambda: tree.draw(np.array([0.5])),
        lambda: tree.draw_distinct(1, np.random.default_rng(0)),
        lambda: tree.set(np.arange(2), np.ones(3)),
    ):
        with pytest.raises(InvalidArgument):
            refused()
    with pytest.raises(IndexError):
        tree.get(np.array([tree.capacity]))
    assert tree.draw_distinct(0, np.random.default_rng(0)).tolist() == []


@needs_numba
def test_compiled_code_never_writes_before_its_memory():
    with pytest.raises(IndexError, match="negative"):
        weight_tree(True).set(np.array([-1]), np.ones(1))


@both
@given(
    weights=st.lists(any_weights, min_size=1, max_size=60),
    uniforms=uniforms,
    stride=st.sampled_from([1, 97, 1013]),
)
def test_only_positive_leaves_are_drawn_whatever_the_rounding(fast, weights, uniforms, stride):
    weights = [*weights, TINIEST]
    tree = weight_tree(fast)
    tree.set(np.arange(len(weights)) * stride, np.array(weights))
    targets = np.array([*uniforms, 0.0, TINIEST, 0.5, 1 - 2**-53])
    assert (tree.get(tree.draw(targets)) > 0).all()


@both
@pytest.mark.parametrize("second", [2, 3])
def test_a_remainder_rounded_up_to_the_whole_node_stays_inside_it(fast, second):
    # 1.5e + (1 + 2e) rounds to 1 + 4e; of that, 1 + 3e less 1.5e rounds to 1 + 2e: all that the second node has.
    e = 2.0**-52
    tree = weight_tree(fast)
    tree.reserve(2 * module.TOP)
    tree.set(np.array([0, second]), np.array([1.5 * e, 1 + 2 * e]))  # beside the second there is nothing
    near = np.nextafter((1 + 3 * e) / (1 + 4 * e), [0, 1])
    targets = np.array([near[0], (1 + 3 * e) / (1 + 4 * e), near[1]])
    assert 1 + 3 * e in targets * tree.total
    assert tree.draw(targets).tolist() == [second] * 3


@both
@given(
    weights=st.lists(any_weights, min_size=1, max_size=60),
    stride=st.sampled_from([1, 97, 1013]),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_distinct_draws_are_distinct_positive_and_leave_no_trace(fast, weights, stride, share, seed):
    tree = weight_tree(fast)
    tree.set(np.arange(len(weights)) * stride, np.array(weights))
    before = snapshot(tree)
    count = round(share * sum(weight > 0 for weight in weights))
    drawn = tree.draw_distinct(count, np.random.default_rng(seed))
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert (tree.get(drawn) > 0).all()
    assert snapshot(tree) == before


@both
def test_weights_far_apart_come_in_descending_order(fast):
    exponents = np.random.default_rng(3).permutation(np.arange(-320, 200, 20))
    weights = 10.0 ** exponents.astype(float)
    tree = weight_tree(fast)
    tree.set(np.arange(weights.size) * 5000, weights)
    before = snapshot(tree)
    drawn = tree.draw_distinct(weights.size, np.random.default_rng(0))
    assert tree.get(drawn).tolist() == sorted(weights, reverse=True)
    assert snapshot(tree) == before


@both
@pytest.mark.parametrize("size", [300, 5000, 70_000])
def test_all_but_a_few_zero(fast, size):
    rng = np.random.default_rng(size)
    weights = np.zeros(size)
    few = rng.choice(size, 20, replace=False)
    weights[few] = rng.random(20) + TINIEST
    tree = filled(fast, weights)
    assert sorted(tree.draw_distinct(20, rng).tolist()) == sorted(few.tolist())
    assert set(tree.draw(rng.random(2000)).tolist()) <= set(few.tolist())
    with pytest.raises(InvalidArgument):
        tree.draw_distinct(21, rng)
    assert np.array_equal(tree.get(np.arange(size)), weights)


@both
def test_an_error_between_the_rounds_leaves_no_trace(fast):
    class Failing:
        rounds = 0

        def random(self, size):
            self.rounds += 1
            if self.rounds == 3:
                raise KeyboardInterrupt
            return np.random.default_rng(0).random(size)

    tree = filled(fast, 10.0 ** np.arange(0, -300, -20.0))
    before = snapshot(tree)
    with pytest.raises(KeyboardInterrupt):
        tree.draw_distinct(10, Failing())
    assert snapshot(tree) == before


@both
@pytest.mark.parametrize("size", [50, 6000, 70_000])
def test_draws_follow_the_weights(fast, size):
    rng = np.random.default_rng(11)
    weights = np.zeros(size)
    some = rng.choice(size, 50, replace=False)
    weights[some] = rng.random(50) ** 3 + 0.01
    tree = filled(fast, weights)
    draws = 200_000
    observed = np.bincount(tree.draw(rng.random(draws)), minlength=size)
    assert observed[weights == 0].sum() == 0
    assert chi_square(observed[some], weights[some] / weights.sum()) < far_tail(49)


@both
@pytest.mark.parametrize("weights", [[5.0, 3.0, 1.0, 1.0, 0.5], [99.0, 0.4, 0.3, 0.2, 0.1]])
def test_distinct_draws_are_exact_successive_sampling(fast, weights):
    tree, rng, w = filled(fast, weights), np.random.default_rng(13), np.array(weights)
    share = w / w.sum()
    ordered = {
        (i, j, k): share[i] * w[j] / (w.sum() - w[i]) * w[k] / (w.sum() - w[i] - w[j])
        for i, j, k in itertools.permutations(range(5), 3)
    }
    seen = dict.fromkeys(ordered, 0)
    rounds = 20_000
    for _ in range(rounds):
        seen[tuple(tree.draw_distinct(3, rng).tolist())] += 1
    # Cells too rare for the approximation count as one.
    common = [key for key, p in ordered.items() if p * rounds >= 8]
    observed = np.array([*(seen[key] for key in common), rounds - sum(seen[key] for key in common)])
    expected = np.array([*(ordered[key] for key in common), 1 - sum(ordered[key] for key in common)])
    assert chi_square(observed, expected) < far_tail(len(common))
    for place in (0, 1):
        marginal = np.zeros(5)
        picked = np.zeros(5)
        for key, p in ordered.items():
            marginal[key[place]] += p
            picked[key[place]] += seen[key]
        assert chi_square(picked, marginal) < far_tail(4)


@both
@pytest.mark.parametrize("size", [10_000, 100_000])
def test_one_position_with_nearly_all_the_weight_costs_few_draws(fast, size):
    class Counting:
        def __init__(self):
            self.rng, self.drawn = np.random.default_rng(17), 0

        def random(self, count):
            self.drawn += count
            return self.rng.random(count)

    weights = np.ones(size)
    weights[size // 3] = 99 * size
    tree, counting = filled(fast, weights), Counting()
    before = snapshot(tree)
    for _ in range(20):
        assert len(set(tree.draw_distinct(256, counting).tolist())) == 256
    assert counting.drawn < 20 * 3 * 256
    assert snapshot(tree) == before


@needs_numba
@pytest.mark.parametrize("seed", range(30))
def test_both_implementations_agree_to_the_last_bit(seed):
    rng = np.random.default_rng(seed)
    slow, fast = weight_tree(False), weight_tree(True)
    assert type(slow) is not type(fast)
    size = int(10 ** rng.uniform(0.5, 5.5))
    spread = rng.integers(0, 150)
    for _ in range(8):
        some = rng.choice(size, int(size ** rng.random()), replace=False)
        weights = rng.random(some.size) * 10.0 ** rng.integers(-spread, spread + 1, some.size)
        weights[rng.random(some.size) < 0.2] = 0.0
        slow.set(some, weights)
        fast.set(some, weights)
        assert snapshot(slow) == snapshot(fast)
        if slow.total == 0:
            continue
        targets = rng.random(500)
        assert np.array_equal(slow.draw(targets), fast.draw(targets))
        positive = int((slow.get(np.arange(slow.capacity)) > 0).sum())
        count = int(rng.integers(0, min(positive, 400) + 1))
        one, other = np.random.default_rng(seed), np.random.default_rng(seed)
        assert np.array_equal(slow.draw_distinct(count, one), fast.draw_distinct(count, other))
        assert one.bit_generator.state == other.bit_generator.state
        assert snapshot(slow) == snapshot(fast)


@both
@given(
    weights=st.lists(any_weights, min_size=1, max_size=60),
    stride=st.sampled_from([1, 97, 1013]),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=60),
    seed=st.integers(0, 2**32),
)
def test_distinct_leaves_keep_the_order_of_their_first_draw(fast, weights, stride, uniforms, seed):
    tree = weight_tree(fast)
    tree.set(np.arange(len(weights) + 1) * stride, np.array([*weights, 1.0]))
    targets = np.random.default_rng(seed).permutation([*uniforms, *uniforms[::2]])
    drawn = tree.draw(targets).tolist()
    assert tree._descend_distinct(tree._targets(targets)).tolist() == list(dict.fromkeys(drawn))


@pytest.fixture
def compiles_anew():
    """Let trees be compiled in this test, and in those after it."""
    module._compiled.cache_clear()
    yield
    module._compiled.cache_clear()


@pytest.mark.usefixtures("compiles_anew")
def test_numba_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert type(weight_tree()) is WeightTree
    with pytest.raises(ImportError, match=r"pip install 'reroll\[fast\]'"):
        weight_tree(True)


@needs_numba
@pytest.mark.usefixtures("compiles_anew")
def test_without_a_place_for_its_cache_numba_compiles_each_time(monkeypatch):
    numba = pytest.importorskip("numba")
    real = numba.njit

    def nowhere(function=None, *, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(function)

    monkeypatch.setattr(numba, "njit", nowhere)
    tree = weight_tree(True)
    tree.set(np.array([1]), np.array([2.0]))
    assert tree.draw(np.array([0.5])).tolist() == [1]


def test_an_environment_variable_switches_numba_off(monkeypatch):
    monkeypatch.setenv("REROLL_NO_NUMBA", "1")
    assert type(weight_tree()) is WeightTree


def test_importing_the_tree_does_not_import_numba():
    code = "import sys, reroll.engine.selectors.tree; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
