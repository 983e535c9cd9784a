"""Table, selectors, limiter and configuration under open-instruct's names and with its calls."""

import threading

import numpy as np
import pytest

import reroll
from integrations.open_instruct_results import processed
from reroll import InvalidConfig, InvalidPriority
from reroll.integrations import open_instruct
from reroll.integrations.open_instruct import (
    Fifo,
    ItemMetadata,
    Lifo,
    MinSize,
    Prioritized,
    ProcessedResult,
    RateLimiter,
    ReplayBufferConfig,
    Selector,
    Table,
    Uniform,
    make_selector,
)
from reroll.testing import LimiterSuite, SelectorSuite

NAMES = {
    *("ProcessedResult", "ItemMetadata", "Selector", "Uniform", "Prioritized", "Fifo", "Lifo", "RateLimiter"),
    *("MinSize", "ReplayBufferConfig", "make_selector", "Table"),
}


def test_the_names():
    assert set(open_instruct.__all__) == NAMES | {"ResultsQueue", "DataPreparer", "CollatedBatch"}
    assert all(hasattr(open_instruct, name) for name in open_instruct.__all__)
    assert RateLimiter is not None
    assert Selector is not None


# --- the table, by its calls


def test_a_table_by_keywords():
    table = Table(max_size=2, sampler=Fifo(), remover=Lifo(), max_times_sampled=2, rate_limiter=MinSize(2))
    one, two = processed(1), processed(2)
    table.insert("a", one)
    table.insert("b", two, priority=3.0)
    assert len(table) == 2
    assert table.sample(1)[0] is one
    assert table.sample(2) == [one, two]
    assert table.keys() == ["b"]  # the first was sampled twice
    assert not table.is_shutdown
    table.shutdown()
    assert table.is_shutdown
    assert table.sample(1) is None


def test_the_defaults_are_one_use_and_one_item():
    table = Table(max_size=3, sampler=Uniform(), remover=Fifo())
    table.insert("a", 1)
    assert table.sample(5) == [1]
    assert len(table) == 0


@pytest.mark.parametrize(("remover", "left"), [(Fifo(), [2, 3]), (Lifo(), [0, 1])])
def test_a_full_table_evicts(remover, left):
    table = Table(max_size=2, sampler=Uniform(), remover=remover)
    for number in range(4):
        table.insert(number, number)
    assert table.keys() == left


def test_a_full_prioritized_table_takes_more():
    with pytest.warns(UserWarning, match="evicts"):
        table = Table(max_size=2, sampler=Prioritized(), remover=Prioritized())
    for number in range(10):
        table.insert(number, number, priority=float(number))
    assert len(table) == 2


def test_without_a_remover_an_insert_waits_for_room():
    table = Table(max_size=1, sampler=Fifo(), remover=None)
    table.insert("a", 1)
    with pytest.raises(TimeoutError):
        table.insert("b", 2, timeout=0.01)
    waiting = threading.Thread(target=table.insert, args=("b", 2))
    waiting.start()
    assert table.sample(1) == [1]
    waiting.join(10)
    assert table.keys() == ["b"]


def test_a_waiting_sample_ends_with_shutdown():
    table, answers = Table(max_size=4, sampler=Uniform(), remover=Fifo(), rate_limiter=MinSize(3)), []
    table.insert("a", 1)
    waiting = threading.Thread(target=lambda: answers.append(table.sample(1)))
    waiting.start()
    table.shutdown()
    waiting.join(10)
    assert answers == [None]


# --- selectors


class TestUniform(SelectorSuite):
    spec = Uniform()


class TestPrioritized(SelectorSuite):
    spec = Prioritized()


class TestFifo(SelectorSuite):
    spec = Fifo()

    def sort_key(self, row, step):
        return (row["timestamp"],)


class TestLifo(SelectorSuite):
    spec = Lifo()

    def sort_key(self, row, step):
        return (-row["timestamp"],)


def metadata(priorities):
    """Return items that were inserted in the order opposite to that of their keys."""
    return {
        key: ItemMetadata(insert_order=len(priorities) - place, sample_count=0, priority=priority)
        for place, (key, priority) in enumerate(priorities.items())
    }


EQUAL = metadata(dict.fromkeys("abcd", 1.0))


class TestSelect:
    def test_orders(self):
        assert Fifo().select(list("abcd"), EQUAL, 3) == ["d", "c", "b"]
        assert Lifo().select(list("abcd"), EQUAL, 3) == ["a", "b", "c"]

    @pytest.mark.parametrize("selector", [Uniform(), Prioritized(), Fifo(), Lifo()])
    def test_distinct_and_at_most_all(self, selector):
        assert sorted(selector.select(list("abcd"), EQUAL, 9)) == list("abcd")
        assert len(set(selector.select(list("abcd"), EQUAL, 3))) == 3
        assert selector.select(list("ab"), EQUAL, 0) == selector.select([], {}, 2) == []

    def test_only_the_given_keys(self):
        assert Fifo().select(["b", "a"], EQUAL, 1) == ["b"]

    def test_chances(self):
        rng = np.random.default_rng(0)
        weights = metadata({"often": 9.0, "rare": 1.0})
        drawn = [Prioritized().select(["often", "rare"], weights, 1, rng=rng)[0] for _ in range(500)]
        assert 420 < drawn.count("often") < 480
        drawn = [Uniform().select(["often", "rare"], weights, 1, rng=rng)[0] for _ in range(500)]
        assert 200 < drawn.count("often") < 300

    def test_zero_priorities_come_last_and_are_uniform_among_themselves(self):
        rng = np.random.default_rng(0)
        some = metadata({"none": 0.0, "some": 1.0})
        assert all(Prioritized().select(["none", "some"], some, 2, rng=rng)[0] == "some" for _ in range(20))
        none = metadata({"a": 0.0, "b": 0.0})
        assert {Prioritized().select(["a", "b"], none, 1, rng=rng)[0] for _ in range(20)} == {"a", "b"}

    def test_uses_count_where_the_selector_says_so(self):
        rng, known = np.random.default_rng(0), metadata({"a": 1.0, "b": 1.0})
        known["a"].sample_count = 30
        drawn = {Prioritized(reuse_decay=0.5).select(["a", "b"], known, 1, rng=rng)[0] for _ in range(50)}
        assert drawn == {"b"}

    def test_a_bad_priority_is_refused(self):
        with pytest.raises(InvalidPriority):
            Prioritized().select(["a"], metadata({"a": -1.0}), 1)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        *zip(
            ("uniform", "prioritized", "fifo", "lifo"),
            (Uniform(), Prioritized(), Fifo(), Lifo()),
            strict=True,
        ),
        ({"type": "prioritized", "alpha": 0.5}, Prioritized(alpha=0.5)),
        (reroll.Prioritized(beta=0.5), Prioritized(beta=0.5)),
        (Lifo(), Lifo()),
        ("min_heap", reroll.MinHeap()),
        (None, None),
    ],
    ids=str,
)
def test_make_selector(given, made):
    assert make_selector(given) == made
    assert type(make_selector(given)) is type(made)


def test_an_unknown_selector_is_refused_with_what_there_is():
    with pytest.raises(InvalidConfig, match=r"'newest'.*uniform"):
        make_selector("newest")


# --- limiter and configuration


class TestMinSize(LimiterSuite):
    limiter = MinSize(3)


def test_a_limiter_answers_for_a_table():
    table = Table(max_size=3, sampler=Uniform(), remover=Fifo())
    table.insert("a", 1)
    assert MinSize(1).can_sample(table)
    assert not MinSize(2).can_sample(table)


def test_a_configuration_from_yaml():
    yaml = pytest.importorskip("yaml")
    text = (
        "replay_buffer: {capacity: 4, sampler: prioritized, remover: fifo, max_times_sampled: 2, min_size: 2}"
    )
    config = ReplayBufferConfig(**yaml.safe_load(text)["replay_buffer"])
    table = Table(
        max_size=config.capacity,
        sampler=make_selector(config.sampler),
        remover=make_selector(config.remover),
        max_times_sampled=config.max_times_sampled,
        rate_limiter=MinSize(config.min_size),
    )
    assert table.info[1:6] == (4, Prioritized(), Fifo(), 2, MinSize(2))
    assert config.build_table(global_batch_size=8).info.max_size == 4
    with pytest.raises(ValueError, match="capactiy"):
        ReplayBufferConfig(capactiy=3)


def test_the_default_configuration_is_one_global_batch():
    table = ReplayBufferConfig().build_table(global_batch_size=2)
    table.insert("a", 1)
    assert not table.can_sample(1)
    table.insert("b", 2)
    assert not table.can_insert(1)  # waits for room: nothing untrained is dropped
    assert sorted(table.sample(2)) == [1, 2]


def test_a_processed_result_has_the_fields_of_theirs():
    assert list(ProcessedResult.__dataclass_fields__) == [
        *("result", "queries", "ground_truths", "datasets", "raw_queries", "active_tools"),
        *("decoded_responses", "reward_scores", "reward_metrics", "percent_solved"),
    ]
