"""Handles come and go; what is closed leaves nothing behind."""

import inspect
import os
import time
from copy import copy
from pathlib import Path

import pytest
import ray
from ray.experimental.internal_kv import _internal_kv_list

from ray_buffer.pool import buffer_of, own_buffer
from reroll import (
    BlockingReplayBuffer,
    Closed,
    InvalidArgument,
    InvalidConfig,
    ReplayBufferConfig,
    Unreachable,
)
from reroll.ray import BlockingRayReplayBuffer, RayReplayBuffer
from reroll.remote.methods import METHODS
from reroll.testing.buffer.builders import group, names

pytestmark = pytest.mark.usefixtures("ray_cluster")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_closing_leaves_no_process_no_actor_and_no_books():
    with own_buffer(ReplayBufferConfig(sampler="fifo"), num_shards=2) as buffer:
        blocking = buffer.blocking()
        for name in range(3):
            blocking.put(group(name), "t")
        pids = ray.get([actor.pid.remote() for actor in buffer.actors])
        assert all(map(is_alive, pids))
        assert len([key for key in _internal_kv_list(b"", namespace=b"reroll") if b"own-" in key]) == 2
        blocking.close()
        blocking.close()
        end = time.monotonic() + 30
        while any(map(is_alive, pids)):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not [key for key in _internal_kv_list(b"", namespace=b"reroll") if b"own-" in key]
        with pytest.raises(Closed):
            blocking.count("t", "completed")


def test_threads_have_the_same_verbs():
    with buffer_of(ReplayBufferConfig(sampler="fifo", max_times_sampled=2)) as buffer:
        blocking = buffer.blocking()
        blocking.put(group("a"), "t")
        with blocking.lease({"t": 1}, wait=True, timeout=10) as batch:
            assert (names(batch.groups["t"]), batch.counts) == (["a"], {"t": 1})
        ((rollouts, info),) = blocking.sample(1, "t", timeout=10)
        assert (rollouts[0].group_id, info.times_sampled) == ("a", 1)
        batch = blocking.lease({"t": 1}).take()
        batch.ack()
        assert len(blocking) == 0
    for name, method in METHODS.items():
        for kind in (RayReplayBuffer, BlockingRayReplayBuffer):
            assert inspect.signature(getattr(kind, name)) == inspect.signature(method)
    assert {n for n in dir(BlockingReplayBuffer) if n[0] != "_"} <= set(dir(BlockingRayReplayBuffer))


async def test_a_name_is_taken_once_and_a_wrong_buffer_is_not_made(tmp_path):
    with own_buffer(ReplayBufferConfig(sampler="fifo", store=tmp_path)) as buffer:
        taken = buffer._spec.name
        with pytest.raises(InvalidArgument, match="choose another name"):
            RayReplayBuffer.create(ReplayBufferConfig(), name=taken)
        other = RayReplayBuffer.connect(taken)
        await other.put(group("a"), "t")
        assert await buffer.count("t", "completed") == 1
    with pytest.raises(InvalidConfig):
        RayReplayBuffer.create(ReplayBufferConfig(capacity=2, min_size=3), name="never")
    with pytest.raises(InvalidArgument):
        RayReplayBuffer.create(ReplayBufferConfig(), num_shards=0)
    with pytest.raises(Unreachable, match="placement"):
        RayReplayBuffer.create(
            ReplayBufferConfig(), name="nowhere", placement={"resources": {"nowhere": 1}}, timeout=0.5
        )
    with pytest.raises(Closed):
        RayReplayBuffer.connect("never")


async def test_a_handle_of_before_does_not_close_the_buffer_that_has_its_name_now():
    config = ReplayBufferConfig(sampler="fifo")
    with own_buffer(config, name="again") as before:
        await before.put(group("a"), "t")
        await before.close()
        with own_buffer(config, name="again") as now:
            await now.put(group("b"), "t")
            for stale in (before, copy(before)):
                await stale.close()
            assert await now.count("t", "completed") == 1


def test_what_ray_does_not_know_of_a_placement_is_told():
    with pytest.raises(InvalidArgument, match=r"placement.*nonsense"):
        RayReplayBuffer.create(ReplayBufferConfig(), name="placed", placement={"nonsense": 1})


async def test_buffers_of_one_name_in_two_namespaces_are_two():
    config = ReplayBufferConfig(sampler="fifo")
    with own_buffer(config, name="twin") as here, own_buffer(config, name="twin", namespace="other") as there:
        await here.put(group("a"), "t")
        await there.put(group("b"), "t")
        batches = [await buffer.lease({"t": 1}) for buffer in (here, there)]
        assert [names(batch.groups["t"]) for batch in batches] == [["a"], ["b"]]
        for batch in batches:
            await batch.ack()
        assert (len(here), len(there)) == (0, 0)
    for space in (None, "other"):
        with pytest.raises(Closed, match="'twin'"):
            RayReplayBuffer.connect("twin", namespace=space)


async def test_handles_of_one_process_and_event_loop_share_a_session():
    with buffer_of(ReplayBufferConfig(sampler="fifo")) as buffer:
        await buffer.put(group("a"), "t")
        batch = await copy(buffer).lease({"t": 1})
        await batch.ack()
        assert (await (await buffer._ready())[0].health())["clients"] == 1


def test_shards_that_end_before_they_have_started_are_told():
    with pytest.raises(Unreachable, match="ended before they had started; check"):
        RayReplayBuffer.create(
            ReplayBufferConfig(), name="brief", setup=lambda: os._exit(1), placement={"max_restarts": 0}
        )


async def test_who_calls_a_closed_buffer_is_told_its_name():
    with own_buffer(ReplayBufferConfig(), name="gone") as buffer:
        await buffer.put(group("a"), "t")
        await buffer.close()
        with pytest.raises(Closed, match="the buffer 'gone' was closed"):
            await buffer.put(group("b"), "t")


def test_what_is_no_configuration_is_told_before_anything_starts(ray_cluster):
    with pytest.raises(
        InvalidArgument, match=r"config must be a ReplayBufferConfig, not dict; ReplayBufferConfig\(\*\*"
    ):
        RayReplayBuffer.create({"capacity": 1}, name="plain")
    with pytest.raises(Closed, match=r"no buffer 'plain' in namespace 'other', .* must be named"):
        RayReplayBuffer.connect("plain", namespace="other", timeout=5)
