"""Buffers for tests, in actors that serve one after the other: to start a process for each would take minutes.

What is killed or closed for good needs actors of its own: `own_buffer`.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import ray

from reroll import ReplayBufferConfig
from reroll.ray import RayReplayBuffer
from reroll.ray.actor import BufferActor, BufferSpec
from reroll.ray.buffer import check_ready

_NAMES = count()
_FREE: dict[int, list[tuple[str, list[Any]]]] = {}
"""Actors that no test uses now, with the name that they are known by: alone, or three."""


@contextmanager
def own_buffer(config: ReplayBufferConfig, **options: Any) -> Iterator[RayReplayBuffer]:
    """Make a buffer in actors of its own, which end with it."""
    buffer = RayReplayBuffer.create(config, **{"name": f"own-{next(_NAMES)}", **options})
    try:
        yield buffer
    finally:
        buffer.blocking().close()


@contextmanager
def buffer_of(config: ReplayBufferConfig, **options: Any) -> Iterator[RayReplayBuffer]:
    """Make a buffer, and close it at the end."""
    buffer = take(config, **options)
    try:
        yield buffer
    finally:
        buffer.blocking().close()
        buffer.give_back()


class AnyActor(BufferActor):
    """An actor that can begin anew, and tells what goes on in it."""

    def __init__(self) -> None:
        pass

    async def begin(self, *args: Any) -> None:
        super().__init__(*args)

    async def num_waiting(self) -> int | None:
        """Return how many calls wait here for others, None if something goes on."""
        if self._host is None or self._host._unsent or any(line.outbox for line in self._lines.values()):
            return None
        if self._losses is not None and self._losses._writing is not None:
            return None
        return sum(len(session.pending) for session in self._host.sessions.values())

    async def num_held(self) -> int:
        """Return how many leases and reservations the clients have."""
        sessions = self._host.sessions.values()
        return sum(len(session.leases) + len(session.reservations) for session in sessions)

    async def last_heard(self) -> float:
        """Return when a client was heard of last."""
        return max(session.heard_at for session in self._host.sessions.values())


class Kept(RayReplayBuffer):
    """A buffer whose actors stay when it is closed."""

    actors_of_pool: tuple[str, list[Any]]

    def give_back(self) -> None:
        """Let the actors serve others."""
        _FREE[len(self.actors_of_pool[1])].append(self.actors_of_pool)

    def _end(self) -> None:
        pass


def take(
    config: ReplayBufferConfig,
    *,
    num_shards: int = 1,
    holder_ttl_s: float = 30.0,
    unreachable_s: float = 60.0,
    keep_refs: bool = False,
) -> Kept:
    """Return a new buffer, in actors that are free."""
    free = _FREE.setdefault(1 if num_shards == 1 else 3, [])
    name, actors = free.pop() if free else _start(1 if num_shards == 1 else 3)
    space, life = ray.get_runtime_context().namespace, uuid.uuid4().hex
    spec = BufferSpec(name, space, num_shards, config, life, holder_ttl_s, unreachable_s, keep_refs)
    begun = [actor.begin.remote(spec, shard) for shard, actor in enumerate(actors[:num_shards])]
    ray.get(begun, timeout=60)
    check_ready(actors[:num_shards], 60)
    buffer = Kept(spec)
    buffer.actors_of_pool = name, actors
    return buffer


def _start(number: int) -> tuple[str, list[Any]]:
    """Start actors; they end with Ray."""
    name = f"pool-{next(_NAMES)}"
    names = [f"reroll:{name}:{index}" for index in range(number)]
    options = {"num_cpus": 0, "max_concurrency": 100_000}
    return name, [ray.remote(AnyActor).options(name=each, **options).remote() for each in names]


async def until_still(buffers: list[Any]) -> None:
    """Return when every call of these buffers that was started waits in its actor for others, or is over; seen twice."""
    before, now = None, await _num_waiting(buffers)
    while now is None or now != before:
        before, now = now, await _num_waiting(buffers)


async def _num_waiting(buffers: list[Any]) -> int | None:
    for _ in range(5):
        await asyncio.sleep(0)
    clients = [client for buffer in buffers for client in await buffer._ready()]
    connections = [client._connection for client in clients]
    expected = sum(len(connection._pending) for connection in connections)
    is_quiet = not any(connection._outbox or connection._is_scheduled for connection in connections)
    found = await asyncio.gather(
        *(actor.num_waiting.remote() for buffer in buffers for actor in buffer.actors)
    )
    same = expected == sum(len(connection._pending) for connection in connections)
    return expected if is_quiet and same and None not in found and sum(found) == expected else None
