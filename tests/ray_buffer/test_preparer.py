"""Data preparation in an actor: engines push results or fill a queue, ranks in other processes fetch their part."""

import asyncio
import contextlib

import pytest
import ray
from ray.util.queue import Queue

from prepare_loops.results import config, prompts_of, result
from ray_buffer.actors import total
from ray_buffer.pool import buffer_of
from reroll import Closed, InvalidArgument, ReplayBufferConfig, StoreFailed, WaitTimeout
from reroll.ray import PreparerActor

pytestmark = pytest.mark.usefixtures("ray_cluster")


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, preparer: PreparerActor, rank: int) -> None:
        self._preparer, self._rank = preparer.blocking(), rank

    def train(self, step: int):
        return self._preparer.get_data(self._rank, step, timeout=60)


async def test_engines_push_and_ranks_fetch():
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        preparer = PreparerActor.create(config(num_ranks=2), buffer=buffer, name="prepare")
        ranks = [Rank.remote(PreparerActor.connect("prepare"), rank) for rank in (0, 1)]
        assert await preparer.put([result(number) for number in range(1, 10)], timeout=30) == 9
        trained = []
        for step in (1, 2):
            parts = await asyncio.gather(*(rank.train.remote(step) for rank in ranks))
            assert len(parts[0]) == len(parts[1])
            trained += prompts_of(*parts)
        assert sorted(trained) == list(range(1, 9))
        with pytest.raises(WaitTimeout, match="3 of 4 groups are missing"):
            await preparer.get_data(0, 3, timeout=0.5)
        with pytest.raises(InvalidArgument):
            await preparer.get_data(5, 1, timeout=1)
        assert (await preparer.state(step=2))["step"] == 2
        assert total(await buffer.ledger(), "consumed") == 8
        await preparer.shutdown()
        with pytest.raises(Closed):
            await preparer.get_data(0, 3, timeout=1)
        assert len(buffer) == 1


async def test_whoever_comes_first_nobody_is_sent_away_before_it_has_started():
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        preparer = PreparerActor.create(config(num_ranks=2), buffer=buffer)
        asked = [preparer.get_data(rank, 1, timeout=60) for rank in (0, 1)]
        put = preparer.put([result(number) for number in range(1, 5)], timeout=60)
        *parts, count = await asyncio.gather(*asked, put)
        assert (sorted(prompts_of(*parts)), count) == ([1, 2, 3, 4], 4)
        await preparer.shutdown()


async def test_who_asks_a_preparer_that_cannot_be_made_is_told_why(tmp_path):
    (tmp_path / "file").touch()
    own = ReplayBufferConfig(sampler="fifo", store=tmp_path / "file")
    preparer = PreparerActor.create(config(replay_buffer=own), name="broken")
    with pytest.raises(StoreFailed, match="name another directory"):
        await preparer.get_data(0, 1, timeout=60)
    with pytest.raises(InvalidArgument, match="choose another name"):
        PreparerActor.create(config(), name="broken")
    await preparer.shutdown()


async def test_a_queue_of_ray_is_a_source_and_a_dead_preparer_gives_its_steps_back():
    queue = Queue(actor_options={"num_cpus": 0})
    with buffer_of(ReplayBufferConfig(sampler="fifo"), holder_ttl_s=2.0) as buffer:
        preparer = PreparerActor.create(config(), queue, buffer=buffer)
        queue.put_nowait_batch([result(number) for number in range(1, 5)])
        assert prompts_of(await preparer.get_data(0, 1, timeout=60)) == [1, 2, 3, 4]
        ray.kill(preparer._actor)
        with contextlib.suppress(Closed):
            while True:  # it may still answer; to ask for another step would say that this one was trained
                await preparer.get_data(0, 1, timeout=1)
        await buffer.wait_ready({"train": 4}, timeout=30)
    queue.shutdown()
