"""Groups are written to memory that is used again on their way: each arrives as itself, whatever else is on its way."""

import asyncio

import numpy as np
import pytest

from ray_buffer.actors import here, kill
from ray_buffer.pool import buffer_of, own_buffer
from reroll import ReplayBufferConfig, Rollout

pytestmark = pytest.mark.usefixtures("ray_cluster")


def large(name: int, tokens: int = 1 << 18) -> list[Rollout]:
    """Return a group of 1 MB, each with tokens of its own."""
    return [Rollout(group_id=name, response_ids=np.full(tokens, name, np.int32), status="completed")]


def are_themselves(groups: list[list[Rollout]]) -> set[int]:
    """Return the names of groups, if all tokens of each are its own."""
    for (rollout,) in groups:
        assert set(np.unique(rollout.response_ids).tolist()) == {rollout.group_id}
    return {rollout.group_id for (rollout,) in groups}


@pytest.mark.parametrize("share_memory", [True, False])
async def test_more_at_once_than_the_memory_holds_and_again(share_memory):
    with buffer_of(ReplayBufferConfig(sampler="fifo"), share_memory=share_memory) as buffer:
        for first in (0, 100):
            await asyncio.gather(*(buffer.put(large(first + number), "t") for number in range(20)))
            groups, _ = await buffer.take_batch({"t": 20}, wait=True, timeout=60)
            assert are_themselves(groups["t"]) == set(range(first, first + 20))


async def test_who_waits_for_room_keeps_its_bytes_while_others_come_and_go():
    with buffer_of(ReplayBufferConfig(sampler="fifo", capacity=2)) as buffer:
        waiting = [asyncio.ensure_future(buffer.put(large(number), "t")) for number in range(4)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        others = [asyncio.ensure_future(buffer.put(large(number), "t")) for number in (10, 11)]
        for other in others:
            other.cancel()
        for number in (20, 21, 22):
            await buffer.put(large(number), "u" if number % 2 else "v")
        taken = [await buffer.take_batch({"t": 1}, wait=True, timeout=60) for _ in range(4)]
        await asyncio.gather(*waiting)
        assert are_themselves([group for groups, _ in taken for group in groups["t"]]) == {0, 1, 2, 3}
        assert are_themselves(await buffer.get(1, "u", "completed")) == {21}


async def test_who_waits_for_room_is_sent_again_when_the_shard_is_killed(tmp_path):
    config = ReplayBufferConfig(sampler="fifo", capacity=2, store=tmp_path / "buffer")
    with own_buffer(config, placement=here()) as buffer:
        puts = [asyncio.ensure_future(buffer.put(large(number), "t")) for number in range(5)]
        while sum(put.done() for put in puts) < 2:
            await asyncio.wait([put for put in puts if not put.done()], return_when=asyncio.FIRST_COMPLETED)
        kill(buffer)
        taken = [await buffer.take_batch({"t": 1}, wait=True, timeout=60) for _ in range(5)]
        await asyncio.gather(*puts)
        assert are_themselves([group for groups, _ in taken for group in groups["t"]]) == set(range(5))
        assert len(buffer) == 0


async def test_a_batch_stays_as_it_is_when_others_are_taken_with_it_and_after_it():
    with own_buffer(ReplayBufferConfig(sampler="fifo"), placement=here()) as buffer:
        await asyncio.gather(*(buffer.put(large(number, 1 << 16), "t") for number in range(8)))
        together = await asyncio.gather(*(buffer.get(2, "t", "completed") for _ in range(3)))
        groups, _ = await buffer.take_batch({"t": 2}, wait=True, timeout=60)
        taken = [group for some in (*together, groups["t"]) for group in some]
        assert are_themselves(taken) == set(range(8))
        assert not any(rollout.response_ids.flags.writeable for (rollout,) in taken)
