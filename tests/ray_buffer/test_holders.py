"""Who holds leases and reservations keeps them while it lives, and only then."""

import asyncio
import time

import pytest
import ray

from ray_buffer.actors import Consumer, last_heard, shard_actor
from ray_buffer.pool import buffer_of
from reroll import ReplayBufferConfig, StalenessWindow
from reroll.ray.holders import Holders
from reroll.ray.holding import heart
from reroll.ray.wire import Holder, Request
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


async def test_what_is_used_up_or_over_is_held_by_nobody():
    with buffer_of(WINDOW, holder_ttl_s=1.0) as buffer:
        for name in range(3):
            reservation = await buffer.reserve(1, "t")
            await buffer.put(group(name), "t", reservation=reservation)
        await buffer.lease({"t": 1}, ttl_s=0.01)
        (key,) = [line.key for line in buffer._spread.lines]
        assert key in heart._held
        for _ in range(1_000):
            await buffer.count("t", "completed")  # time passes there
            held = await shard_actor(buffer).held.remote()
            if not held and key not in heart._held:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{held} things, and {heart._held}, are still held")


async def test_what_cannot_be_given_back_is_given_back_later():
    tries = []

    async def give_back(thing):
        tries.append(thing)
        if len(tries) == 1:
            raise OSError("no room on the disk, for a moment")

    holders = Holders(give_back, lambda _: True, 0.02)  # nobody tells that it lives
    holders.hold(Holder("gone"), ("lease", 1))
    await holders._watches["gone"]
    assert tries == [("lease", 1), ("lease", 1)]
    assert not holders.heard("gone")


async def test_a_shard_that_was_stopped_gives_nothing_back_of_a_holder_that_lives():
    returned = []

    async def give_back(thing):
        returned.append(thing)

    holders = Holders(give_back, lambda _: True, 1.0)
    holders.hold(Holder("alive"), ("lease", 1))
    await asyncio.sleep(0)  # it is watched
    time.sleep(2.0)  # noqa: ASYNC251  (the shard is stopped; heartbeats wait to be read)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not returned
    assert holders.heard("alive")
    await holders._watches["alive"]  # then it is silent
    assert returned == [("lease", 1)]


async def test_what_was_got_again_since_a_shard_knew_of_nothing_is_still_held():
    with buffer_of(WINDOW) as buffer:
        await buffer.reserve(1, "t")
        (key,) = [line.key for line in buffer._spread.lines]
        before = dict(heart._held[key])
        await buffer.reserve(1, "t")
        heart._settle_all(key, before)
        assert key in heart._held
        heart._settle_all(key, dict(heart._held[key]))
        assert key not in heart._held


async def test_a_lease_that_is_acknowledged_twice_ends_no_other():
    with buffer_of(FIFO) as buffer:
        for name in range(2):
            await buffer.put(group(name), "t")
        one, two = [await buffer.lease({"t": 1}) for _ in range(2)]
        await one.ack()
        await one.ack()
        (key,) = [line.key for line in buffer._spread.lines]
        assert list(heart._held[key]) == [two.id]
        await two.ack()
        assert key not in heart._held


async def test_an_actor_that_was_started_again_holds_nothing_of_what_it_held_before():
    with buffer_of(FIFO) as buffer:
        await buffer.put(group("a"), "t")
        consumer = Consumer.remote(buffer)
        before = Holder("the process that it was before", consumer)
        lend = Request("lend", "lend", {"task_batch_sizes": {"t": 1}}, before)
        assert (await shard_actor(buffer).call.remote(lend)).error is None
        groups, _ = await buffer.take_batch({"t": 1}, wait=True, timeout=60)
        assert names(groups["t"]) == ["a"]
        ray.kill(consumer)
