"""Hand-outs while a buffer is saved or closed, and saves that are given up: no group is lost, no checkpoint is spoilt."""

import asyncio
from typing import Any

import pytest

from durable.stores import fifo, picture
from replay.buffers import TASK, group, uids_of
from reroll import NotStorable, ReplayBufferConfig
from reroll.testing.probe import probe


async def test_a_take_that_reads_from_disk_while_the_buffer_is_closed(tmp_path):
    buffer = fifo(tmp_path / "store")
    await asyncio.gather(*(buffer.put(group(), TASK) for _ in range(3)))
    await buffer.close()
    buffer = fifo(tmp_path / "store")  # where no rollouts are in memory
    store, loop = probe(buffer).disk.store, asyncio.get_running_loop()
    read, closed = store.read, list[Any]()

    def read_slowly(uids: Any) -> Any:
        if not closed:
            closed.append(asyncio.run_coroutine_threadsafe(buffer.close(), loop))
            store._thread.join(0.5)  # a store that is closed now has no writer any more
        return read(uids)

    store.read = read_slowly
    taken = await buffer.get(2, TASK, "completed")
    await asyncio.wrap_future(closed[0])
    assert uids_of(taken) == [1, 2]
    again = fifo(tmp_path / "store")
    left = await picture(again)
    assert [row.uid for row in left["rows"]] == [3]
    await again.close()


async def test_a_save_that_is_cancelled_writes_nothing_that_came_after_it(tmp_path):
    buffer = ReplayBufferConfig(sampler="fifo").build()
    for _ in range(1000):
        await buffer.put(group(100, version=0), TASK)
    await buffer.save(tmp_path)
    save = asyncio.ensure_future(buffer.save(tmp_path))
    await asyncio.sleep(0)
    save.cancel()
    with pytest.raises(asyncio.CancelledError):
        await save
    await buffer.refresh_staleness(  # which releases their data
        task_stale_thresholds={TASK: 1},
        current_train_step=9,
        expired_groups_retryable_by_task={TASK: False},
    )
    await nobody_writes_to(tmp_path)
    again = ReplayBufferConfig(sampler="fifo").build()
    await again.resume(tmp_path)
    groups = await again.get(1000, TASK, "completed")
    assert {len(rollout.response_ids) for (rollout,) in groups} == {100}
    assert len(groups) == 1000


class Unregistered:
    """What cannot be stored."""


async def test_a_group_that_cannot_be_saved_is_handed_out_meanwhile(tmp_path):
    buffer = ReplayBufferConfig(sampler="lifo").build()
    for _ in range(300):
        await buffer.put(group(100), TASK)
    bad = await buffer.put(group(extra_fields={"of": Unregistered()}), TASK)
    save = asyncio.ensure_future(buffer.save(tmp_path))
    await asyncio.sleep(0)
    assert uids_of(await buffer.get(1, TASK, "completed")) == [bad]
    with pytest.raises(NotStorable, match=f"group {bad}: .*Unregistered"):
        await save
    assert len((await picture(buffer))["rows"]) == 300


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_put_that_waits_for_bytes_is_woken_by_a_patch_that_frees_some(tmp_path, is_durable):
    store = tmp_path / "store" if is_durable else None
    buffer = ReplayBufferConfig(sampler="fifo", max_bytes=6000, store=store).build()
    uid = await buffer.put(group(response="x" * 4500), TASK)
    waiting = asyncio.ensure_future(buffer.put(group(response="x" * 4000), TASK))
    await asyncio.sleep(0)
    assert not waiting.done()
    await buffer.patch(uid, response=[""])
    assert await asyncio.wait_for(waiting, 30) == 2
    await buffer.close()


async def nobody_writes_to(directory: Any) -> None:
    """Return when no thread writes there any more."""
    async with asyncio.timeout(60):
        while (directory / "replay_buffer.lock").exists():  # noqa: ASYNC110  (nobody tells of it)
            await asyncio.sleep(0.005)
