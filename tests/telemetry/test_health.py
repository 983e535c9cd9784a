"""Warnings: each when it is deserved, and not before; with a way out, and in the log once."""

import asyncio
import logging

import pytest

from reroll import Prioritized, SampleToInsertRatio, StalenessWindow
from reroll.telemetry import health
from telemetry.test_stats import built, rollout


async def kinds(buffer):
    return [warning.kind for warning in (await buffer.stats()).warnings]


async def waiting(call):
    """Return a call that waits by now."""
    task = asyncio.ensure_future(call)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def ended(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_trainer_that_waits_half_of_the_time_starves():
    buffer, clock = built()
    trainer = await waiting(buffer.take_batch({"t": 1}, wait=True))
    clock.now += health.LEAST_S - 1
    assert await kinds(buffer) == [], "that is too short to tell"
    clock.now += 1
    (warning,) = (await buffer.stats()).warnings
    assert (warning.kind, warning.task) == ("starving", "t")
    assert "100%" in warning.found
    assert "capacity" in warning.change
    assert str(warning) == f"task 't': {warning.found}; {warning.change}"
    await ended(trainer)


async def test_a_wait_that_is_over_counts_and_an_old_one_is_forgotten():
    buffer, clock = built()
    assert await kinds(buffer) == []
    trainer = await waiting(buffer.take_batch({"t": 1}, wait=True))
    clock.now += 60
    await buffer.put([rollout([1])], "t")
    await trainer
    assert await kinds(buffer) == ["starving"]
    for _ in range(int(health.WINDOW_S / 30)):
        clock.now += 30
        found = await kinds(buffer)
    assert found == [], "it was long ago"


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"capacity": 2}, "it is full (2 of 2): raise its capacity"),
        ({"rate_limiter": SampleToInsertRatio(1.0, 1, (0.0, 2.0))}, "its rate limiter blocks all puts"),
        ({"max_bytes": 1200}, "max_bytes"),
    ],
)
async def test_producers_that_wait_are_told_what_holds_them(options, way_out):
    buffer, clock = built(**options)
    for _ in range(2):
        await buffer.put([rollout([1] * 100)], "t", timeout=0)
    producer = await waiting(buffer.put([rollout([1] * 100)], "t"))
    clock.now += health.LEAST_S
    (warning,) = (await buffer.stats()).warnings
    assert warning.kind == "blocked"
    assert way_out in warning.change
    await ended(producer)


async def test_producers_that_wait_at_once_count_once():
    buffer, clock = built(capacity=1)
    await buffer.put([rollout([1])], "t")
    clock.now += 50
    producers = [await waiting(buffer.put([rollout([1])], "t")) for _ in range(5)]
    clock.now += 20
    found = (await buffer.stats()).tasks["t"].waiting["put"]
    assert (found.count, found.longest_s, found.busy_s) == (5, 20, 20)
    assert await kinds(buffer) == [], "for 20 s of 70"
    for producer in producers:
        await ended(producer)
    clock.now += 10
    found = (await buffer.stats()).tasks["t"].waiting["put"]
    assert (found.count, found.longest_s, found.busy_s) == (0, 0, 20)


async def test_a_wait_that_was_given_up_counts():
    buffer, clock = built()
    for _ in range(6):
        trainer = await waiting(buffer.take_batch({"t": 1}, wait=True))
        clock.now += 5
        await ended(trainer)
    assert await kinds(buffer) == ["starving"]


async def test_a_staleness_window_that_is_used_up_is_named():
    buffer, clock = built(rate_limiter=StalenessWindow(max_staleness=0, batch=2))
    await buffer.reserve(2, "t")
    producer = await waiting(buffer.reserve(1, "t"))
    clock.now += health.LEAST_S
    (warning,) = (await buffer.stats()).warnings
    assert warning.kind == "blocked"
    assert "advance()" in warning.change
    await ended(producer)


async def test_one_group_that_is_replayed_far_more_than_others():
    buffer, _ = built(sampler=Prioritized(), max_times_sampled=None)
    for n in range(20):
        await buffer.put([rollout([1])], "t", priority=1.0 if n == 0 else 0.0)
    least, _times = health.REPLAYED
    for _ in range(19):
        await buffer.sample(2, "t")  # the one with a weight, and one of the others
    found = (await buffer.stats()).tasks["t"]
    assert found.uses.max == 19 > least
    assert [warning.kind for warning in (await buffer.stats()).warnings] == ["replayed"]
    await buffer.delete([1])
    assert await kinds(buffer) == [], "it is gone"


async def test_groups_that_are_replayed_alike_are_fine():
    buffer, _ = built(sampler="least_used", max_times_sampled=None)
    for _ in range(4):
        await buffer.put([rollout([1])], "t")
    for _ in range(40):
        await buffer.sample(2, "t")
    assert (await buffer.stats()).tasks["t"].uses.max == 20
    assert await kinds(buffer) == []


async def test_shares_are_of_what_came_lately():
    buffer, clock = built()
    for _ in range(health.ENOUGH):
        await buffer.put([rollout([1], status="failed")], "t")
    assert await kinds(buffer) == ["failing"]
    for _ in range(3):
        for _ in range(health.ENOUGH):
            await buffer.put([rollout([1])], "t")
        clock.now += health.WINDOW_S
        found = await kinds(buffer)
    assert found == [], "most of all failed, but none of the latest"


async def test_each_change_is_logged_once(caplog):
    buffer, clock = built()
    caplog.set_level(logging.INFO, "reroll")
    for _ in range(health.ENOUGH):
        await buffer.put([rollout([1], status="failed")], "t")
    for _ in range(3):
        await buffer.stats()
        await buffer.metrics()
    (line,) = caplog.records
    assert (line.name, line.levelname) == ("reroll", "WARNING")
    assert "100% of its puts failed; read the error_msg" in line.getMessage()
    for _ in range(3):
        for _ in range(health.ENOUGH):
            await buffer.put([rollout([1])], "t")
        clock.now += health.WINDOW_S
        await buffer.stats()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "no longer failing" in caplog.records[-1].getMessage()


async def test_who_waits_and_how_far_limits_are():
    buffer, clock = built(capacity=3)
    await buffer.put([rollout([1])], "t")
    batch = await buffer.lease({"t": 1}, ttl_s=50)
    await buffer.put([rollout([1])], "t", priority=0.75)
    await buffer.put([rollout([1])], "t", priority=0.0)
    producer = await waiting(buffer.put([rollout([1])], "t"))
    clock.now += 10
    stats = await buffer.stats()
    task = stats.tasks["t"]
    assert (task.limits.capacity, task.limits.occupied) == (3, 3)
    assert (task.limits.inserts_left, task.limits.samples_left, task.limits.starts_left) == (0, 2, None)
    assert (task.limits.inserts, task.limits.samples) == (3, 1)
    assert (task.waiting["put"].count, task.waiting["put"].longest_s) == (1, 10)
    assert task.waiting["take"].count == 0
    (lease,) = stats.open_leases
    assert (lease.id, lease.tasks, lease.groups) == (batch.id, ["t"], 1)
    assert (lease.held_s, lease.ends_in_s) == (10, 40)
    assert (task.priorities.histogram, task.priorities.zeros, task.priorities.count) == ({-1: 1}, 1, 2)
    assert (stats.memory_bytes, stats.disk, stats.max_bytes) == (stats.num_bytes, None, None)
    await batch.ack()
    await producer
    stats = await buffer.stats()
    assert (stats.open_leases, stats.tasks["t"].waiting["put"].count) == ([], 0)


async def test_what_a_limiter_lets_pass():
    limiter = SampleToInsertRatio(2.0, 2, (0.0, 8.0))
    buffer, _ = built(rate_limiter=limiter, max_times_sampled=2)
    assert (await buffer.stats()).tasks == {}
    await buffer.put([rollout([1])], "t")
    limits = (await buffer.stats()).tasks["t"].limits
    assert (limits.inserts_left, limits.samples_left) == (3, 0), (
        "up to 4 x 2 = 8 ahead; nothing below min_size"
    )
    await buffer.put([rollout([1])], "t")
    limits = (await buffer.stats()).tasks["t"].limits
    assert (limits.inserts_left, limits.samples_left) == (2, 2)
    assert limits.limiter == str(limiter)
