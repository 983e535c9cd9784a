"""Many producers and consumers at once, while shards are killed: nothing is lost, nothing doubled."""

import asyncio

import pytest

from ray_buffer.actors import Consumer, Producer, kill, total
from ray_buffer.pool import own_buffer
from reroll import ReplayBufferConfig
from reroll.engine.ledger import closes

pytestmark = pytest.mark.usefixtures("ray_cluster")

SECONDS = 20
PRODUCERS, CONSUMERS = 8, 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.slow), 3])
async def test_traffic_of_many_while_shards_are_killed(tmp_path, shards):
    config = ReplayBufferConfig(sampler="fifo", capacity=60, store=tmp_path / "buffer")
    with own_buffer(config, num_shards=shards) as buffer:
        producers = [Producer.remote(buffer) for _ in range(PRODUCERS)]
        consumers = [Consumer.remote(buffer) for _ in range(CONSUMERS)]
        puts = [producer.run.remote(index, SECONDS) for index, producer in enumerate(producers)]
        takes = [consumer.run.remote(leases=index % 2 == 0) for index, consumer in enumerate(consumers)]
        for shard in range(shards):
            await until(buffer, lambda books, shard=shard: done(books) >= 30 * (shard + 1))
            kill(buffer, shard)
        put = [name for names in await asyncio.gather(*puts) for name in names]
        await until(buffer, lambda books: done(books) >= len(put))
        books = (await buffer.ledger())["t"]
        await buffer.close()
        taken = [name for names in await asyncio.gather(*takes) for name in names]
        assert sorted(taken) == sorted(put)
        assert closes(books)
        assert books["put"].groups == len(put)
        assert {books[place].groups for place in ("resident", "leased", "out", "lost")} == {0}


async def until(buffer, holds):
    while True:
        if holds(await buffer.ledger()):
            return
        await asyncio.sleep(0.05)


def done(books):
    return total(books, "consumed") + total(books, "uncommitted")
