"""References in a buffer in memory: fetched when it is saved, put again when it resumes."""

import asyncio
import time

import numpy as np
import pytest
import ray

from reroll import CorruptData, Fifo, NotStorable, ReplayBufferConfig, Rollout
from reroll.buffer.references import OBJECT
from reroll.store import open_saved

CONFIG = ReplayBufferConfig(sampler=Fifo())


def group(*refs, status="completed"):
    return [Rollout(status=status, response_ids=[1, 2], mm_info=ref) for ref in refs]


async def test_saved_once_and_put_again_once(tmp_path):
    image, other = ray.put(np.arange(5)), ray.put("other")
    buffer = CONFIG.build()
    await buffer.put(group(image, image), "a")
    await buffer.put(group(image, other), "a")
    await buffer.save(tmp_path)
    with open_saved(tmp_path) as saved:
        assert saved.commit().totals[OBJECT] == 2
    resumed = CONFIG.build()
    await resumed.resume(tmp_path)
    (one, two), (three, four) = await resumed.get(2, "a", "completed")
    assert one.mm_info == two.mm_info == three.mm_info
    assert one.mm_info != image
    assert ray.get(one.mm_info).tolist() == [0, 1, 2, 3, 4]
    assert ray.get(four.mm_info) == "other"


async def test_what_comes_back_can_be_saved_again(tmp_path):
    buffer = CONFIG.build()
    await buffer.put(group(ray.put("image")), "a")
    for name in ("first", "second"):
        await buffer.save(tmp_path / name)
        buffer = CONFIG.build()
        await buffer.resume(tmp_path / name)
    ((rollout,),) = await buffer.get(1, "a", "completed")
    assert ray.get(rollout.mm_info) == "image"


@ray.remote(num_cpus=0)
def slow(seconds):
    time.sleep(seconds)
    return "late"


async def test_the_loop_goes_on_while_objects_are_made(tmp_path):
    await asyncio.to_thread(ray.get, slow.remote(0))
    buffer = CONFIG.build()
    await buffer.put(group(slow.remote(1.0)), "a")
    await buffer.put(group(slow.remote(1.0), status="aborted"), "a")
    started = time.monotonic()
    save = asyncio.create_task(buffer.save(tmp_path))
    await asyncio.sleep(0.05)
    await buffer.get(1, "a", "aborted")  # encoded before it goes, without what it refers to
    await buffer.get(1, "a", "completed")
    assert time.monotonic() - started < 0.7
    await save
    resumed = CONFIG.build()
    await resumed.resume(tmp_path)
    assert await resumed.count("a", "completed") == await resumed.count("a", "aborted") == 1
    ((rollout,),) = await resumed.get(1, "a", "aborted")
    assert ray.get(rollout.mm_info) == "late"


async def test_an_object_that_cannot_be_stored_leaves_the_old_file(tmp_path):
    buffer = CONFIG.build()
    await buffer.put(group(ray.put("good")), "a")
    await buffer.save(tmp_path)
    await buffer.put(group(ray.put(Rollout)), "a")
    with pytest.raises(NotStorable, match="object of a reference"):
        await buffer.save(tmp_path)
    resumed = CONFIG.build()
    await resumed.resume(tmp_path)
    assert len(resumed) == 1


async def test_an_object_that_was_altered(tmp_path):
    import sqlite3  # noqa: PLC0415

    buffer = CONFIG.build()
    await buffer.put(group(ray.put("good")), "a")
    await buffer.put(group(ray.put("bad")), "a")
    await buffer.save(tmp_path)
    connection = sqlite3.connect(tmp_path / "replay_buffer.sqlite")
    connection.execute("UPDATE records SET value = x'00' WHERE kind = 'ref' AND key = 2")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptData):
        await CONFIG.build().resume(tmp_path)
    for config in (CONFIG, CONFIG.model_copy(update={"store": tmp_path / "store"})):
        resumed = config.build()
        with pytest.warns(UserWarning, match=r"groups \[2\] .* are damaged"):
            await resumed.resume(tmp_path, on_corrupt="skip")
        assert len(resumed) == 1
        assert (await resumed.ledger())["a"]["lost"].groups == 1
        await resumed.close()
