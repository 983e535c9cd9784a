"""Processes die: producers, consumers, shards. Nothing that was acknowledged is lost or doubled, and nobody hangs."""

import asyncio
import os
import random
import signal
import threading

import pytest
import ray

from ray_buffer.actors import Consumer, Producer, kill, last_heard, pid_of, total
from ray_buffer.pool import buffer_of, own_buffer
from reroll import Closed, NotStorable, ReplayBufferConfig, Unreachable
from reroll.engine.ledger import closes
from reroll.ray.transport import RayCarrier
from reroll.remote import connection, draws
from reroll.remote.client import RemoteBuffer
from reroll.testing.buffer.builders import group, names

pytestmark = pytest.mark.usefixtures("ray_cluster")


async def test_a_group_outlives_its_producer():
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        producer = Producer.remote(buffer)
        (uid,) = await producer.put.remote(7, 1)
        ray.kill(producer)
        ((taken,),) = await buffer.get(1, "t", "completed")
        assert (taken.group_id, list(taken.response_ids), taken.group_uid) == (7, [0, 1], uid)


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_a_shard_is_killed_in_mid_traffic(tmp_path, shards):
    config = ReplayBufferConfig(sampler="fifo", capacity=30, store=tmp_path / "buffer")
    with own_buffer(config, num_shards=shards) as buffer:
        producers = [Producer.remote(buffer) for _ in range(2)]
        consumer = Consumer.remote(buffer)
        puts = [producer.put.remote(40 * index, 40) for index, producer in enumerate(producers)]
        taken = consumer.take.remote(80)
        await until_consumed(buffer, 10)
        kill(buffer, shards - 1)
        await asyncio.gather(*puts)
        assert sorted(await taken) == list(range(80))
        books = await buffer.ledger()
        assert closes(books["t"])
        assert total(books, "put") == 80
        assert total(books, "resident") == total(books, "leased") == total(books, "lost") == 0


async def until_consumed(buffer, number):
    while True:
        books = await buffer.ledger()
        if total(books, "consumed") + total(books, "uncommitted") >= number:
            return
        await asyncio.sleep(0.01)


async def test_a_lost_shard_is_counted_exactly():
    with own_buffer(ReplayBufferConfig(sampler="fifo"), num_shards=2) as buffer:
        for name in range(9):
            await buffer.put(group(name), "t")
        await buffer.take_batch({"t": 3}, wait=True)
        await buffer.advance(4)
        batch = await buffer.lease({"t": 2}, wait=True)
        here = await shard_count(buffer, 1)
        held = [s.info.uid for s in batch.samples["t"] if s.info.uid % 2 == 0]
        kill(buffer, 1)
        books = (await buffer.ledger())["t"]
        assert closes(books)
        assert (books["put"].groups, books["lost"].groups) == (9, here + len(held))
        assert await buffer.version() == await buffer.wait_version(4, timeout=30) == 4
        if held:
            with pytest.raises(TimeoutError, match="lost"):
                await batch.ack()
        uid = await buffer.put(group("new"), "t")
        assert uid > 9, "a uid of a lost group is used again"
        assert closes((await buffer.ledger())["t"])


async def shard_count(buffer, shard):
    return (await buffer.shard_stats())[shard].total.num_groups


async def test_a_dead_actor_gives_its_leases_back():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), holder_ttl_s=2.0) as buffer:
        for name in range(3):
            await buffer.put(group(name), "t")
        consumer = Consumer.remote(buffer)
        assert await consumer.hold.remote(2) == [0, 1]
        assert await buffer.count("t", "completed") == 1
        ray.kill(consumer)
        groups, _ = await buffer.take_batch({"t": 3}, wait=True, timeout=30)
        assert names(groups["t"]) == [0, 1, 2], "they come back to their old place"


async def test_a_dead_task_gives_its_leases_back_when_it_is_not_heard_of():
    @ray.remote(max_retries=0, num_cpus=0)
    def lease_and_die(handle):
        handle.blocking().lease({"t": 1}).take()
        os.kill(os.getpid(), signal.SIGKILL)

    with buffer_of(ReplayBufferConfig(sampler="fifo"), holder_ttl_s=1.0) as buffer:
        await buffer.put(group("a"), "t")
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            await lease_and_die.remote(buffer)
        groups, _ = await buffer.take_batch({"t": 1}, wait=True, timeout=30)
        assert names(groups["t"]) == ["a"]


async def test_a_living_driver_is_heard_of_while_its_event_loop_is_busy():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), holder_ttl_s=4.0) as buffer:
        await buffer.put(group("a"), "t")
        batch = await buffer.lease({"t": 1})
        first = last_heard(buffer)
        while last_heard(buffer) < first + 1.5:  # a training step that holds the event loop
            pass
        assert await buffer.count("t", "completed") == 0
        await batch.ack()
        assert total(await buffer.ledger(), "consumed") == 1


@pytest.mark.parametrize("seed", range(3))
async def test_exchanges_that_get_lost_lose_and_repeat_no_group(monkeypatch, seed):
    dice, exchange = random.Random(seed), RayCarrier._exchange

    def sometimes(carrier, messages):
        if dice.random() < 0.7:
            exchange(carrier, messages)

    with buffer_of(ReplayBufferConfig(sampler="fifo"), holder_ttl_s=5.0, unreachable_s=60.0) as buffer:
        monkeypatch.setattr(RayCarrier, "_exchange", sometimes)
        puts = [asyncio.ensure_future(buffer.put(group(name), "t")) for name in range(10)]
        taken = []
        for _ in range(5):
            groups, _ = await buffer.take_batch({"t": 2}, wait=True, timeout=60)
            taken += names(groups["t"])
        assert sorted(await asyncio.gather(*puts)) == list(range(1, 11))
        assert sorted(taken) == list(range(10))
        monkeypatch.undo()
        while total(await buffer.ledger(), "consumed") < 10:  # noqa: ASYNC110  (acks arrive later)
            await asyncio.sleep(0.05)


async def test_a_silent_shard_is_unreachable():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), unreachable_s=2.0) as buffer:
        await buffer.put(group("a"), "t")
        pid = pid_of(buffer)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable):
                await buffer.count("t", "completed")
            with pytest.raises(Unreachable):
                await buffer.take_batch({"t": 2}, wait=True, timeout=0.1)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert names(await buffer.get(1, "t", "completed")) == ["a"]


async def test_a_put_that_cannot_travel_keeps_no_other_from_arriving():
    bad = threading.Lock()
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        puts = (buffer.put(group(name), "t", tags={"tag": tag}) for name, tag in enumerate([1, bad, 2]))
        first, failed, last = await asyncio.gather(*puts, return_exceptions=True)
        assert isinstance(failed, NotStorable)
        assert sorted((first, last)) == [1, 2]
        assert sorted(names(await buffer.get(3, "t", "completed"))) == [0, 2]


async def test_a_take_that_gets_less_because_its_shard_was_away_keeps_what_it_has_consumed(
    tmp_path, monkeypatch
):
    consume, is_first, others = RemoteBuffer.consume, iter([True]), []

    async def meanwhile(client, lease, **options):
        if next(is_first, False):
            await client.end_lease(lease)
            others.extend(names(await buffer.get(1, "t", "completed")))
        return await consume(client, lease, **options)

    with buffer_of(ReplayBufferConfig(sampler="fifo", store=tmp_path / "buffer")) as buffer:
        for name in "ab":
            await buffer.put(group(name), "t")
        monkeypatch.setattr(RemoteBuffer, "consume", meanwhile)
        groups, counts = await buffer.take_batch({"t": 2}, wait=True, timeout=0.2)
        assert (others, names(groups["t"]), counts) == (["a"], ["b"], {"t": 1})


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_timeout_is_kept_when_a_shard_is_silent(shards, monkeypatch):
    monkeypatch.setattr(connection, "_GRACE_S", 0.2)
    monkeypatch.setattr(draws, "_GRACE_S", 0.2)
    with buffer_of(
        ReplayBufferConfig(sampler="fifo"), num_shards=shards, unreachable_s=300.0, holder_ttl_s=5.0
    ) as buffer:
        await buffer.put(group("a"), "t")
        pid = pid_of(buffer)
        os.kill(pid, signal.SIGSTOP)
        try:
            calls = (
                buffer.take_batch({"t": 1}, wait=True, timeout=0.3),
                buffer.sample(1, "t", timeout=0.3),
                buffer.wait_ready({"t": 1}, timeout=0.3),
            )
            ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
            assert [type(end) for end in ends] == [Unreachable] * len(calls)
        finally:
            os.kill(pid, signal.SIGCONT)
        groups, _ = await buffer.take_batch({"t": 1}, wait=True, timeout=60)
        assert names(groups["t"]) == ["a"], "nothing stays lent"


async def test_a_shard_that_is_away_does_not_keep_the_others_from_an_ack():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3, unreachable_s=1.0) as buffer:
        for name in range(3):
            await buffer.put(group(name), "t")
        batch = await buffer.lease({"t": 3}, wait=True)
        pid = pid_of(buffer)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable):
                await batch.ack()
        finally:
            os.kill(pid, signal.SIGCONT)
        shards = await buffer.shard_stats()
        assert [part.total.leased for part in shards[1:]] == [0, 0]
        await batch.ack()
        assert total(await buffer.ledger(), "consumed") == 3


async def test_an_acknowledged_lease_stays_so_when_the_shard_is_killed(tmp_path):
    with own_buffer(ReplayBufferConfig(sampler="fifo", store=tmp_path / "buffer")) as buffer:
        for name in "abc":
            await buffer.put(group(name), "t", put_id=name)
        done = await buffer.lease({"t": 1}, wait=True)
        open_ = await buffer.lease({"t": 1}, wait=True)
        await done.ack()
        kill(buffer)
        assert len(type(buffer).connect(buffer._spec.name)) == 2, "it is waited for"
        assert await buffer.put(group("a"), "t", put_id="a") == 1, "stored once"
        await done.ack()
        await open_.ack()  # late, and nobody else got it
        assert names(await buffer.get(9, "t", "completed")) == ["c"]
        assert closes((await buffer.ledger())["t"])


async def test_after_closing_every_handle_is_told():
    with own_buffer(ReplayBufferConfig(sampler="fifo")) as buffer:
        other = type(buffer).connect(buffer._spec.name)
        waiting = asyncio.ensure_future(other.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "u")
        await buffer.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await other.count("t", "completed")
        with pytest.raises(Closed):
            type(buffer).connect(buffer._spec.name)


async def test_a_lost_shard_knows_the_step_of_its_tasks():
    with own_buffer(ReplayBufferConfig(max_staleness=2)) as buffer:
        await buffer.put(group(versions=8), "t", current_train_step=9)
        kill(buffer, 0)
        await buffer.put(group(versions=0), "t")
        assert await buffer.count("t", "completed") == 0
        assert await buffer.count("t", "expired") == 1
