"""A buffer in memory that is saved and resumed: beside plain files, beside torch.save, and beside puts that go on.

Groups share nothing, as those of a run do not. All times are on the wall, since disk and threads are part of them. What
is read was written a moment before, so that both sides read from the page cache.
"""

import asyncio
import copy
import gc
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from groups import MEMBERS, TASK, Group, Shape
from measure import Timing
from reroll import ReplayBuffer, ReplayBufferConfig, Rollout
from reroll.codec import encode
from reroll.testing.probe import probe

SHAPE = Shape(256, 868)
"""Encoded, a group of these is 64 KB."""
SAVE, PLAIN_WRITE = "save", "plain file, write and fsync"
RESUME, PLAIN_READ = "resume", "plain file, read into memory"
TORCH = "torch.save of lists"
PUTTERS, BATCH = 2, 64
BEAT_S = 0.001


def distinct_group(random: np.random.Generator, number: int) -> list[Rollout]:
    """Return a group whose members share nothing but the prompt."""
    prompt = random.integers(0, 150_000, SHAPE.prompt, dtype=np.int32)
    return [
        Rollout(
            group_id=number,
            rollout_id=member,
            prompt_ids=prompt,
            response_ids=random.integers(0, 150_000, SHAPE.response, dtype=np.int32),
            logprobs=random.standard_normal(SHAPE.response, dtype=np.float32),
            response_mask=np.ones(SHAPE.response, np.uint8),
            reward=float(member % 2),
            status="completed",
            finish_reason="stop",
        )
        for member in range(MEMBERS)
    ]


def distinct_groups(count: int, seed: int = 0) -> list[Group]:
    random = np.random.default_rng(seed)
    return [distinct_group(random, number) for number in range(count)]


def listed(group: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return a group as a checkpoint without a codec would have it: dicts of Python lists."""
    return [
        {
            name: value.tolist() if hasattr(value, "tolist") else value
            for name, value in member.to_dict().items()
        }
        for member in group
    ]


@contextmanager
def directory() -> Iterator[Path]:
    """Lend an empty directory on the disk of the working directory."""
    path = Path(tempfile.mkdtemp(prefix=".durability-benchmark-", dir="."))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def timed(act: Callable[[], object]) -> float:
    os.sync()  # what others have left is not ours to write
    start = perf_counter()
    act()
    return perf_counter() - start


async def filled(groups: Sequence[Group]) -> ReplayBuffer:
    buffer = ReplayBufferConfig(seed=0).build()
    for group in groups:
        await buffer.put(group, TASK, model_step=1, current_train_step=2)
    return buffer


class Speeds(NamedTuple):
    """Seconds of each contender, and how much it moved."""

    seconds: dict[str, Timing]
    num_bytes: int
    groups: int

    def rate(self, name: str) -> float:
        """MB/s at the median."""
        return self.num_bytes / 1e6 / self.seconds[name].median


def measure_saves(count: int, rounds: int) -> Speeds:
    """Save and resume a buffer, and write and read the same bytes as a plain file, by turns."""
    buffer = asyncio.run(filled(distinct_groups(count)))
    blobs = [
        encode(group.items) for group in probe(buffer).groups.groups(probe(buffer).engine.columns.alive())
    ]
    gc.collect()
    writes: dict[str, Callable[[Path], object]] = {
        PLAIN_WRITE: lambda where: write_plain(where / "plain", blobs),
        SAVE: lambda where: asyncio.run(buffer.save(where)),
    }
    reads: dict[str, Callable[[Path], object]] = {
        PLAIN_READ: lambda where: read_plain(where / "plain", count, len(blobs[0])),
        RESUME: lambda where: resume(where, count),
    }
    taken: dict[str, list[float]] = {name: [] for name in (*writes, *reads)}
    for number in range(rounds):
        for name in list(writes)[:: -1 if number % 2 else 1]:
            with directory() as where:
                taken[name].append(timed(lambda act=writes[name], where=where: act(where)))
    with directory() as where:
        for write in writes.values():
            write(where)
        for number in range(rounds):
            for name in list(reads)[:: -1 if number % 2 else 1]:
                taken[name].append(timed(lambda act=reads[name]: act(where)))
    return Speeds({name: Timing.of(some) for name, some in taken.items()}, sum(map(len, blobs)), count)


def write_plain(path: Path, blobs: Sequence[bytes]) -> None:
    with path.open("wb", buffering=0) as file:
        for blob in blobs:
            file.write(blob)
        os.fsync(file.fileno())


def read_plain(path: Path, count: int, num_bytes: int) -> list[bytes]:
    """Read into memory that is kept, as a resumed buffer keeps it."""
    with path.open("rb", buffering=0) as file:
        return [file.read(num_bytes) for _ in range(count)]


def resume(path: Path, count: int) -> None:
    buffer = ReplayBufferConfig(seed=0).build()
    asyncio.run(buffer.resume(path))
    if len(buffer) != count:
        raise AssertionError("something was lost")


class Stalls(NamedTuple):
    """How long the event loop stood still while two tasks put groups, and a trainer took as many."""

    longest: Timing
    """Of each round, during a save."""
    worst: float
    without: Timing
    """Of each round, in as long a time without a save."""
    puts: int
    """Groups put during a save, at the median."""
    puts_without: int
    save_s: float


def measure_stalls(count: int, rounds: int) -> Stalls:
    """Let a heartbeat tell the longest stall while a buffer is saved and others put and take, and while nothing is saved.

    What is there beforehand is frozen, as the guide advises: a full pass of the garbage collector over so many
    groups is a stall of its own, with a save or without. The collector runs as usual on all that comes later.
    """
    groups = distinct_groups(count)
    more = distinct_groups(64, seed=1)
    saving, idle = [], []
    for number in range(rounds):
        for is_saving in (True, False)[:: -1 if number % 2 else 1]:
            buffer = asyncio.run(filled(groups))
            gc.collect()
            gc.freeze()
            os.sync()
            with directory() as where:
                seconds = saving[0][2] if saving else 1.0
                found = asyncio.run(_stall(buffer, more, where if is_saving else None, seconds))
            (saving if is_saving else idle).append(found)
            gc.unfreeze()
    return Stalls(
        Timing.of([stall for stall, *_ in saving]),
        max(stall for stall, *_ in saving),
        Timing.of([stall for stall, *_ in idle]),
        round(Timing.of([puts for _, puts, _ in saving]).median),
        round(Timing.of([puts for _, puts, _ in idle]).median),
        Timing.of([seconds for *_, seconds in saving]).median,
    )


async def _stall(
    buffer: ReplayBuffer, groups: Sequence[Group], where: Path | None, seconds: float
) -> tuple[float, int, float]:
    """Return the longest stall, how many groups were put, and how long it took."""
    put = putter(buffer, groups)
    return await stalled(put, lambda: asyncio.sleep(seconds) if where is None else buffer.save(where))


def putter(buffer: ReplayBuffer, groups: Sequence[Group]) -> Callable[[int], Awaitable[None]]:
    """Return what puts the n-th group; a trainer takes as many, so that the buffer stays as large as it was."""

    async def put(number: int) -> None:
        group = [copy.copy(member) for member in groups[number % len(groups)]]
        await buffer.put(group, TASK, model_step=1, current_train_step=2)
        if number % BATCH == BATCH - 1:
            await buffer.take_batch({TASK: BATCH})

    return put


async def stalled(
    put: Callable[[int], Awaitable[None]], act: Callable[[], Awaitable[object]]
) -> tuple[float, int, float]:
    """Return how long the event loop stood still at most during an act, how many groups were put, and how long it took."""
    is_over, longest, puts = False, 0.0, 0

    async def beat() -> None:
        nonlocal longest
        while not is_over:
            start = perf_counter()
            await asyncio.sleep(BEAT_S)
            longest = max(longest, perf_counter() - start - BEAT_S)

    async def go_on_putting() -> None:
        nonlocal puts
        while not is_over:
            number, puts = puts, puts + 1
            await put(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(each()) for each in (beat, *(go_on_putting,) * PUTTERS)]
    await asyncio.sleep(0.01)
    longest, puts, start = 0.0, 0, perf_counter()
    await act()
    found = longest, puts, perf_counter() - start
    is_over = True
    await asyncio.gather(*tasks)
    return found


def measure_torch(count: int, rounds: int) -> float | None:
    """Return the seconds of a group in torch.save of Python lists; None where torch is not installed."""
    try:
        import torch  # noqa: PLC0415  (not needed for the rest)
    except ImportError:
        return None
    lists = [listed(group) for group in distinct_groups(count)]
    taken = []
    for _ in range(rounds):
        with directory() as where:
            taken.append(timed(lambda where=where: torch.save(lists, where / "groups.pt")) / count)
    return Timing.of(taken).median
