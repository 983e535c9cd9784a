"""A coroutine that is started outside of its task: a cancellation reaches it at any moment."""

import asyncio

import pytest

from reroll import ReplayBufferConfig
from reroll.remote.eager_task import start_eagerly
from reroll.testing.buffer.builders import group, names


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_take_that_is_cancelled_before_its_tasks_first_step_leaves_its_queue():
    buffer = ReplayBufferConfig(sampler="fifo", capacity=1).build()
    for _ in range(300):
        await cancelled(start_eagerly(buffer.take_batch({"t": 1}, wait=True)))
    assert (await buffer.stats()).total.waiting["take"].count == 0
    taker = start_eagerly(buffer.take_batch({"t": 1}, wait=True))
    await buffer.put(group("a"), "t")
    groups, _ = await asyncio.wait_for(taker, 60)
    assert names(groups["t"]) == ["a"]


async def test_a_durable_take_that_is_cancelled_before_its_tasks_first_step_has_taken_nothing(tmp_path):
    buffer = ReplayBufferConfig(sampler="fifo", store=tmp_path / "store").build()
    await buffer.put(group("a"), "t")
    await cancelled(start_eagerly(buffer.take_batch({"t": 1})))
    groups, _ = await buffer.take_batch({"t": 1})
    assert names(groups["t"]) == ["a"]
    await asyncio.wait_for(buffer.close(), 60)


async def test_the_cancellation_is_passed_on_to_what_is_awaited():
    async def forever():
        await asyncio.Event().wait()

    inner = asyncio.ensure_future(forever())

    async def outer():
        await inner

    await cancelled(start_eagerly(outer()))
    assert inner.cancelled()


async def test_a_coroutine_that_only_let_others_run_and_is_cancelled_cleans_up():
    ended = []

    async def work():
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    await cancelled(start_eagerly(work()))
    assert ended


async def test_a_cancellation_that_is_refused():
    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    task = start_eagerly(stubborn())
    task.cancel()
    assert await task == "done"


async def test_a_future_that_is_done_before_the_cancellation():
    """The task would have gone on with its result; it is cancelled there, as any task is."""
    future = asyncio.get_running_loop().create_future()

    async def work():
        return await future

    task = start_eagerly(work())
    future.set_result(1)
    await cancelled(task)
    task = start_eagerly(work())
    assert await task == 1
