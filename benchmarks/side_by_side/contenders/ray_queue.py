"""Ray's own queue, `ray.util.queue.Queue`: an actor that keeps references to objects in Ray's object store."""

import os
import signal
from collections.abc import Iterator, Sequence
from importlib.metadata import version as version_of
from typing import Any

import ray
from ray.util.queue import Queue

import work
from contenders.local_ray import NAMESPACE, join_ray, local_ray
from worker import Measure

CANNOT: dict[str, str] = {}
NAME = "queue"


def version() -> str:
    return f"Ray {version_of('ray')}"


def serve() -> Iterator[str]:
    with local_ray() as address:
        queue = Queue(actor_options={"num_cpus": 0, "name": NAME})
        yield address
        queue.shutdown()


class Client:
    """Writes use one `put_nowait_batch`. Reads issue concurrent `get` calls to the queue's actor, since its client API
    would serialise them. Nothing is checked, and nothing kept but references."""

    def __init__(self, address: str) -> None:
        join_ray(address)
        self._actor = ray.get_actor(NAME, NAMESPACE)

    def prepare(self, groups: Sequence[work.Group]) -> list[Any]:
        return [tuple(group) for group in groups]

    def put(self, prepared: Sequence[Any]) -> None:
        ray.get(self._actor.put_nowait_batch.remote(prepared))

    def take(self, n: int) -> int:
        taken = ray.get([self._actor.get.remote() for _ in range(n)])
        return sum(len(work.Group(*group).response_ids) for group in taken)

    def close(self) -> None:
        ray.shutdown()


def crash(groups: int) -> Iterator[Measure]:
    """The process of the queue's actor is killed, with `max_restarts=-1`; then the queue is asked for its size."""

    def run() -> dict[str, float]:
        with local_ray():
            queue = Queue(actor_options={"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1})
            for group in work.make_groups(work.shape_of_bytes(4096), groups):
                queue.put(tuple(group))
            pid = ray.get(queue.actor.__ray_call__.remote(lambda _: os.getpid()))
            os.kill(pid, signal.SIGKILL)
            found = queue.qsize()
        return {"acknowledged": groups, "lost": groups - found}

    yield run
