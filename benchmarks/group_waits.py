"""How long others wait: a consumer for the put that completes its batch, and the loop for the longest call of each kind."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from groups import LONG, TASK, VERSIONS, Group, drive, rollout_maker
from measure import Timing
from reroll import AsyncReplayBufferConfig, ReplayBuffer

WAITED = "waited for"


class WakeUp(NamedTuple):
    """Seconds on the wall until a waiting consumer holds its batch, on one loop."""

    batch: int
    from_call: Timing
    """Since the put that completes the batch was called."""
    from_return: Timing
    """Since that put returned."""


def measure_wake_up(batch: int, rounds: int, others: int) -> WakeUp:
    """Let a consumer wait for a batch, many times, in a buffer that holds other groups too."""
    return asyncio.run(_wake_up(batch, rounds, others))


async def _wake_up(batch: int, rounds: int, others: int) -> WakeUp:
    buffer, make = AsyncReplayBufferConfig(seed=0).build(), rollout_maker(LONG)
    for _ in range(others):
        await buffer.put(make(), "other", model_step=1)

    async def consume() -> float:
        groups, _ = await buffer.take_batch({WAITED: batch}, wait=True)
        held = perf_counter()
        if len(groups[WAITED]) != batch:
            raise AssertionError("a batch that was waited for is complete")
        return held

    from_call, from_return = [], []
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        consumer = asyncio.create_task(consume())
        *first, last = (make() for _ in range(batch))
        for group in first:
            await buffer.put(group, WAITED, model_step=1, current_train_step=VERSIONS)
        await asyncio.sleep(0)  # now it waits
        called = perf_counter()
        await buffer.put(last, WAITED, model_step=1, current_train_step=VERSIONS)
        returned = perf_counter()
        held = await consumer
        from_call.append(held - called)
        from_return.append(held - returned)
    gc.unfreeze()
    return WakeUp(batch, Timing.of(from_call), Timing.of(from_return))


class Stall(NamedTuple):
    """The longest call of one kind, by processor time."""

    call: str
    calls: int
    median: float
    worst: float
    worst_wall: float
    """The same call, with the time in which other processes had the processor."""
    collecting: float
    """Of these, in Python's garbage collector."""
    groups: int
    """How many groups the buffer held."""


class _Watch:
    """Times calls by kind, and what of each was garbage collection."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._taken: dict[str, list[tuple[float, float, float, int]]] = {}
        self._collecting = self._started = 0.0

    def __call__(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._collecting = 0.0
        wall, start = perf_counter(), thread_time()
        result = drive(make())
        busy, wall = thread_time() - start, perf_counter() - wall
        self._taken.setdefault(name, []).append((busy, wall, self._collecting, len(self._buffer)))
        return result

    def collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._started = perf_counter()
        else:
            self._collecting += perf_counter() - self._started

    def stalls(self) -> Iterator[Stall]:
        for name, calls in self._taken.items():
            worst = max(calls)
            yield Stall(name, len(calls), Timing.of([call[0] for call in calls]).median, *worst)


def measure_stalls(groups: int) -> list[Stall]:
    """Fill a buffer, its consumer and its observers at work, the garbage collector too as it is for users."""
    buffer, make = AsyncReplayBufferConfig(seed=0).build(), rollout_maker(LONG)
    watch = _Watch(buffer)
    gc.collect()
    gc.callbacks.append(watch.collected)
    try:
        for number in range(groups):
            _one_group(buffer, make(), number, watch)
    finally:
        gc.callbacks.remove(watch.collected)
    return list(watch.stalls())


def _one_group(buffer: ReplayBuffer, group: Group, number: int, watch: _Watch) -> None:
    step = VERSIONS + number // 1000
    uid = watch("put", lambda: buffer.put(group, TASK, model_step=step - 1, current_train_step=step))
    if number % 100 == 99:
        watch("count", lambda: buffer.count(TASK, "completed"))
        watch("is_ready", lambda: buffer.is_ready({TASK: 64}))
        for taken in watch("get(64)", lambda: buffer.get(64, TASK, "completed")):
            watch("put", lambda taken=taken: buffer.put(taken, TASK))
        refresh = {"task_stale_thresholds": {TASK: 10**9}, "current_train_step": step}
        watch("refresh, nothing expires", lambda: buffer.refresh_staleness(**refresh))
        watch("peek", lambda: buffer.peek([uid]))
        watch("update_priorities of 1", lambda: buffer.update_priorities({uid: 2.0}))
    if number % 1000 == 999:
        watch("ledger", buffer.ledger)
        watch("stats", buffer.stats)
        watch("metrics", buffer.metrics)
        watch("query, by pool, none found", lambda: buffer.query({"status": "aborted"}))
        watch("query, by column, none found", lambda: buffer.query({"reward_mean": {"$gt": 9.0}}))
