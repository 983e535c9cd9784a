"""Leases and reservations stay with a process while it lives, and only then."""

import asyncio
import os
import signal

import pytest
import ray

from ray_buffer.actors import Consumer, last_heard, pid_of, shard_actor
from ray_buffer.pool import buffer_of
from reroll import ReplayBufferConfig, StalenessWindow
from reroll.testing.buffer.builders import group, names

pytestmark = pytest.mark.usefixtures("ray_cluster")

FIFO = ReplayBufferConfig(sampler="fifo")
WINDOW = ReplayBufferConfig(sampler="fifo", rate_limiter=StalenessWindow(0, 100))


async def test_a_driver_with_a_reservation_is_heard_of():
    with buffer_of(WINDOW, holder_ttl_s=4.0) as buffer:
        reservation = await buffer.reserve(2, "t")
        first = last_heard(buffer)
        while last_heard(buffer) == first:
            pass
        assert await buffer.release(reservation) == 2


async def test_what_is_used_up_or_over_is_held_by_no_client():
    with buffer_of(WINDOW, holder_ttl_s=1.0) as buffer:
        for name in range(3):
            reservation = await buffer.reserve(1, "t")
            await buffer.put(group(name), "t", reservation=reservation)
        await buffer.lease({"t": 1}, ttl_s=0.01)
        for _ in range(1_000):
            await buffer.count("t", "completed")  # time passes there
            if not await shard_actor(buffer).num_held.remote():
                return
            await asyncio.sleep(0.02)
        raise AssertionError("leases and reservations are still held")


async def test_an_actor_that_was_stopped_returns_nothing_of_a_client_that_lives():
    with buffer_of(FIFO, holder_ttl_s=2.0) as buffer:
        await buffer.put(group("a"), "t")
        batch = await buffer.lease({"t": 1})
        pid = pid_of(buffer)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(4.0)
        os.kill(pid, signal.SIGCONT)
        for _ in range(10):
            assert await buffer.count("t", "completed") == 0
            await asyncio.sleep(0.1)
        await batch.ack()


async def test_a_lease_that_is_acknowledged_twice_ends_no_other():
    with buffer_of(FIFO) as buffer:
        for name in range(2):
            await buffer.put(group(name), "t")
        one, two = [await buffer.lease({"t": 1}) for _ in range(2)]
        await one.ack()
        await one.ack()
        assert await shard_actor(buffer).num_held.remote() == 1
        await two.ack()
        assert await shard_actor(buffer).num_held.remote() == 0


async def test_an_actor_that_is_started_again_holds_nothing_of_what_it_held_before():
    with buffer_of(FIFO, holder_ttl_s=2.0) as buffer:
        await buffer.put(group("a"), "t")
        consumer = Consumer.options(max_restarts=1).remote(buffer)
        assert await consumer.hold.remote(1) == ["a"]
        ray.kill(consumer, no_restart=False)
        groups, _ = await buffer.take_batch({"t": 1}, wait=True, timeout=60)
        assert names(groups["t"]) == ["a"]
        ray.kill(consumer)
