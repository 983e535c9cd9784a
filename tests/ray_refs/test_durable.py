"""References in a durable buffer: stored at put, once, as long as a group refers to them."""

import asyncio
import time

import numpy as np
import pytest
import ray

from reroll import (
    BlockingReplayBuffer,
    Fifo,
    InvalidArgument,
    NotStorable,
    ReplayBuffer,
    ReplayBufferConfig,
    Rollout,
    StoreFailed,
    WaitTimeout,
)
from reroll.buffer.references import HOLDER, OBJECT
from reroll.store import open_saved
from reroll.testing.probe import probe


def group(*refs, status="completed"):
    return [Rollout(status=status, response_ids=[1, 2], mm_info={"pixels": ref}) for ref in refs]


def config(tmp_path, **options):
    return ReplayBufferConfig(sampler=Fifo(), store=tmp_path / "store", **options)


def stored(tmp_path, name="store"):
    """Return the numbers of the objects that are stored, and those of each group."""
    with open_saved(tmp_path / name) as saved:
        holders = dict(saved.records(HOLDER))
        return [number for number, _ in saved.records(OBJECT)], list(holders)


def pixels(rollout):
    return ray.get(rollout.mm_info["pixels"]).tolist()


async def test_they_come_back_after_reopening_and_are_shared_as_before(tmp_path):
    image, other = ray.put(np.arange(5)), ray.put(np.arange(3))
    buffer = config(tmp_path).build()
    first = await buffer.put(group(image, image, other), "a")
    second = await buffer.put(group(image), "a")
    assert stored(tmp_path) == ([1, 2], [first, second])
    await buffer.close()
    buffer = config(tmp_path).build()
    (one, two, three), (four,) = await buffer.get(2, "a", "completed")
    assert pixels(one) == [0, 1, 2, 3, 4]
    assert pixels(three) == [0, 1, 2]
    shared = one.mm_info["pixels"]
    assert shared != image, "it was put again"
    assert two.mm_info["pixels"] == four.mm_info["pixels"] == shared
    await buffer.close()


async def test_in_process_they_are_the_same_references(tmp_path):
    image = ray.put(np.arange(5))
    buffer = config(tmp_path, max_resident_bytes=0).build()
    await buffer.put(group(image), "a")
    ((rollout,),) = await buffer.get(1, "a", "completed")
    assert rollout.mm_info["pixels"] == image
    await buffer.close()


async def test_they_go_with_the_last_group(tmp_path):
    image, other = ray.put(np.arange(5)), ray.put(np.arange(3))
    buffer = config(tmp_path).build()
    first = await buffer.put(group(image, other), "a")
    second = await buffer.put(group(image), "a")
    await buffer.delete([first])
    assert stored(tmp_path) == ([1], [second])
    await buffer.delete([second])
    assert stored(tmp_path) == ([], [])
    await buffer.close()


async def test_they_go_with_the_last_group_also_after_reopening(tmp_path):
    image, other = ray.put(np.arange(5)), ray.put(np.arange(3))
    buffer = config(tmp_path).build()
    first = await buffer.put(group(image, other), "a")
    second = await buffer.put(group(image), "a")
    await buffer.close()
    buffer = config(tmp_path).build()
    await buffer.delete([first])
    assert stored(tmp_path) == ([1], [second])
    third = await buffer.put(group(other), "a")
    numbers, holders = stored(tmp_path)
    assert holders == [second, third]
    assert len(numbers) == 2
    await buffer.delete([second, third])
    assert stored(tmp_path) == ([], [])
    await buffer.close()


async def test_consumed_groups_keep_theirs_until_the_commit(tmp_path):
    buffer = config(tmp_path).build()
    uid = await buffer.put(group(ray.put(np.arange(5))), "a")
    await buffer.take_batch({"a": 1}, train_step=1)
    assert stored(tmp_path) == ([1], [uid])
    await buffer.close()
    buffer = config(tmp_path).build()
    await buffer.rewind(0)
    ((rollout,),) = await buffer.get(1, "a", "completed", train_step=1)
    assert pixels(rollout) == [0, 1, 2, 3, 4]
    await buffer.commit(1)
    assert stored(tmp_path) == ([], [])
    await buffer.close()


async def test_a_group_that_comes_back_with_others(tmp_path):
    image, other = ray.put(np.arange(5)), ray.put(np.arange(3))
    buffer = config(tmp_path).build()
    uid = await buffer.put(group(image, status="aborted"), "a")
    await buffer.get(1, "a", "aborted")
    assert await buffer.put(group(other), "a", uid=uid) == uid
    assert stored(tmp_path) == ([2], [uid])
    ((rollout,),) = await buffer.peek([uid])
    assert pixels(rollout) == [0, 1, 2]
    await buffer.close()


async def test_patched_ones(tmp_path):
    buffer = config(tmp_path, max_resident_bytes=0).build()
    uid = await buffer.put(group(ray.put(np.arange(5))), "a")
    await buffer.patch(uid, features=[ray.put(np.arange(3))])
    assert stored(tmp_path) == ([1, 2], [uid])
    ((rollout,),) = await buffer.peek([uid])
    assert ray.get(rollout.extra_fields["features"]).tolist() == [0, 1, 2]
    await buffer.patch(uid, mm_info=[None])
    assert stored(tmp_path) == ([2], [uid])
    with pytest.raises(NotStorable):
        await buffer.patch(uid, features=[object()])
    ((rollout,),) = await buffer.peek([uid])
    assert ray.get(rollout.extra_fields["features"]).tolist() == [0, 1, 2]
    await buffer.close()


async def test_a_put_that_fails_leaves_nothing(tmp_path):
    buffer = config(tmp_path, capacity=1).build()
    first = await buffer.put(group(ray.put(np.arange(5))), "a")
    with pytest.raises(WaitTimeout):
        await buffer.put(group(ray.put(np.arange(3))), "a", timeout=0.01)
    with pytest.raises(NotStorable, match="object of a reference"):
        await buffer.put(group(ray.put(Rollout), status="aborted"), "a")

    @ray.remote(num_cpus=0)
    def fails():
        raise ValueError("no pixels today")

    with pytest.raises(NotStorable, match="no pixels today"):
        await buffer.put(group(fails.remote(), status="aborted"), "a")
    await buffer.advance(1)
    assert stored(tmp_path) == ([1], [first])
    await buffer.close()


async def test_puts_at_the_same_time_store_a_shared_one_once(tmp_path):
    image = ray.put(np.arange(5))
    buffer = config(tmp_path).build()
    uids = await asyncio.gather(*(buffer.put(group(image), "a") for _ in range(8)))
    assert stored(tmp_path) == ([1], sorted(uids))
    await buffer.close()


@ray.remote(num_cpus=0)
def slow(seconds):
    time.sleep(seconds)
    return np.arange(5)


async def test_the_loop_goes_on_while_an_object_is_made(tmp_path):
    await asyncio.to_thread(ray.get, slow.remote(0))  # a worker is there
    buffer = config(tmp_path).build()
    put = asyncio.create_task(buffer.put(group(slow.remote(1.0)), "a"))
    turns = 0
    while not put.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 20
    ((rollout,),) = await buffer.peek([put.result()])
    assert pixels(rollout) == [0, 1, 2, 3, 4]
    await buffer.close()


async def test_many_that_are_not_ready_hold_up_nobody(tmp_path):
    buffer = config(tmp_path, max_resident_bytes=0).build()
    uid = await buffer.put(group(ray.put(np.arange(5))), "a")
    image = slow.remote(2.0)
    puts = [asyncio.create_task(buffer.put(group(image), "a")) for _ in range(50)]
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await buffer.peek([uid])
    await buffer.put(group(ray.put(np.arange(3))), "a")
    assert time.monotonic() - started < 1.0
    assert not any(put.done() for put in puts)
    assert len(set(await asyncio.gather(*puts))) == 50
    assert len(stored(tmp_path)[0]) == 3
    await buffer.close()


async def test_a_timeout_counts_for_objects_as_well(tmp_path):
    buffer = config(tmp_path).build()
    with pytest.raises(WaitTimeout, match="is not ready"):
        await buffer.put(group(slow.remote(3.0)), "a", timeout=0.05)
    assert await buffer.count("a", "completed") == 0
    await buffer.close()


async def test_a_put_that_is_cancelled_while_an_object_is_made(tmp_path):
    buffer = config(tmp_path).build()
    put = asyncio.create_task(buffer.put(group(slow.remote(0.5)), "a"))
    await asyncio.sleep(0.1)
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    await asyncio.sleep(0.6)
    await buffer.put(group(ray.put(np.arange(3))), "a")
    assert len(stored(tmp_path)[0]) == 1
    await buffer.close()


def test_blocking(tmp_path):
    buffer = config(tmp_path).build_blocking()
    assert isinstance(buffer, BlockingReplayBuffer)
    buffer.put(group(ray.put(np.arange(5))), "a")
    buffer.close()
    buffer = config(tmp_path).build_blocking()
    ((rollout,),) = buffer.get(1, "a", "completed")
    assert pixels(rollout) == [0, 1, 2, 3, 4]
    buffer.close()


async def test_a_copy_of_a_store_has_them(tmp_path):
    buffer: ReplayBuffer = config(tmp_path).build()
    await buffer.put(group(ray.put(np.arange(5))), "a")
    await buffer.save(tmp_path / "copy")
    await buffer.close()
    resumed = ReplayBufferConfig(sampler=Fifo()).build()
    await resumed.resume(tmp_path / "copy")
    ((rollout,),) = await resumed.get(1, "a", "completed")
    assert pixels(rollout) == [0, 1, 2, 3, 4]


async def test_a_durable_buffer_that_resumes_keeps_them(tmp_path):
    image = ray.put(np.arange(5))
    buffer = ReplayBufferConfig(sampler=Fifo()).build()
    first = await buffer.put(group(image, image), "a")
    second = await buffer.put(group(image), "a")
    await buffer.save(tmp_path / "saved")
    durable = config(tmp_path).build()
    await durable.resume(tmp_path / "saved")
    assert stored(tmp_path) == ([1], [first, second])
    await durable.close()
    durable = config(tmp_path).build()
    groups = await durable.peek([first, second])
    assert {pixels(rollout)[-1] for members in groups for rollout in members} == {4}
    await durable.delete([first, second])
    assert stored(tmp_path) == ([], [])
    await durable.close()


async def test_what_an_interrupted_resume_left_is_deleted(tmp_path):
    class Cut(Exception):  # noqa: N818
        pass

    def cut(*args):
        raise Cut

    buffer = ReplayBufferConfig(sampler=Fifo()).build()
    await buffer.put(group(ray.put(np.arange(5))), "a")
    await buffer.save(tmp_path / "small")
    await buffer.put(group(ray.put(np.arange(5))), "a")
    await buffer.save(tmp_path / "large")
    durable = config(tmp_path).build()
    probe(durable).disk._gather = cut  # as if it was killed before the state is written
    with pytest.raises(StoreFailed, match="Cut"):
        await durable.resume(tmp_path / "large")
    assert stored(tmp_path) == ([1, 2], [])
    probe(durable).disk.store.close()
    durable = config(tmp_path).build()
    assert len(durable) == 0
    await durable.resume(tmp_path / "small")
    assert stored(tmp_path) == ([1], [1])
    await durable.close()
    durable = config(tmp_path).build()
    assert [row.uid for row in await durable.query({})] == [1]
    await durable.delete([1])
    assert stored(tmp_path) == ([], [])
    await durable.close()


async def test_what_is_too_large_for_the_store_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("reroll.buffer.references.MAX_PAYLOAD_BYTES", 1000)
    monkeypatch.setattr("reroll.buffer.journal.MAX_PAYLOAD_BYTES", 3000)
    buffer = config(tmp_path).build()
    with pytest.raises(InvalidArgument, match="split it"):
        await buffer.put(group(ray.put(np.arange(1000))), "a")
    with pytest.raises(InvalidArgument, match="split it"):
        await buffer.put([Rollout(status="completed", response_ids=np.arange(1000))], "a")
    await buffer.put(group(ray.put(np.arange(5))), "a")
    await buffer.close()
