"""Tables from a configuration: the default is a plain batch queue."""

import json

import pytest
from pydantic import ValidationError

from reroll import (
    Fifo,
    InvalidArgument,
    InvalidConfig,
    MinHeap,
    MinSize,
    Prioritized,
    ReplayBufferConfig,
    SampleToInsertRatio,
    Uniform,
    WaitTimeout,
)
from table.threads import waiting_insert, waiting_sample


def test_the_default_is_a_batch_queue():
    table = ReplayBufferConfig().build_table(4)
    assert table.info[1:6] == (4, Uniform(), None, 1, MinSize(4))
    late = waiting_sample(table, 4)
    for key in range(4):
        assert not late.is_over
        table.insert(key, key)
    assert sorted(late.result()) == [0, 1, 2, 3]
    assert len(table) == 0


def test_an_insert_waits_for_room_rather_than_dropping_what_was_never_trained():
    table = ReplayBufferConfig().build_table(2)
    table.insert(0, 0)
    table.insert(1, 1)
    with pytest.raises(WaitTimeout):
        table.insert(2, 2, timeout=0)
    late = waiting_insert(table, 2, 2)
    assert sorted(table.sample(2)) == [0, 1]
    late.result()
    assert table.info.ledger["evicted"].groups == 0
    assert table.keys() == [2]


def test_capacity_and_min_size_default_to_the_batch():
    assert ReplayBufferConfig(capacity=9).build_table(4).info[1:6] == (9, Uniform(), None, 1, MinSize(4))
    assert ReplayBufferConfig(min_size=2).build_table(4).info[1:6] == (4, Uniform(), None, 1, MinSize(2))
    with pytest.raises(InvalidConfig, match="at most 3 fit"):
        ReplayBufferConfig(capacity=3).build_table(4)
    for size in (0, -1, True, 2.0, None):
        with pytest.raises(InvalidArgument):
            ReplayBufferConfig().build_table(size)


def test_everything_reaches_the_table():
    limiter = SampleToInsertRatio(2, 3, 4)
    config = ReplayBufferConfig(
        capacity=50,
        sampler=Prioritized(alpha=0.5),
        remover="min_heap",
        max_times_sampled=3,
        rate_limiter=limiter,
        seed=7,
    )
    tables = [config.build_table(4) for _ in range(2)]
    assert tables[0].info[1:6] == (50, Prioritized(alpha=0.5), MinHeap(), 3, limiter)
    for table in tables:
        for key in range(5):
            table.insert(key, key, key)
    assert tables[0].sample_items(3) == tables[1].sample_items(3)


def test_from_a_mapping():
    config = ReplayBufferConfig.model_validate(
        {
            "sampler": {"type": "prioritized", "half_life": 4},
            "remover": "fifo",
            "rate_limiter": {"type": "min_size", "min_size": 10},
            "capacity": 20,
        }
    )
    assert config.build_table(4).info[1:6] == (20, Prioritized(half_life=4), Fifo(), 1, MinSize(10))


@pytest.mark.parametrize(
    "wrong",
    [
        {"capcity": 3},
        {"capacity": 0},
        {"capacity": "3"},
        {"capacity": 1.5},
        {"max_times_sampled": 0},
        {"min_size": 0},
        {"sampler": "nobody"},
        {"remover": 3},
        {"rate_limiter": {"type": "min_size"}},
        {"min_size": 2, "rate_limiter": {"type": "min_size", "min_size": 2}},
    ],
)
def test_what_is_wrong_is_refused(wrong):
    with pytest.raises(ValueError) as refused:
        ReplayBufferConfig.model_validate(wrong)
    assert isinstance(refused.value, ValidationError | InvalidConfig)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", 'capacity = 9\nsampler = "lifo"\n[rate_limiter]\ntype = "queue"\nsize = 3\n'),
        ("c.yaml", "capacity: 9\nsampler: lifo\nrate_limiter: {type: queue, size: 3}\n"),
        (
            "c.json",
            json.dumps({"capacity": 9, "sampler": "lifo", "rate_limiter": {"type": "queue", "size": 3}}),
        ),
    ],
)
def test_from_a_file(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    config = ReplayBufferConfig.from_file(tmp_path / name)
    assert config == ReplayBufferConfig(capacity=9, sampler="lifo", rate_limiter={"type": "queue", "size": 3})
    assert ReplayBufferConfig.model_validate(config.model_dump()) == config


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(InvalidConfig, match="ending"):
        ReplayBufferConfig.from_file(tmp_path / "c.ini")
