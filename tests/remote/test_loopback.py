"""Client, connection, host and dispatcher over a carrier that is not ZeroMQ: the conformance suite, and lost messages."""

import asyncio
import random
from typing import Any

import pytest

from remote.loopback import Loopback
from reroll import ReplayBufferConfig, Status
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import bucket, group, names
from reroll.testing.buffer_suite import BufferSuite

FIFO = ReplayBufferConfig(sampler="fifo")


class TestLoopback(BufferSuite):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.clients: list[Any] = []

    async def make(self, config: ReplayBufferConfig) -> Any:
        self.clients.append(Loopback(config).connect())
        return self.clients[-1]

    async def settle(self) -> None:
        for _ in range(3):
            await super().settle()
            await asyncio.gather(*(client.health() for client in self.clients))


@pytest.mark.parametrize("seed", range(5))
async def test_messages_that_get_lost_lose_and_repeat_no_group(seed):
    dice = random.Random(seed)
    loopback = Loopback(FIFO, loses=lambda: dice.random() < 0.3)
    producers, consumers = ([loopback.connect(heartbeat_s=0.005) for _ in range(2)] for _ in range(2))
    taken: list[Any] = []

    async def produce(client: Any, number: int) -> None:
        for index in range(20):
            await client.put(group(f"{number}-{index}"), "t")

    async def consume(client: Any) -> None:
        for _ in range(10):
            groups, _ = await client.take_batch({"t": 2}, wait=True)
            taken.extend(names(groups["t"]))

    await asyncio.gather(
        *(produce(client, number) for number, client in enumerate(producers)), *map(consume, consumers)
    )
    assert sorted(taken) == sorted(f"{number}-{index}" for number in range(2) for index in range(20))
    while (await bucket(producers[0], "consumed")).groups < 40:  # noqa: ASYNC110  (a lost ack is sent again)
        await asyncio.sleep(0.005)
    assert closes((await producers[0].ledger())["t"])
    for client in (*producers, *consumers):
        await client.close()


@pytest.mark.parametrize("seed", range(5))
async def test_a_client_that_closes_holds_nothing_although_messages_got_lost(seed):
    dice, share = random.Random(seed), 0.3
    loopback = Loopback(FIFO, loses=lambda: dice.random() < share)
    client, other = (loopback.connect(heartbeat_s=0.005) for _ in range(2))
    for number in range(20):
        await other.put(group(number), "t")
    calls = (
        lambda: client.get(1, "t", Status.COMPLETED),
        lambda: client.reserve(1, "t"),
        lambda: client.lease({"t": 1}).__aenter__(),
    )
    for _ in range(30):
        call = asyncio.ensure_future(dice.choice(calls)())
        await asyncio.sleep(dice.random() * 0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    share = 0.0
    await client.close()
    while len(loopback.host.sessions) > 1 or (await other.stats()).leases:  # noqa: ASYNC110  (the goodbye is on its way)
        await asyncio.sleep(0.001)
    assert (await other.stats()).reservations == 0
    assert closes((await other.ledger())["t"])
    await other.close()


async def test_the_length_of_a_client_is_never_a_wrong_zero():
    loopback = Loopback(FIFO)
    producer, client = loopback.connect(), loopback.connect()
    for number in range(3):
        await producer.put(group(str(number)), "t")
    with pytest.raises(TypeError, match="await a call first"):
        len(client)
    assert client
    await client.health()
    assert len(client) == len(producer) == 3
