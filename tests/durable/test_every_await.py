"""Cancellation at every await of every verb, with many seeds; closing that is cancelled or repeated; room of a cancelled take."""

import asyncio
import inspect

import pytest

from durable.stores import cancelled, fifo, stalled, while_writing
from replay.buffers import TASK, fill, group
from reroll import Queue, ReplayBuffer, ReplayBufferConfig, Server, connect
from reroll.testing.cancelling import CAPACITY, CASES, sweep
from reroll.testing.probe import probe


def test_every_verb_has_a_case():
    verbs = {name for name, _ in inspect.getmembers(ReplayBuffer, callable) if not name.startswith("_")}
    assert verbs == {*CASES, "close"}


@pytest.mark.parametrize("kind", ["memory", "durable", "on_disk"])
@pytest.mark.parametrize("seeds", [1, pytest.param(25, marks=pytest.mark.slow)])
async def test_sweeps(tmp_path, kind, seeds):
    store = {} if kind == "memory" else {"store": tmp_path / "store"}
    options = {"max_resident_bytes": 0} if kind == "on_disk" else {}
    buffer = ReplayBufferConfig(sampler="fifo", capacity=CAPACITY, **store, **options).build()
    number = 0
    for seed in range(seeds):
        for late in (False, True):
            number += await sweep(buffer, tmp_path, seed=seed, late=late)
    assert number >= (5 if kind == "memory" else 40) * seeds
    await buffer.close()


@pytest.mark.parametrize("limits", [{"capacity": 2}, {"rate_limiter": Queue(2)}, {"max_bytes": 400}], ids=str)
async def test_the_room_of_a_take_is_kept_until_it_is_written(tmp_path, limits):
    buffer = fifo(tmp_path / "store", **limits)
    await fill(buffer, 2)
    with stalled(buffer):
        taker = await while_writing(buffer.get(2, TASK, "completed"))
        putting = await while_writing(buffer.put(group(), TASK))
        await cancelled(taker)
        await asyncio.sleep(0)
        assert await buffer.count(TASK, "completed") == 2
    await probe(buffer).disk.drained()
    assert await buffer.count(TASK, "completed") == 2
    assert not putting.done()
    assert len(await buffer.get(1, TASK, "completed")) == 1
    assert await asyncio.wait_for(putting, 60) == 3
    await buffer.close()


@pytest.mark.parametrize("first_is_cancelled", [False, True])
async def test_a_second_close_returns_when_the_first_has_ended(tmp_path, first_is_cancelled):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 2)
    with stalled(buffer):
        putting = await while_writing(buffer.put(group(), TASK))
        first, second = (asyncio.ensure_future(buffer.close()) for _ in range(2))
        for turn in range(20):
            if turn == 5 and first_is_cancelled:
                first.cancel()
            await asyncio.sleep(0.001)
        assert not first.done()
        assert not second.done()
    await second
    assert await putting == 3
    await asyncio.wait([first])
    assert first.cancelled() == first_is_cancelled
    again = fifo(tmp_path / "store")  # which is free
    assert len(again) == 3
    await again.close()


async def test_servers_and_clients_are_closed_by_many(tmp_path):
    server = await Server(ReplayBufferConfig(store=tmp_path / "store"), "tcp://127.0.0.1:0").start()
    client = connect(server.address)
    await client.put(group(), TASK)
    await asyncio.gather(*(client.close() for _ in range(3)))
    await asyncio.gather(*(server.stop() for _ in range(3)))
    await server.stop()
    again = fifo(tmp_path / "store", sampler="uniform")
    assert len(again) == 1
    await again.close()
