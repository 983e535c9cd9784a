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
from reroll.ray.dividing import divided
from reroll.ray.handle import About, _check_ready, _place, actor_name
from reroll.ray.shard import Shard

_NAMES = count()
_FREE: dict[int, list[tuple[str, list[Any]]]] = {}
"""Actors that nobody uses now, with the name that they are known by: alone, or three."""


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


class AnyShard(Shard):
    """A shard that can begin anew, and tells what goes on in it."""

    def __init__(self) -> None:
        pass

    async def begin(self, *args: Any) -> None:
        super().__init__(*args)

    async def waiting(self) -> set[str] | None:
        """Return the calls that wait here for others, None if something goes on."""
        if not all_wait() or self._books._writing is not None:
            return None
        return {number for number, task in self._calls._tasks.items() if not task.done()}

    async def lose_draws(self) -> None:
        """Give back what was drawn and not claimed yet, as if this was started anew."""
        while self._draws:
            await self._do_end(self._draws.popitem()[0])

    async def held(self) -> int:
        """Return how many leases and reservations somebody has."""
        return len(self._holders._holder_of)

    async def last_heard(self) -> float:
        """Return when a holder was heard of last."""
        return max(self._holders._heard.values())


def all_wait() -> bool:
    """Return whether every other task of this event loop waits for something."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return all(task._fut_waiter is not None and not task._fut_waiter.done() for task in others)


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
    about = About(
        *(name, space, num_shards, config, life),
        *(holder_ttl_s, unreachable_s, keep_refs),
    )
    parts = divided(config, num_shards)
    places = [_place(about, index) for index in range(num_shards)]
    begun = [actor.begin.remote(*how, about) for actor, *how in zip(actors, parts, places, strict=False)]
    ray.get(begun, timeout=60)
    _check_ready(actors[:num_shards], 60)
    buffer = Kept(about)
    buffer.actors_of_pool = name, actors
    return buffer


def _start(number: int) -> tuple[str, list[Any]]:
    """Start actors; they end with Ray."""
    name = f"pool-{next(_NAMES)}"
    names = [actor_name(name, index) for index in range(number)]
    options = {"num_cpus": 0, "max_concurrency": 100_000}
    return name, [ray.remote(AnyShard).options(name=each, **options).remote() for each in names]
