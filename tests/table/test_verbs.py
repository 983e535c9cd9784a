"""Each verb of a table by itself: what it returns, refuses and leaves behind."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from reroll import (
    Closed,
    Fifo,
    Freshest,
    InvalidArgument,
    InvalidConfig,
    InvalidPriority,
    LeastUsed,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Mixture,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stalest,
    Table,
    Uniform,
    Unlimited,
    WaitTimeout,
)
from reroll.testing.strategies import bad_priorities
from table.threads import ledger_closes


def small(sampler=Fifo(), uses=1, **kwargs):  # noqa: B008  (immutable)
    return Table(10, sampler, Fifo(), uses, **kwargs)


def everything(table):
    """All that can be seen of a table, and what it would sample next."""
    state = table.state()
    return pickle.dumps((table.info[:9], table.info.ledger, table.keys(), state))


# --- sampling


def test_sample_items_tells_what_is_known_of_each_draw():
    table = small(Prioritized(beta=0.5), uses=2, seed=3)
    table.insert("a", 1, priority=3)
    table.insert("b", 2, priority=1)
    (only,) = table.sample_items(1)
    assert only.info.times_sampled == 1
    assert only.info.table_size == 2
    assert only.info.weight == 1
    both = {sample.info.key: sample for sample in table.sample_items(2)}
    assert both["a"].data == both["a"].group == 1
    assert both["a"].info.uid == "a"
    assert [both[key].info.priority for key in "ab"] == [3, 1]
    assert [both[key].info.probability for key in "ab"] == [0.75, 0.25]
    assert both["b"].info.weight == 1
    assert both["a"].info.weight == pytest.approx((2 * 0.75) ** -0.5 / (2 * 0.25) ** -0.5)
    assert both[only.info.key].info.times_sampled == 2
    assert {sample.info.table_size for sample in both.values()} == {
        2
    }  # before the one that is used up leaves
    assert len(table) == 1
    assert ledger_closes(table)


def test_deterministic_samplers_have_probability_and_weight_one():
    table = small(MaxHeap())
    for key in range(4):
        table.insert(key, key, priority=key)
    assert [(s.info.probability, s.info.weight) for s in table.sample_items(4)] == [(1, 1)] * 4


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (Fifo(), ["a", "b", "c", "d"]),
        (Lifo(), ["d", "c", "b", "a"]),
        (MinHeap(), ["b", "c", "d", "a"]),
        (MaxHeap(), ["a", "d", "b", "c"]),
        (LeastUsed(), ["a", "b", "c", "d"]),
        ("lifo", ["d", "c", "b", "a"]),
        ({"type": "max_heap"}, ["a", "d", "b", "c"]),
    ],
)
def test_order(sampler, order):
    table = small(sampler)
    for key, priority in zip("abcd", (5, 1, 1, 2), strict=True):
        table.insert(key, key, priority)
    assert table.sample(2) + table.sample(9) == order
    assert len(table) == 0


def test_least_used_moves_on():
    table = small(LeastUsed(), uses=None)
    for key in "abc":
        table.insert(key, key)
    assert [table.sample(2) for _ in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]
    table.insert("d", "d")
    assert table.sample(2) == ["d", "a"]


def test_max_times_sampled():
    table = small(Fifo(), uses=3)
    table.insert("a", 1)
    assert [table.sample(1)[0] for _ in range(3)] == [1, 1, 1]
    assert len(table) == 0
    assert "a" not in table
    assert table.info.ledger["consumed"] == (1, 0, 1, 0)
    assert table.info[6:9] == (1, 3, 1)


@pytest.mark.parametrize("n", [0, -1, 1.0, "1", None, True])
def test_bad_sample_sizes(n):
    table = small()
    table.insert("a", 1)
    for verb in (table.sample, table.sample_items):
        with pytest.raises(InvalidArgument):
            verb(n)
    assert table.sample(np.int64(1)) == [1]


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True, [1]])
def test_bad_timeouts(timeout):
    table = small()
    with pytest.raises(ValueError):
        table.insert("a", 1, timeout=timeout)
    with pytest.raises(ValueError):
        table.sample(1, timeout=timeout)
    assert len(table) == 0


# --- replacing


def test_an_existing_key_is_replaced():
    table = Table(3, Fifo(), None, 2, MinSize(1))
    for key in "abc":
        table.insert(key, key)
    assert table.sample(2) == ["a", "b"]
    before = table.info
    table.insert("a", "new a", timeout=0)  # full, and yet it does not wait
    assert table.info[6:9] == before[6:9]  # neither insert nor delete
    assert table.keys() == ["b", "c", "a"]  # its order starts anew
    samples = [table.sample_items(1)[0] for _ in range(5)]
    assert [sample.data for sample in samples] == ["b", "c", "c", "new a", "new a"]
    assert [sample.info.times_sampled for sample in samples] == [2, 1, 2, 1, 2]  # so do its uses
    assert ledger_closes(table)


def test_a_replaced_item_takes_its_new_priority():
    table = small(MaxHeap(), uses=None)
    table.insert("a", 1, priority=1)
    table.insert("b", 2, priority=2)
    table.insert("a", 3, priority=3)
    assert table.sample(2) == [3, 2]
    table.insert("a", 4, priority=2)  # a tie: least recently inserted or updated first
    assert table.sample(2) == [2, 4]


# --- priorities


NO_PRIORITIES = [
    *(-1, -0.001, math.nan, math.inf, -math.inf, 10**400, Fraction(10**400), np.float32("nan")),
    *("1", b"1", None, True, np.True_, 1j, [1.0], (1.0, 2.0), {}, np.ones(1), np.ones(2), np.array("1")),
]


@pytest.mark.parametrize("bad", NO_PRIORITIES, ids=lambda bad: repr(bad)[:12])
@pytest.mark.parametrize("sampler", [Prioritized(), MinHeap()])
def test_bad_priorities_change_nothing(sampler, bad):
    table = small(sampler, uses=None, seed=0)
    table.insert("a", 1, 2.0)
    table.insert("b", 2, 3.0)
    before = everything(table)
    for key in ("new", "a"):
        with pytest.raises(InvalidPriority):
            table.insert(key, 3, bad)
    with pytest.raises(InvalidPriority, match="'b'"):
        table.update_priorities({"a": 5.0, "b": bad})
    with pytest.raises(ValueError):
        table.update_priorities({"unknown": bad})
    assert everything(table) == before
    assert table.update_priorities({"a": 0, "b": np.float32(1.5)}) == []
    assert [sample.info.priority for sample in sorted(table.sample_items(2), key=lambda s: s.data)] == [
        0,
        1.5,
    ]


@given(bad=bad_priorities())
def test_whatever_is_no_priority_is_refused(bad):
    table = small(Prioritized())
    with pytest.raises(ValueError):
        table.insert("a", 1, bad)
    assert len(table) == 0
    table.insert("a", 1)
    assert table.sample(1) == [1]


@pytest.mark.parametrize("priorities", [[1.0, 2.0], "ab", 3.0, None, [("a", 1.0)]])
def test_priorities_that_are_no_mapping(priorities):
    table = small(Prioritized(), uses=None)
    table.insert("a", 1)
    with pytest.raises(ValueError):
        table.update_priorities(priorities)
    assert table.sample_items(1)[0].info.priority == 1


@pytest.mark.parametrize(
    "good", [0, 1, 2.5, np.float32(1), np.int8(3), np.array(2.0), 1e300, 5e-324, Fraction(1, 2)]
)
def test_good_priorities(good):
    table = small(Prioritized())
    table.insert("a", 1, good)
    assert table.sample_items(1)[0].info.priority == float(good)


def test_update_priorities_returns_unknown_keys():
    table = small(MaxHeap())
    for key in "abc":
        table.insert(key, key)
    assert table.update_priorities({"x": 1, "c": 5, "y": 2, "b": 4}) == ["x", "y"]
    assert table.update_priorities({}) == []
    assert table.sample(3) == ["c", "b", "a"]


# --- deleting


def test_delete_returns_how_many_there_were():
    table = small()
    for key in "abc":
        table.insert(key, key)
    assert table.delete(["a", "x", "a"]) == 1
    assert table.delete(key for key in "ab") == 1
    assert table.delete([]) == 0
    with pytest.raises(InvalidArgument, match="several keys"):
        table.delete("c")
    assert table.keys() == ["c"]
    assert ledger_closes(table)


def test_deleted_keys_are_never_drawn_and_slots_are_used_again():
    table = small(Prioritized(), uses=None, seed=5)
    for round_ in range(30):
        for key in range(8):
            table.insert((round_, key), (round_, key), key)
        table.delete([(round_, key) for key in range(1, 8, 2)])
        for _ in range(5):
            assert all(key % 2 == 0 for _, key in table.sample(4))
        table.delete(table.keys())
        assert not table.can_sample(1)


def test_keys_that_cannot_be_hashed_change_nothing():
    table = small()
    before = everything(table)
    for call in (lambda: table.insert([], 1), lambda: table.delete([[]])):
        with pytest.raises(TypeError):
            call()
    assert everything(table) == before


def test_payloads_are_kept_by_reference_and_let_go():
    class Payload:
        alive = 0

        def __init__(self):
            Payload.alive += 1

        def __del__(self):
            Payload.alive -= 1

    table = Table(3, Fifo(), Fifo())
    for key in range(6):
        table.insert(key, Payload())
    assert Payload.alive == 3
    table.insert(5, Payload())
    assert Payload.alive == 3
    table.delete([5])
    assert Payload.alive == 2
    table.sample(1)
    assert Payload.alive == 1
    table.reset()
    assert Payload.alive == 0


# --- presets and settings


def test_queue():
    table = Table.queue(3)
    for key in range(3):
        table.insert(key, key)
    with pytest.raises(WaitTimeout):
        table.insert(3, 3, timeout=0)
    assert table.sample(2) == [0, 1]
    table.insert(3, 3, timeout=0)
    assert table.sample(5) == [2, 3]
    assert len(table) == 0
    with pytest.raises(WaitTimeout):
        table.sample(1, timeout=0)


def test_stack():
    table = Table.stack(3)
    for key in range(3):
        table.insert(key, key)
    with pytest.raises(WaitTimeout):
        table.insert(3, 3, timeout=0)
    assert table.sample(2) == [2, 1]
    table.insert(3, 3, timeout=0)
    assert table.sample(5) == [3, 0]


def test_info():
    limiter = SampleToInsertRatio(2, 1, 5)
    table = Table(7, "lifo", "fifo", 2, limiter)
    table.insert("a", 1)
    table.sample(1)
    info = table.info
    assert info[:9] == (1, 7, Lifo(), Fifo(), 2, limiter, 1, 1, 0)
    assert (info.waiting_inserts, info.waiting_samples) == (0, 0)
    assert info.ledger["resident"].trained_groups == 1
    assert Table(7, "lifo", "fifo").info.rate_limiter == MinSize(1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((0, Fifo(), Fifo()), "capacity|max_size"),
        ((None, Fifo(), Fifo()), "max_size"),
        ((2.0, Fifo(), Fifo()), "capacity|max_size"),
        ((True, Fifo(), Fifo()), "capacity|max_size"),
        ((3, "fifi", Fifo()), "not a selector"),
        ((3, Fifo, Fifo()), "not a selector"),
        ((3, {"type": "prioritized", "alfa": 1}, Fifo()), "alfa"),
        ((3, Fifo(), 7), "not a selector"),
        ((3, Fifo(), Fifo(), 0), "max_times_sampled"),
        ((3, Fifo(), Fifo(), 1.5), "max_times_sampled"),
        ((3, Fifo(), Fifo(), None), "same items forever"),
        ((3, Fifo(), Fifo(), 1, 5), "not a rate limiter"),
        ((3, Fifo(), Fifo(), 1, MinSize), "not a rate limiter"),
        ((3, Fifo(), Fifo(), 1, MinSize(4)), "at most 3 fit"),
        ((3, Uniform(), None, 2, SampleToInsertRatio(1, 1, 2)), "deadlock"),
        ((3, Uniform(), None, None, SampleToInsertRatio(1, 1, 2)), "deadlock"),
        ((3, Stalest(), Fifo()), "for buffers"),
        ((3, Freshest(), Fifo()), "for buffers"),
        ((3, Mixture(0.5), Fifo()), "for buffers"),
        ((3, Fifo(), Stalest()), "for buffers"),
    ],
)
def test_what_can_never_proceed_is_refused(args, message):
    with pytest.raises(InvalidConfig, match=message):
        Table(*args)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prioritized(alpha=-1),
        lambda: Prioritized(alpha=math.nan),
        lambda: Prioritized(beta=-0.1),
        lambda: Prioritized(beta=math.inf),
        lambda: Prioritized(half_life=0),
        lambda: Prioritized(half_life="1"),
        lambda: Prioritized(reuse_decay=-1),
        lambda: Prioritized(alpha=True),
        lambda: Mixture(1.1),
        lambda: Mixture(-0.1),
        lambda: Mixture(math.nan),
        lambda: Mixture(0.5, replay=Mixture(0.5)),
        lambda: Mixture(0.5, fresh="nobody"),
    ],
)
def test_bad_selectors_are_refused(make):
    with pytest.raises(InvalidConfig):
        make()


def test_waste_warns():
    with pytest.warns(UserWarning, match="nothing ever leaves"):
        Table(3, Uniform(), None, None)
    with pytest.warns(UserWarning, match="never reached"):
        Table(3, Uniform(), Fifo(), 1, SampleToInsertRatio(2, 1, 4))
    with pytest.warns(UserWarning, match="more than the 2 items that fit"):
        Table(2, Uniform(), Fifo(), None, SampleToInsertRatio(1, 1, (0, 5)))


def test_errors_are_typed_and_picklable():
    table = small(rate_limiter=MinSize(2))
    caught = []
    with pytest.raises(WaitTimeout) as error:
        table.sample(1, timeout=0)
    caught.append(error.value)
    with pytest.raises(InvalidPriority) as error:
        table.insert("a", 1, -1)
    caught.append(error.value)
    table.shutdown()
    with pytest.raises(Closed) as error:
        table.insert("a", 1)
    caught.append(error.value)
    assert [
        isinstance(e, kind) for e, kind in zip(caught, (TimeoutError, ValueError, RuntimeError), strict=True)
    ]
    for error in caught:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own)
        assert type(again) is type(error)
        assert str(again) == str(error)


# --- seeds


def run(seed, rounds=40):
    table = small(Prioritized(alpha=0.7), uses=3, seed=seed, rate_limiter=Unlimited())
    samples = []
    for key in range(rounds):
        table.insert(key, key, key % 4)
        table.update_priorities({key - 2: 2.5})
        samples.append(table.sample_items(3))
        table.delete([key - 5])
    return samples


def test_the_same_seed_and_calls_give_the_same_samples():
    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None) != run(None)


def test_numba_and_numpy_give_the_same_samples(monkeypatch):
    compiled = run(7)
    monkeypatch.setenv("REROLL_NO_NUMBA", "1")
    assert run(7) == compiled


def test_get_returns_data_by_key_in_the_order_of_the_keys_and_counts_no_use():
    table = Table(10, "fifo", "fifo")
    for key in "abc":
        table.insert(key, key.upper())
    assert table.get(["c", "a", "c"]) == ["C", "A", "C"]
    assert table.get([]) == []
    assert table.info.samples == 0
    with pytest.raises(KeyError, match="no item under key 'z'"):
        table.get(["a", "z"])
    with pytest.raises(InvalidArgument, match=r"get\(\['a'\]\)"):
        table.get("a")


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_with_replacement_items_are_drawn_more_than_once_within_their_use_limit(sampler):
    table = Table(10, sampler, "fifo", 3, seed=0)
    for key in "ab":
        table.insert(key, key)
    assert len(table.sample(5, replace=True)) == 5
    (last,) = table.sample_items(4, replace=True)  # one use is left
    assert last.info.times_sampled == 3
    assert len(table) == 0


def test_with_replacement_the_limiter_is_asked_for_all_draws():
    table = Table(10, "uniform", "fifo", None, Queue(4), seed=0)
    table.insert("a", 1)
    with pytest.raises(WaitTimeout):
        table.sample(2, timeout=0, replace=True)
    with pytest.raises(InvalidArgument, match="never allows more than 4"):
        table.sample(5, replace=True)
    table.insert("b", 2)
    assert len(table.sample(2, timeout=0, replace=True)) == 2


def test_samplers_in_order_draw_distinct_items_also_with_replacement():
    table = Table(10, "least_used", "fifo", None)
    for key in "ab":
        table.insert(key, key)
    assert table.sample(5, replace=True) == ["a", "b"]
