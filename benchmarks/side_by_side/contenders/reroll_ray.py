"""The buffer of reroll in an actor of Ray."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

import work
from contenders.local_ray import NAMESPACE, join_ray, local_ray
from contenders.rollouts import TASK, rollouts_of, tokens_of, version
from reroll import ReplayBufferConfig
from reroll.ray import RayReplayBuffer
from worker import Measure

__all__ = ["CANNOT", "Client", "crash", "serve", "version"]
CANNOT: dict[str, str] = {}
TOGETHER = 64


def serve() -> Iterator[str]:
    with local_ray() as address:
        buffer = RayReplayBuffer.create(ReplayBufferConfig(sampler="fifo"), name="buffer")
        yield address
        asyncio.run(buffer.close())


class Client:
    """Groups of `Rollout`s, 64 puts under way at once; one `take_batch(wait=True)`. One shard, in memory; groups are checked, encoded and decoded by the client."""

    def __init__(self, address: str) -> None:
        join_ray(address)
        self._loop = asyncio.new_event_loop()
        self._buffer = RayReplayBuffer.connect("buffer", namespace=NAMESPACE)

    def prepare(self, groups: Sequence[work.Group]) -> list[Any]:
        return [rollouts_of(group) for group in groups]

    def put(self, prepared: Sequence[Any]) -> None:
        self._loop.run_until_complete(self._put(prepared))

    async def _put(self, groups: Sequence[Any]) -> None:
        for first in range(0, len(groups), TOGETHER):
            some = groups[first : first + TOGETHER]
            await asyncio.gather(*(self._buffer.put(group, TASK, model_step=1) for group in some))

    def take(self, n: int) -> int:
        batch, _ = self._loop.run_until_complete(self._buffer.take_batch({TASK: n}, wait=True))
        return tokens_of(batch[TASK])

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
