"""Every selector runs the suite that is shipped for users' own; and orders with ties, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chances import Rows
from reroll import (
    Fifo,
    Freshest,
    InvalidConfig,
    LeastUsed,
    Lifo,
    MaxHeap,
    MinHeap,
    Mixture,
    Prioritized,
    Stalest,
    Uniform,
)
from reroll.engine.options import options_of
from reroll.engine.rows import NO_VERSION
from reroll.engine.selectors.specs import SELECTORS, selector_spec
from reroll.testing import SelectorSuite


class TestFifo(SelectorSuite):
    spec = Fifo()

    def sort_key(self, row, step):
        return (row["timestamp"],)


class TestLifo(SelectorSuite):
    spec = Lifo()

    def sort_key(self, row, step):
        return (-row["timestamp"],)


class TestMinHeap(SelectorSuite):
    spec = MinHeap()

    def sort_key(self, row, step):
        return (row["priority"], row["touched"])


class TestMaxHeap(SelectorSuite):
    spec = MaxHeap()

    def sort_key(self, row, step):
        return (-row["priority"], row["touched"])


class TestLeastUsed(SelectorSuite):
    spec = LeastUsed()

    def sort_key(self, row, step):
        return (row["uses"], row["timestamp"])


def mixed(uid, uses, salt):
    word, mask = uid * 0x9E3779B97F4A7C15 + uses * 0xD1B54A32D192ED03 + salt, 2**64 - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = ((word & mask) ^ ((word & mask) >> shift)) * factor
    return (word & mask) ^ ((word & mask) >> 31)


class TestLeastUsedShuffled(SelectorSuite):
    spec = LeastUsed(shuffle=True)

    def sort_key(self, row, step):
        return (row["uses"], mixed(row["uid"], row["uses"], salt=0), row["timestamp"])


def staleness(row, step):
    known = step is not None and row["version"] != NO_VERSION
    return step - 1 - row["version"] if known else row["staleness"]


class TestStalest(SelectorSuite):
    spec = Stalest()

    def sort_key(self, row, step):
        return (-staleness(row, step), row["timestamp"])


class TestFreshest(SelectorSuite):
    spec = Freshest()

    def sort_key(self, row, step):
        return (staleness(row, step), row["timestamp"])


class TestUniform(SelectorSuite):
    spec = Uniform()


@pytest.mark.usefixtures("trees")
class TestPrioritized(SelectorSuite):
    spec = Prioritized()


@pytest.mark.usefixtures("trees")
class TestPrioritizedWithEverything(SelectorSuite):
    spec = Prioritized(alpha=0.6, beta=0.4, half_life=1.5, reuse_decay=0.5)


class TestPrioritizedUsedOnce(SelectorSuite):
    spec = Prioritized(alpha=0, reuse_decay=0)


class TestMixture(SelectorSuite):
    spec = Mixture(0.3)


class TestMixtureOfChances(SelectorSuite):
    spec = Mixture(0.5, replay=Prioritized(half_life=2), fresh=Prioritized(half_life=2))


class TestMixtureByStaleness(SelectorSuite):
    spec = Mixture(0.0, replay=Uniform(), fresh=Stalest())


# --- staleness, by hand


def by_staleness(spec, step):
    """Indices in order: with versions 3 and 7 (told the opposite), and without, told 2 and 4."""
    rows = [
        {"version": 3, "staleness": 0},
        {"staleness": 2},
        {"version": 7, "staleness": 6},
        {"staleness": 4},
        {"version": 3, "staleness": 2},
    ]
    return Rows(spec, rows, step=step).order(5)


@pytest.mark.parametrize(
    ("spec", "step", "order"),
    [
        (Stalest(), None, (2, 3, 1, 4, 0)),  # all as told: 0 2 6 4 2
        (Stalest(), 8, (0, 3, 4, 1, 2)),  # derived: 4 (2) 0 (4) 4
        (Stalest(), 5, (3, 1, 0, 4, 2)),  # 1 (2) -3 (4) 1
        (Stalest(), 20, (0, 4, 2, 3, 1)),  # 16 (2) 12 (4) 16
        (Freshest(), None, (0, 1, 4, 3, 2)),
        (Freshest(), 8, (2, 1, 0, 3, 4)),
        (Freshest(), 20, (1, 3, 2, 0, 4)),
    ],
)
def test_order_by_staleness(spec, step, order):
    assert by_staleness(spec, step) == order


@pytest.mark.parametrize(("spec", "first"), [(Stalest(), 1), (Freshest(), 0)])
def test_order_changes_when_the_task_sees_its_first_step(spec, first):
    world = Rows(spec, [{"version": 9, "staleness": 5}, {"version": 1, "staleness": 0}])
    assert world.order(1) == (1 - first,)
    world.step = 10
    assert world.order(1) == (first,)
    world.add({"version": 5, "staleness": 99})
    assert world.order(3)[1] == 2
    world.step = 11
    world.remove(0)
    assert set(world.order(3)) == {1, 2}


def test_told_staleness_can_be_changed():
    world = Rows(Stalest(), [{"staleness": 1}, {"staleness": 2}, {"version": 8}], step=10)
    assert world.order(3) == (1, 0, 2)
    world.update(1, staleness=0)
    assert world.order(3) == (0, 2, 1)


@pytest.mark.parametrize("spec", [Stalest(), Freshest()])
@pytest.mark.parametrize("kinds", [("version",), ("staleness",), ("version", "staleness")])
@given(data=st.data())
def test_rows_of_one_kind_are_picked_as_rows_of_both_are(spec, kinds, data):
    rows = data.draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 4)), min_size=1, max_size=8))
    world = Rows(spec, [{kind: value} for kind, value in rows], step=9)
    for index in data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=3)):
        if rows[index][0] == "staleness":
            rows[index] = ("staleness", data.draw(st.integers(0, 4)))
        world.update(index, staleness=rows[index][1] if rows[index][0] == "staleness" else 0)
    sign = -1 if spec == Stalest() else 1
    stale = [sign * (9 - value - 1 if kind == "version" else value) for kind, value in rows]
    count = data.draw(st.integers(1, len(rows)))
    assert world.order(count) == tuple(sorted(range(len(rows)), key=lambda i: (stale[i], i)))[:count]


# --- specifications


@pytest.mark.parametrize("name", [name for name in SELECTORS if name != "mixture"])
def test_names_and_options_go_there_and_back(name):
    spec = selector_spec(name)
    assert spec.type == name
    assert selector_spec(options_of(spec)) == spec
    assert hash(spec) == hash(selector_spec({"type": name}))


def test_nested_options_go_there_and_back():
    spec = Mixture(0.25, replay=Prioritized(alpha=0.5, half_life=3), fresh=Lifo())
    assert selector_spec(options_of(spec)) == spec
    assert selector_spec({"type": "mixture", "fresh_share": 0.5, "replay": "uniform"}) == Mixture(
        0.5, Uniform()
    )


@pytest.mark.parametrize(
    "value", [None, 3, "", "Fifo", {}, {"type": "mixture"}, {"type": "fifo", "x": 1}, Fifo]
)
def test_what_is_no_selector(value):
    with pytest.raises(InvalidConfig):
        selector_spec(value)


# --- the suite itself fails for those who break it


class _Broken:
    """A Fifo that does one thing wrong."""

    type = "broken"

    def __init__(self, fault):
        self.fault = fault

    def __eq__(self, other):
        return self.fault is other.fault

    __hash__ = None

    def build(self, columns, role):
        selector = Fifo().build(columns, role)
        self.fault(selector, columns)
        return selector


def twice(selector, columns):
    pick = selector.pick
    selector.pick = lambda n, rng, **kwargs: pick(n, rng, **kwargs)._replace(
        slots=np.repeat(pick(n, rng, **kwargs).slots[:1], n)
    )


def forgets_to_remove(selector, columns):
    selector.remove = lambda slots: None


def takes_what_it_picks(selector, columns):
    pick = selector.pick

    def picks(n, rng, **kwargs):
        picked = pick(n, rng, **kwargs)
        selector.remove(picked.slots)
        return picked

    selector.pick = picks


def forgets_its_state(selector, columns):
    selector.restore = lambda state: None


def asks_the_wrong_dice(selector, columns):
    pick = selector.pick
    rng = np.random.default_rng()

    def picks(n, _, **kwargs):
        everything = pick(len(selector), _, **kwargs)
        chosen = rng.permutation(len(everything.slots))[:n]
        return type(everything)(*(column[chosen] for column in everything))

    selector.pick = picks


def promises_too_much(selector, columns):
    selector.can_pick = lambda n, rng: True


def claims_impossible_chances(selector, columns):
    pick = selector.pick

    def picks(n, rng, **kwargs):
        picked = pick(n, rng, **kwargs)
        return picked._replace(probability=picked.probability * 2)

    selector.pick = picks


def writes_into_columns(selector, columns):
    pick = selector.pick

    def picks(n, rng, **kwargs):
        picked = pick(n, rng, **kwargs)
        columns.uses[picked.slots] += 1
        return picked

    selector.pick = picks


FAULTS = {
    twice: "test_picks_are_distinct_and_held",
    forgets_to_remove: "test_removed_rows_never_come_back",
    takes_what_it_picks: "test_picking_changes_nothing",
    forgets_its_state: "test_restored_goes_on_with_the_same_picks",
    asks_the_wrong_dice: "test_same_seed_and_calls_give_the_same_picks",
    promises_too_much: "test_can_pick_tells_the_truth",
    claims_impossible_chances: "test_probabilities_and_weights_make_sense",
    writes_into_columns: "test_picking_changes_nothing",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_suite_finds_what_is_broken(fault):
    suite = SelectorSuite()
    suite.spec = Fifo()
    getattr(suite, FAULTS[fault])(1)
    suite.spec = _Broken(fault)
    with pytest.raises((AssertionError, KeyError, TypeError)):
        getattr(suite, FAULTS[fault])(1)


def test_the_suite_finds_a_wrong_order():
    suite = TestFifo()
    suite.spec = Lifo()
    with pytest.raises(AssertionError):
        suite.test_order_is_that_of_the_sort_key(1)
