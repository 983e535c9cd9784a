"""The buffer of reroll, in the process that uses it."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import work
from checkpoints import putter, stalled
from contenders.killing import acknowledged_then_killed
from contenders.rollouts import TASK, copied, rollouts_of, version
from contenders.timing import scanning, size_of
from group_operations import LISTS, Subject
from groups import WORKLOAD_R, drive, fill, rollout_maker
from reroll import Fifo, Prioritized, ReplayBufferConfig
from reroll.prepare import pack, sequences_of
from worker import Measure

__all__ = ["CANNOT", "checkpoint", "crash", "memory", "packed", "replay", "scan", "version"]
CANNOT: dict[str, str] = {}
BATCH = 64
STEP = 2
PACK_LENGTH = 16_384


def packed(groups: int) -> Iterator[Measure]:
    """`Rollout`s are put into a full buffer that evicts the oldest; `sample`, `sequences_of` and `pack` give all arrays, sorted into rows of at most 16,384 tokens."""
    buffer = ReplayBufferConfig(
        capacity=groups, sampler="uniform", remover="fifo", max_times_sampled=None, seed=0
    ).build()
    made = [rollouts_of(group) for group in work.make_groups(work.VARIED, groups)]

    def put(some: Sequence[list[Any]]) -> None:
        for group in some:
            drive(buffer.put(group, TASK, model_step=STEP - 1))

    def batch() -> None:
        pack(
            sequences_of(drive(buffer.sample(BATCH, TASK, train_step=STEP)), train_step=STEP), PACK_LENGTH
        ).arrays()

    def measure() -> dict[str, float]:
        new = copied(made[:BATCH])
        return {"insert": work.rate(lambda: put(new), BATCH), "batch": work.rate(batch, 1)}

    put(made)
    measure()
    yield measure


def replay(groups: int) -> Iterator[Measure]:
    """A prioritized buffer; a cycle samples 64 distinct groups with weights, and updates their priorities by uid."""
    config = ReplayBufferConfig(
        capacity=groups,
        sampler=Prioritized(alpha=0.6, beta=0.4),
        remover=Fifo(),
        max_times_sampled=None,
        seed=0,
    )
    given = work.priorities(groups).tolist()
    buffer = fill(config.build(), rollout_maker(WORKLOAD_R), groups, priority=given.__getitem__)
    new = (work.priorities(BATCH)).tolist()

    def cycle() -> None:
        uids = [sample.info.uid for sample in drive(buffer.sample(BATCH, TASK))]
        drive(buffer.update_priorities(dict(zip(uids, new, strict=True))))

    yield lambda: {"cycle": work.repeated(cycle)}


def scan(groups: int) -> Iterator[Measure]:
    """The same objects, which hold lists, in a buffer that hands out the stalest group first."""
    yield scanning(Subject(LISTS, size_of(groups)))


def checkpoint(groups: int) -> Iterator[Measure]:
    """`save` and `resume` of a buffer in memory, with checksums and fsync. While it saves, two tasks put groups and take batches; the stall is the longest that their event loop stood still."""
    given = work.make_groups(work.CHECKPOINTED, groups)
    megabytes = sum(group.num_bytes for group in given) / 1e6
    made, more = ([rollouts_of(group) for group in some] for some in (given, given[:BATCH]))

    async def measure(where: Path) -> dict[str, float]:
        buffer = ReplayBufferConfig(seed=0).build()
        for group in copied(made):
            await buffer.put(group, TASK, model_step=1)
        save_s = await _timed(buffer.save(where))
        resumed = ReplayBufferConfig(seed=0).build()
        resume_s = await _timed(resumed.resume(where))
        if len(resumed) != groups:
            raise RuntimeError(f"{len(resumed)} of {groups} groups came back")
        stall_s, _, _ = await stalled(putter(buffer, more), lambda: buffer.save(where))
        return {"save": megabytes / save_s, "resume": megabytes / resume_s, "stall": 1e3 * stall_s}

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as where:
            return asyncio.run(measure(Path(where)))

    yield run


async def _timed(work_to_do: Any) -> float:
    start = asyncio.get_running_loop().time()
    await work_to_do
    return asyncio.get_running_loop().time() - start


def memory(groups: int) -> Iterator[Measure]:
    """`Rollout`s in a buffer; resident memory of the process."""

    def start(_: int) -> work.Keep:
        buffer = ReplayBufferConfig(seed=0).build()

        def keep(given: Sequence[work.Group]) -> None:
            for group in given:
                drive(buffer.put(rollouts_of(group), TASK, model_step=1))

        return keep

    yield lambda: work.memory_of(start, groups)


PUTTING = """
import asyncio
import work
from contenders.rollouts import TASK, rollouts_of
from reroll import ReplayBufferConfig

async def main():
    buffer = ReplayBufferConfig(store=sys.argv[1]).build()
    groups = [rollouts_of(group) for group in work.make_groups(work.shape_of_bytes(4096), int(sys.argv[2]))]
    for group in groups:
        await buffer.put(group, TASK, model_step=1)
        print("acknowledged", flush=True)
    await asyncio.sleep(1e6)

asyncio.run(main())
"""


def crash(groups: int) -> Iterator[Measure]:
    """A buffer with `store=`, as it is by default (`sync="os"`), in a process that is killed when its last put has returned. Then it is opened again."""

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as where:
            store = str(Path(where).absolute())
            acknowledged = acknowledged_then_killed(PUTTING, store, groups)
            buffer = ReplayBufferConfig(store=store).build()
            found = len(buffer)
            asyncio.run(buffer.close())
        return {"acknowledged": acknowledged, "lost": acknowledged - found}

    yield run
