"""Buffers in actors for tests: made under a name of their own, and closed at the end; producers and consumers as actors."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import ray

from reroll import ReplayBufferConfig
from reroll.engine.ledger import Amount
from reroll.ray import RayReplayBuffer
from reroll.testing.buffer.builders import group, names

_NAMES = count()


@contextmanager
def buffer_of(config: ReplayBufferConfig, **options: Any) -> Iterator[RayReplayBuffer]:
    """Make a buffer, and close it at the end."""
    buffer = RayReplayBuffer.create(
        config, name=f"buffer-{next(_NAMES)}", **{"unreachable_s": 60.0, **options}
    )
    try:
        yield buffer
    finally:
        buffer.blocking().close()


def shard_actor(buffer: RayReplayBuffer, shard: int = 0) -> Any:
    return buffer.actors[shard]


def pid_of(buffer: RayReplayBuffer, shard: int = 0) -> int:
    return ray.get(shard_actor(buffer, shard).pid.remote(), timeout=60)


def kill(buffer: RayReplayBuffer, shard: int = 0) -> None:
    os.kill(pid_of(buffer, shard), signal.SIGKILL)


def total(books: dict[str, dict[str, Amount]], bucket: str) -> int:
    return sum(amounts[bucket].groups for amounts in books.values())


@ray.remote(num_cpus=0)
class Producer:
    """Puts groups, each named by its number."""

    def __init__(self, buffer: RayReplayBuffer) -> None:
        self._buffer = buffer.blocking()

    def put(self, first: int, number: int, task: str = "t") -> list[int]:
        return [self._buffer.put(group(name), task, timeout=60) for name in range(first, first + number)]


@ray.remote(num_cpus=0)
class Consumer:
    """Takes groups, or leases them and keeps the lease."""

    def __init__(self, buffer: RayReplayBuffer) -> None:
        self._buffer = buffer.blocking()
        self._batches: list[Any] = []

    def take(self, until: int, size: int = 4, task: str = "t") -> list[int]:
        taken: list[int] = []
        while len(taken) < until:
            wanted = min(size, until - len(taken))
            groups, _ = self._buffer.take_batch({task: wanted}, wait=True, timeout=60)
            taken += names(groups[task])
        return taken

    def hold(self, size: int, task: str = "t") -> list[int]:
        self._batches.append(self._buffer.lease({task: size}, wait=True, timeout=60).take())
        return names(self._batches[-1].groups[task])
