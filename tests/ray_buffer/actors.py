"""Producers and consumers as actors, and shards that are killed."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reroll import Closed, LeaseExpired, Unreachable, WaitTimeout
from reroll.engine.ledger import Amount
from reroll.ray import RayReplayBuffer
from reroll.testing.buffer.builders import group, names


def here() -> dict[str, Any]:
    """Return the options that put an actor on the node of this process."""
    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def shard_actor(buffer: RayReplayBuffer, shard: int = 0) -> Any:
    return buffer.actors[shard]


def pid_of(buffer: RayReplayBuffer, shard: int = 0) -> int:
    return ray.get(shard_actor(buffer, shard).pid.remote(), timeout=60)


def last_heard(buffer: RayReplayBuffer) -> float:
    """Return when the shard heard last of the one holder that it has; waits for it without `await`."""
    heard: float = ray.get(shard_actor(buffer).last_heard.remote(), timeout=60)
    return heard


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

    def run(self, who: int, seconds: float) -> list[tuple[int, int]]:
        """Put groups for so long, and return their names."""
        put: list[tuple[int, int]] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._buffer.put(group((who, len(put))), "t", timeout=60)
            put.append((who, len(put)))
        return put


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

    def run(self, *, leases: bool) -> list[tuple[int, int]]:
        """Take groups until the buffer is closed, and return their names."""
        taken: list[tuple[int, int]] = []
        with contextlib.suppress(Closed):
            while True:
                with contextlib.suppress(WaitTimeout):
                    taken += self._leased() if leases else self._taken()
        return taken

    def _taken(self) -> list[tuple[int, int]]:
        groups, _ = self._buffer.take_batch({"t": 1}, wait=True, timeout=60)
        return names(groups["t"])

    def _leased(self) -> list[tuple[int, int]]:
        try:
            batch = self._buffer.lease({"t": 3}, wait=True, timeout=0.5).take()
        except Unreachable:  # a shard was away for longer than this one waits
            return []
        gone: Sequence[int] = ()
        try:
            batch.ack()
        except LeaseExpired as error:  # the shard was away, and others got some of them
            gone = error.uids
        return names(sample.group for sample in batch.samples["t"] if sample.info.uid not in gone)

    def hold(self, size: int, task: str = "t") -> list[int]:
        self._batches.append(self._buffer.lease({task: size}, wait=True, timeout=60).take())
        return names(self._batches[-1].groups[task])
