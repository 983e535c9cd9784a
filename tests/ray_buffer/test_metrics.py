"""What a shard tells Ray's metrics, and what a handle tells of its shards."""

import asyncio

import pytest

from ray_buffer.pool import buffer_of
from reroll import ReplayBufferConfig
from reroll.ray import actor
from reroll.ray.actor import BufferActor, Gauges, points_of
from reroll.testing.buffer.builders import group

pytestmark = pytest.mark.usefixtures("ray_cluster")


async def test_every_metric_is_a_gauge_over_all_tasks_and_for_each():
    buffer = ReplayBufferConfig(sampler="fifo").build()
    for task in ("t", "t", "u"):
        await buffer.put(group(), task)
    stats, metrics = await buffer.stats(), await buffer.metrics(detail=True)
    points = {(point.gauge, point.task): point.value for point in points_of(stats)}
    assert len(points) == len([name for name in metrics if not name.startswith("total/")])
    assert points["reroll_buffer_groups", ""] == 3
    assert points["reroll_buffer_groups", "t"] == 2
    assert points["reroll_buffer_groups_completed", "u"] == 1
    Gauges("here", 0).set(stats)  # Ray takes their names and tags


async def test_shards_tell_of_the_buffer_that_they_are_parts_of(monkeypatch):
    told = []
    monkeypatch.setattr(actor, "Gauges", lambda *tags: told.append(tags) or Gauges(*tags))
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=2) as buffer:
        for index in (0, 1):
            part = BufferActor(buffer._spec, index)
            assert await part.ready() is None
            await asyncio.sleep(0)
            await part.close()
        assert told == [(f"tests/{buffer._spec.name}", index) for index in (0, 1)]


async def test_a_handle_tells_of_all_shards_as_one():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=2) as buffer:
        for reward in (1.0, 0.0, 0.0):
            await buffer.put(group(reward=reward), "t", model_step=1)
        await buffer.take_batch({"t": 2}, wait=True, train_step=3)
        await buffer.lease({"t": 1})
        stats = await buffer.stats()
        assert (stats.total.put.groups, stats.total.trained.groups, stats.total.leased) == (3, 2, 1)
        assert stats.total.produced.reward_mean == pytest.approx(1 / 3)
        assert stats.tasks["t"].trained_staleness["oldest"].histogram == {1: 2}
        metrics = await buffer.metrics()
        assert metrics["gen/groups"] == metrics["total/gen/groups"] == 3
        assert metrics["train/groups"] == 2
        assert sum(part.total.put.groups for part in await buffer.shard_stats()) == 3
