"""What goes wrong when a user forgets something: it is told, and nothing is lost in silence."""

import pytest

from durable.stores import fifo
from replay.buffers import TASK, fill, group, uids_of
from reroll import ReplayBufferConfig, UncommittedWarning


@pytest.fixture(params=["in memory", "with a store"])
def buffer(request, tmp_path):
    return fifo(tmp_path / "store" if request.param == "with a store" else None, max_uncommitted_steps=9)


async def test_a_group_that_comes_back_with_its_first_id_is_stored(buffer):
    uid = await buffer.put(group(status="aborted"), TASK, put_id="prompt 1")
    (taken,) = await buffer.get(1, TASK, "aborted")
    assert await buffer.put(taken, TASK, put_id="prompt 1") == uid  # the first put, repeated
    assert await buffer.count(TASK, "aborted") == 0
    taken[0].response_ids, taken[0].status = [7, 7, 7], "completed"
    assert await buffer.put(taken, TASK, put_id="prompt 1") == uid
    assert await buffer.put(taken, TASK, put_id="prompt 1") == uid  # repeated again
    assert [row.uid for row in await buffer.query({})] == [uid]
    ((rollout,),) = await buffer.get(9, TASK, "completed")
    assert len(rollout.response_ids) == 3
    assert (await buffer.ledger())[TASK]["put"].groups == 1
    await buffer.close()


async def test_a_step_before_one_that_was_used_is_told(buffer):
    await fill(buffer, 6)
    for step in (1, 2, 3):
        await buffer.take_batch({TASK: 1}, train_step=step)
    with pytest.warns(UncommittedWarning, match=r"step 2 is older than step 3.* rewind\(step\) first"):
        await buffer.take_batch({TASK: 1}, train_step=2)
    await buffer.sample(1, TASK, train_step=1)  # said already: once for each step that was passed
    await buffer.lease({TASK: 1}, train_step=2)
    await buffer.rewind(1)
    groups, _ = await buffer.take_batch({TASK: 1}, train_step=2)
    assert uids_of(groups[TASK]) == [2]
    await buffer.close()


async def test_leaving_a_buffer_closes_it(tmp_path):
    async with fifo(tmp_path / "store") as buffer:
        await fill(buffer, 1)
    with ReplayBufferConfig(store=tmp_path / "store", sampler="fifo").build_blocking() as again:
        assert again.count(TASK, "completed") == 1
    async with fifo(tmp_path / "store") as buffer:
        assert len(buffer) == 1


def test_a_store_without_a_name():
    with pytest.raises(ValueError, match="must name a directory"):
        ReplayBufferConfig(store="")
