"""The buffer of reroll in an actor of Ray."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray

import work
from contenders.local_ray import NAMESPACE, join_ray, local_ray
from contenders.rollouts import TASK, BufferClient, rollouts_of, version
from reroll import ReplayBufferConfig
from reroll.ray import RayReplayBuffer
from worker import Measure

__all__ = ["CANNOT", "Client", "crash", "serve", "version"]
CANNOT: dict[str, str] = {}


def serve() -> Iterator[str]:
    with local_ray() as address:
        buffer = RayReplayBuffer.create(ReplayBufferConfig(sampler="fifo"), name="buffer")
        yield address
        asyncio.run(buffer.close())


class Client(BufferClient):
    """Groups of `Rollout`s, 64 puts under way at once; one `take_batch(wait=True)`. One shard, in memory; groups are checked, encoded and decoded by the client."""

    def __init__(self, address: str) -> None:
        join_ray(address)
        super().__init__(RayReplayBuffer.connect("buffer", namespace=NAMESPACE))

    def close(self) -> None:
        ray.shutdown()


def crash(groups: int) -> Iterator[Measure]:
    """A buffer with `store=`; the process of its actor is killed when the last put has returned. Ray starts it again, and the same handle counts."""

    async def counted(where: str) -> int:
        buffer = RayReplayBuffer.create(ReplayBufferConfig(store=where), name="crashed")
        for group in work.make_groups(work.shape_of_bytes(4096), groups):
            await buffer.put(rollouts_of(group), TASK, model_step=1)
        actors = [
            found for found in ray.util.list_named_actors(all_namespaces=True) if "crashed" in found["name"]
        ]
        for named in actors:
            actor = ray.get_actor(named["name"], named["namespace"])
            os.kill(await actor.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)
        found = await buffer.count(TASK, "completed")
        await buffer.close()
        return found

    def run() -> dict[str, float]:
        with local_ray(), tempfile.TemporaryDirectory(dir=".") as where:
            found = asyncio.run(counted(str(Path(where).absolute())))
        return {"acknowledged": groups, "lost": groups - found}

    yield run
