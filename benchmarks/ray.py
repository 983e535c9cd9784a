"""Measure the buffer on Ray beside Ray's own queue and TransferQueue, and how soon a batch arrives that a taker waits for.

    python benchmarks/ray.py             groups of 4, 40 and 256 KB, about two minutes
    python benchmarks/ray.py --quick     fewer rounds
    python benchmarks/ray.py --check     a claim that is missed makes the exit code 1

Groups go from this process into an actor and back: 64 puts under way at once of 4 and 40 KB, 16 of 256 KB, then one take of all.
Contenders take turns on one Ray, batch by batch, and are compared by the medians of their times on the wall. A shard in memory
learns of a take after it returned; the next turn begins when it knows. `RolloutGroups` are made before the clock starts. The queue moves groups as Python objects, a batch in one
call: as dicts of lists, which is what engines return, as the same `Rollout`s, whose tokens are arrays, and as one array for each
group. It keeps references into Ray's object store, copies nothing and checks nothing.

TransferQueue is measured if this Python has it: python3 -m venv PEER && PEER/bin/pip install '.[ray]' torch==2.13.0
TransferQueue, then PEER/bin/python benchmarks/ray.py. It moves columns of tensors by key, all groups of a batch at once, and
returns columns. They are made of the same `Rollout`s, as the bytes of ours are; for comparison also before the clock starts.
What is taken is removed after the clock stops.
"""

import asyncio
import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

sys.path.append(sys.path.pop(0))  # this file is named as the library that it measures

import numpy as np
import ray
from ray.util.queue import Queue

try:
    import transfer_queue
except ImportError:
    transfer_queue = None

from measure import Timing, print_table
from reporting import Claim, arguments, conclude, print_title, seconds, versions
from reroll import ReplayBufferConfig, Rollout
from reroll.group import RolloutGroup
from reroll.ray import RayReplayBuffer

SIZES = {"4 KB": (64, 54), "40 KB": (64, 630), "256 KB": (16, 4_090)}
"""Groups of a batch, and tokens of each of the 8 responses of a group, by size of a group."""
ROLLOUTS = 8
PROMPT = 16
TENSORS = ("prompt_ids", "response_ids", "logprobs")
LISTS, ARRAYS, JOINED = "Ray's queue, lists", "Ray's queue, Rollouts", "Ray's queue, one array a group"
ONE, READY, PEER = "reroll, 1 shard", "reroll, 1 shard, RolloutGroups", "TransferQueue"


class Contender(NamedTuple):
    """One way to move a batch into an actor, and out of it."""

    put: Callable[[], Awaitable[Any]]
    take: Callable[[], Awaitable[Any]]
    tidy: Callable[[], Awaitable[Any]] = partial(asyncio.sleep, 0)
    """What has to be done before the next batch, and is not measured."""


def group(seed: int, tokens: int) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [
        Rollout(
            prompt_ids=rng.integers(0, 50_000, PROMPT, np.int32),
            response_ids=rng.integers(0, 50_000, tokens, np.int32),
            logprobs=rng.random(tokens, np.float32),
            reward=float(rng.random()),
            status="completed",
        )
        for _ in range(ROLLOUTS)
    ]


def as_lists(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    return [
        {name: getattr(rollout, name).tolist() for name in TENSORS} | {"reward": rollout.reward}
        for rollout in rollouts
    ]


def as_array(rollouts: Sequence[Rollout]) -> Any:
    parts = [getattr(rollout, name).view(np.uint8) for rollout in rollouts for name in TENSORS]
    return np.concatenate(parts)


def of_buffer(buffer: RayReplayBuffer, groups: Sequence[Sequence[Rollout]]) -> Contender:
    async def put() -> None:
        await asyncio.gather(*(buffer.put(rollouts, "t") for rollouts in groups))

    return Contender(
        put,
        lambda: buffer.take_batch({"t": len(groups)}, wait=True, timeout=60),
        lambda: buffer.count("t", "completed"),  # returns after the shards know that the groups have arrived
    )


def of_queue(queue: Queue, groups: Sequence[Any]) -> Contender:
    async def put() -> None:
        await queue.actor.put_nowait_batch.remote(groups)

    async def take() -> None:
        await queue.actor.get_nowait_batch.remote(len(groups))

    return Contender(put, take)


def of_transfer_queue(groups: Sequence[list[Rollout]], *, from_rollouts: bool) -> Contender:
    import torch  # noqa: PLC0415
    from tensordict import TensorDict  # noqa: PLC0415

    def columns() -> TensorDict:
        tensors = {
            name: torch.from_numpy(np.stack([[getattr(one, name) for one in group] for group in groups]))
            for name in TENSORS
        }
        rewards = torch.tensor([[one.reward for one in group] for group in groups])
        return TensorDict({**tensors, "reward": rewards}, batch_size=len(groups))

    ready = columns()
    names = {"keys": [f"group-{number}" for number in range(len(groups))], "partition_id": "train"}
    return Contender(
        lambda: transfer_queue.async_kv_batch_put(**names, fields=columns() if from_rollouts else ready),
        lambda: transfer_queue.async_kv_batch_get(**names),
        lambda: transfer_queue.async_kv_clear(**names),
    )


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    start = perf_counter()
    await work()
    return perf_counter() - start


async def in_turn(contenders: dict[str, Contender], rounds: int) -> dict[str, tuple[Timing, Timing]]:
    """Return how long a batch takes to be put and to be taken; turns go forwards and backwards."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in contenders}
    gc.collect()
    gc.freeze()  # the collector skips what exists by now
    order = list(contenders.items())
    for turn in range(rounds + 3):
        order.reverse()
        for name, contender in order:
            times = await timed(contender.put), await timed(contender.take)
            await contender.tidy()
            if turn >= 3:  # warm by now
                for kept, time in zip(found[name], times, strict=True):
                    kept.append(time)
    return {name: (Timing.of(puts), Timing.of(takes)) for name, (puts, takes) in found.items()}


async def wake_up(buffer: RayReplayBuffer, rounds: int) -> Timing:
    """Return how long it takes from the start of the put that completes a batch until its taker has it."""
    small = [Rollout(prompt_ids=[1], response_ids=[2] * 100, status="completed")]
    waits = []
    for _ in range(rounds):
        await asyncio.gather(*(buffer.put(small, "w") for _ in range(15)))
        taker = asyncio.ensure_future(buffer.take_batch({"w": 16}, wait=True, timeout=60))
        await buffer.count("w", "completed")  # the taker waits by now
        start = perf_counter()
        await asyncio.gather(buffer.put(small, "w"), taker)
        waits.append(perf_counter() - start)
    return Timing.of(waits)


async def measure(rounds: int, directory: Path) -> tuple[dict[str, dict[str, tuple[Timing, Timing]]], Timing]:
    """Return the times of a put and of a take of a batch by size and contender, and those of `wake_up`."""
    memory = ReplayBufferConfig(sampler="fifo")
    on_disk = ReplayBufferConfig(sampler="fifo", store=directory, max_uncommitted_steps=0)
    buffers = {
        ONE: RayReplayBuffer.create(memory, name="one"),
        "reroll, 3 shards": RayReplayBuffer.create(memory, name="three", num_shards=3),
        "reroll, on disk": RayReplayBuffer.create(on_disk, name="disk"),
    }
    forms: dict[str, Callable[[Any], Any]] = {LISTS: as_lists, ARRAYS: list, JOINED: as_array}
    queues = {name: Queue(actor_options={"num_cpus": 0}) for name in forms}
    if transfer_queue is not None:
        transfer_queue.init()
    found = {}
    for size, (batch, tokens) in SIZES.items():
        groups = [group(seed, tokens) for seed in range(batch)]
        contenders = {name: of_buffer(buffer, groups) for name, buffer in buffers.items()}
        contenders[READY] = of_buffer(buffers[ONE], list(map(RolloutGroup.of, groups)))
        for name, form in forms.items():
            contenders[name] = of_queue(queues[name], list(map(form, groups)))
        if transfer_queue is not None:
            contenders[PEER] = of_transfer_queue(groups, from_rollouts=True)
            contenders[f"{PEER}, columns ready"] = of_transfer_queue(groups, from_rollouts=False)
        found[size] = await in_turn(contenders, rounds)
    wake = await wake_up(buffers[ONE], rounds)
    for buffer in buffers.values():
        await buffer.close()
    for queue in queues.values():
        queue.shutdown()
    if transfer_queue is not None:
        transfer_queue.close()
    return found, wake


def print_times(size: str, times: dict[str, tuple[Timing, Timing]]) -> None:
    batch = SIZES[size][0]
    rows = [
        (name, *(cell for t in pair for cell in (f"{t.median * 1e3:.1f}", f"{batch / t.median:,.0f}")))
        for name, pair in times.items()
    ]
    print_table(f"{batch} groups of {size}, p50", ("", "put ms", "groups/s", "take ms", "groups/s"), rows)


def main() -> int:
    options = arguments("Measure the buffer on Ray.", "ray.json").parse_args()
    start = perf_counter()
    print_title("reroll on Ray benchmark")
    with tempfile.TemporaryDirectory(dir=".") as where:
        found, wake = asyncio.run(measure(10 if options.quick else 40, Path(where).absolute()))
    for size, times in found.items():
        print_times(size, times)
    if transfer_queue is None:
        print(f"{PEER} is not installed here, and was left out; see the beginning of this file")
    claims = [
        Claim(f"{verb} of {size} at least as fast as {other}", f"{ratio:.2f} times", ratio >= 1)
        for size, times in found.items()
        for other in (LISTS, ARRAYS, JOINED, PEER)
        if other in times
        for verb, which in (("put", 0), ("take", 1))
        for ratio in (times[other][which].median / times[ONE][which].median,)
    ]
    claims.append(
        Claim(
            "take_batch(wait=True) after the put that completes it, p50 under 10 ms",
            f"{wake.median * 1e3:.1f} ms",
            wake.median < 0.010,
        )
    )
    report = {
        "versions": versions(),
        "times": {
            size: {name: [seconds(puts), seconds(takes)] for name, (puts, takes) in times.items()}
            for size, times in found.items()
        },
        "wake_up": seconds(wake),
    }
    return conclude(claims, report, perf_counter() - start, options)


if __name__ == "__main__":
    os.environ |= {"RAY_AUTH_MODE": "disabled", "TQ_LOGGING_LEVEL": "ERROR"}
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        ray.init(
            "local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=500_000_000,
            log_to_driver=False,
            configure_logging=False,
        )
    try:
        code = main()
    finally:
        ray.shutdown()
    sys.exit(code)
