"""Warnings that come once for each task, and arrays that are read-only."""

import warnings

import numpy as np
import pytest

from reroll import Mixture, Prioritized, ReplayBufferConfig, UncommittedWarning
from reroll.testing.buffer.builders import group, put_all


@pytest.fixture(params=["memory", "durable"])
def store(request, tmp_path):
    return {} if request.param == "memory" else {"store": tmp_path}


async def test_steps_without_a_commit_are_warned_of_once_for_each_task(store):
    config = ReplayBufferConfig(sampler="fifo", max_uncommitted_steps=1, **store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with config.build() as buffer:
            for step in range(1, 8):
                for task in ("t", "u"):
                    await buffer.put(group(), task)
                    await buffer.get(1, task, "completed", train_step=step)
    assert {warning.category for warning in caught} == {UncommittedWarning}
    first, second = (str(warning.message) for warning in caught)
    assert "task 't': step 1 can no longer be rewound" in first
    assert "task 'u': step 1 can no longer be rewound" in second


async def test_earlier_steps_are_warned_of_once(store):
    config = ReplayBufferConfig(sampler="fifo", max_uncommitted_steps=9, **store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with config.build() as buffer:
            await put_all(buffer, "t", *(group() for _ in range(5)))
            for step in (5, 1, 2, 3):
                await buffer.get(1, "t", "completed", train_step=step)
    (warning,) = caught
    assert "train_step 1 is older than step 5" in str(warning.message)


@pytest.mark.parametrize(
    "sampler", [Prioritized(half_life=2.0), Mixture(0.5, replay=Prioritized(half_life=2.0))]
)
async def test_groups_without_versions_are_warned_of_once_where_versions_decay(sampler, store):
    config = ReplayBufferConfig(sampler=sampler, max_times_sampled=None, **store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with config.build() as buffer:
            await buffer.put(group(), "t", model_step=1)
            await buffer.put(group(status="failed"), "t")
            assert caught == []
            await put_all(buffer, "t", group(), group())
            await put_all(buffer, "u", group())
    first, second = (str(warning.message) for warning in caught)
    assert "task 't' has half_life=2 versions" in first
    assert "task 'u' has half_life=2 versions" in second


async def test_arrays_of_leases_and_peeks_are_read_only_and_share_memory():
    buffer = ReplayBufferConfig(sampler="fifo").build()
    ids = np.array([7, 8], np.int32)
    for _ in range(3):
        await buffer.put(group(response_ids=ids), "t")
    async with buffer.lease({"t": 1}) as batch:
        (item,) = batch.groups["t"][0]
        assert item.response_ids.tolist() == ids.tolist()
        with pytest.raises(ValueError, match="read-only"):
            item.response_ids[0] = 0
        item.response_ids = [1]  # fields can be assigned
    ((peeked,),), ((again,),) = await buffer.peek([2]), await buffer.peek([2])
    assert not peeked.prompt_ids.flags.writeable
    assert np.shares_memory(peeked.response_ids, again.response_ids)
    assert not np.shares_memory(peeked.response_ids, ids), "the buffer has a copy"


async def test_edits_of_a_delivered_rollout_do_not_reach_the_buffer():
    buffer = ReplayBufferConfig(sampler="uniform", max_times_sampled=None).build()
    await buffer.put(group(extra_fields={"x": [1]}), "t")
    for _ in range(2):
        ((item,),) = [sample.group for sample in await buffer.sample(1, "t")]
        assert (item.reward, item.extra_fields) == (None, {"x": [1]})
        item.reward = 1.0
        item.extra_fields["x"].append(2)


async def test_objects_of_other_classes_stay_as_they_are():
    class Own:
        def __init__(self):
            self.status, self.seq_staleness = "completed", 0
            self.response_ids, self.response_model_steps = np.array([1, 2]), None

    buffer = ReplayBufferConfig(sampler="uniform", max_times_sampled=None).build()
    own = Own()
    await buffer.put([own], "t")
    (sample,) = await buffer.sample(1, "t")
    assert sample.group[0] is own
    own.response_ids[0] = 5
