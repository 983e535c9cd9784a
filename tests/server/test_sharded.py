"""Servers as the shards of one buffer: the conformance suite, and servers that do not belong together."""

import asyncio
from typing import Any

import pytest

from remote.of_one_shard import OF_ONE_SHARD
from reroll import InvalidArgument, InvalidConfig, ReplayBufferConfig, connect, connect_blocking
from reroll.testing.buffer.builders import group, names
from reroll.testing.buffer_suite import BufferSuite
from server.hosting import Host
from server.test_suite import Served

FIFO = ReplayBufferConfig(sampler="fifo")
ANYWHERE = "tcp://127.0.0.1:0"


def addresses_of(host: Host, config: ReplayBufferConfig, shards: int = 2, bind: str = ANYWHERE) -> list[str]:
    return [
        host.start(config, bind.format(index), shard=f"{index}/{shards}") for index in reversed(range(shards))
    ]


class TestTwoServers(Served, BufferSuite):
    cancelled_share = 0.2
    locals().update(dict.fromkeys(OF_ONE_SHARD))

    async def make(self, config: ReplayBufferConfig) -> Any:
        self.clients.append(connect(addresses_of(self.host, config)))
        return self.clients[-1]

    async def settle(self) -> None:
        for _ in range(6):
            await super().settle()
            await asyncio.gather(*(client.health() for client in self.clients))


async def test_servers_in_any_order_are_one_buffer(host):
    addresses = addresses_of(host, ReplayBufferConfig(sampler="fifo", capacity=9), shards=3)
    async with connect(addresses) as client, connect(addresses[::-1]) as other:
        uids = [await client.put(group(name), "t") for name in range(9)]
        assert sorted(uids) == list(range(1, 10))
        assert [stats.total.num_groups for stats in await client.shard_stats()] == [3, 3, 3]
        assert [taken[0].group_uid for taken in await other.peek([5, 2, 9])] == [5, 2, 9]
        groups, counts = await other.take_batch({"t": 9}, wait=True, timeout=30)
        assert (sorted(names(groups["t"])), counts) == (list(range(9)), {"t": 9})


async def test_servers_that_are_no_shards_of_one_buffer_are_refused(host):
    first, second = addresses_of(host, FIFO)
    alone = host.start(FIFO, ANYWHERE)
    other = host.start(ReplayBufferConfig(sampler="fifo", capacity=8), ANYWHERE, shard="1/2")
    for addresses, problem in [
        ([first, alone], "not the 2 shards"),
        ([second, second], "not the 2 shards"),
        ([first, second, alone], "not the 3 shards"),
        ([second, other], "different configurations"),
    ]:
        async with connect(addresses) as client:
            with pytest.raises(InvalidArgument, match=problem):
                await client.count("t", "completed")
    with pytest.raises(InvalidArgument, match="at least one"):
        connect([])


async def test_one_server_in_a_list_is_a_buffer(host):
    async with connect([host.start(FIFO, ANYWHERE)]) as client:
        assert await client.put(group("a"), "t") == 1
        assert names(await client.get(1, "t", "completed")) == ["a"]


def test_threads_have_the_same_verbs(host):
    with connect_blocking(addresses_of(host, FIFO)) as client:
        for name in range(4):
            client.put(group(name), "t")
        with client.lease({"t": 3}, wait=True, timeout=30) as batch:
            assert batch.counts == {"t": 3}
            batch.ack()
        batches = client.batches({"t": 1})
        next(batches).ack()
        batches.close()
        assert len(client) == 0


@pytest.mark.parametrize("shard", ["2/2", "first", "0/0", ""])
def test_a_place_that_cannot_be_is_refused(shard):
    from reroll import Server  # noqa: PLC0415

    with pytest.raises(InvalidConfig, match="invalid shard"):
        Server(FIFO, ANYWHERE, shard=shard)
