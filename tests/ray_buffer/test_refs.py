"""References to objects of Ray inside of rollouts: put by value, or kept as they are, and let go with their group."""

import asyncio

import numpy as np
import pytest
import ray

from ray_buffer.pool import buffer_of
from reroll import ReplayBufferConfig, WaitTimeout, open_readonly
from reroll.testing.buffer.builders import group

pytestmark = pytest.mark.usefixtures("ray_cluster")

PIXELS = np.arange(50_000, dtype=np.int32)


def pictured(ref, **fields):
    """Return a group whose two rollouts share one picture."""
    return group("a", members=2, mm_info={"pixel_values": ref}, **fields)


async def test_a_reference_is_put_by_value():
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        await buffer.put(pictured(ray.put(PIXELS)), "t")
        ((first, second),) = await buffer.get(1, "t", "completed")
        assert np.array_equal(first.mm_info["pixel_values"], PIXELS)
        assert np.array_equal(second.mm_info["pixel_values"], PIXELS)


async def test_a_reference_behind_a_reference_is_put_by_value():
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        await buffer.put(pictured(ray.put({"first": ray.put(PIXELS)})), "t")
        ((first, _),) = await buffer.get(1, "t", "completed")
        assert np.array_equal(first.mm_info["pixel_values"]["first"], PIXELS)


async def test_a_put_waits_for_what_is_not_there_yet():
    @ray.remote(num_cpus=0, resources={"nowhere": 1})
    def never():
        pass

    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        pending = never.remote()
        with pytest.raises(WaitTimeout):
            await buffer.put(pictured(pending), "t", timeout=0.1)
        assert len(buffer) == 0
        ray.cancel(pending)


async def test_a_reference_is_kept_when_asked_for_and_let_go_with_its_group(tmp_path):
    with buffer_of(ReplayBufferConfig(sampler="fifo"), keep_refs=True) as buffer:
        ref = ray.put(PIXELS)
        name = ref.hex().encode()
        await buffer.put(pictured(ref, versions=1, routed_experts=ref), "t")
        ((first, second),) = await buffer.peek([1])
        assert first.mm_info["pixel_values"] == second.mm_info["pixel_values"] == ref
        assert np.array_equal(await first.mm_info["pixel_values"], PIXELS)
        await buffer.save(tmp_path)
        with open_readonly(tmp_path) as saved:
            assert np.array_equal(saved.peek([1])[0][0].mm_info["pixel_values"], PIXELS), "saved by value"

        assert name in references()
        await buffer.refresh_staleness(
            task_stale_thresholds={"t": 1},
            current_train_step=9,
            expired_groups_retryable_by_task={"t": False},
        )
        del ref, first, second
        await until_gone(name)


async def until_gone(name):
    """Wait until the shard has let go of an object, too."""
    for _ in range(1_000):
        if name not in references():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it is still referred to")


def references():
    return ray._private.worker.global_worker.core_worker.get_all_reference_counts()
