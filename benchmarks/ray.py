"""Measure the buffer on Ray beside Ray's own queue and TransferQueue, and how soon a batch arrives that somebody waits for.

    python benchmarks/ray.py             groups of 250 KB in batches of 16, about a minute
    python benchmarks/ray.py --quick     fewer rounds
    python benchmarks/ray.py --check     a claim that is missed makes the exit code 1

Groups go from this process into an actor and back. Contenders take turns on one Ray, batch by batch, and are compared by the
medians of their times on the wall. A shard is told that what was taken has arrived while its taker goes on; the next turn begins
when it knows. Shard and handle are on one node here, and share memory; `object store` is a buffer that does not, as handles on
other nodes do not. The queue moves groups as Python objects: as dicts of lists, which is what engines return, and as the same
`Rollout`s, whose tokens are arrays; it keeps references into Ray's object store, copies nothing and checks nothing. The bare
actor is the least that a put by value through the object store can cost: groups are encoded, sent, copied to its heap and
checked as ours are, and it is no buffer.

TransferQueue is measured if this Python has it: python3 -m venv PEER && PEER/bin/pip install '.[ray]' torch==2.13.0
TransferQueue, then PEER/bin/python benchmarks/ray.py. It moves columns of tensors by key, all groups of a batch at once, as its
users are told to, and gives columns back. They are made of the same `Rollout`s, as the bytes of ours are; for comparison also
before the clock starts. What is taken is removed after it stops.
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
from reroll.codec import decode
from reroll.ray import RayReplayBuffer
from reroll.remote.groups import decode_put, encode_put

BATCH = 16
ROLLOUTS = 8
TOKENS = 3_900  # with log-probs 250 KB a group
TENSORS = ("prompt_ids", "response_ids", "logprobs")
LISTS, ARRAYS, PEER = "Ray's queue, lists", "Ray's queue, arrays", "TransferQueue"
ONE, BARE = "reroll, 1 shard", "bare actor"


class Contender(NamedTuple):
    """One way to move a batch into an actor, and out of it."""

    put: Callable[[], Awaitable[Any]]
    take: Callable[[], Awaitable[Any]]
    tidy: Callable[[], Awaitable[Any]] = partial(asyncio.sleep, 0)
    """What has to be done before the next batch, and is not measured."""


def group(seed: int) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [
        Rollout(
            prompt_ids=rng.integers(0, 50_000, 200, np.int32),
            response_ids=rng.integers(0, 50_000, TOKENS, np.int32),
            logprobs=rng.random(TOKENS, np.float32),
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


def of_buffer(buffer: RayReplayBuffer, groups: Sequence[list[Rollout]]) -> Contender:
    async def put() -> None:
        await asyncio.gather(*(buffer.put(rollouts, "t") for rollouts in groups))

    return Contender(
        put,
        lambda: buffer.take_batch({"t": BATCH}, wait=True, timeout=60),
        lambda: buffer.count(
            "t", "completed"
        ),  # which waits until the shards know that the groups have arrived
    )


def of_queue(queue: Queue, groups: Sequence[Any]) -> Contender:
    async def put() -> None:
        await queue.actor.put_nowait_batch.remote(groups)

    async def take() -> None:
        await queue.actor.get_nowait_batch.remote(BATCH)

    return Contender(put, take)


class Keeper:
    """Copies groups to its heap, and checks them."""

    async def put(self, groups: Sequence[tuple[bytes, Any]]) -> None:
        self._groups = [decode_put(known, blob.tobytes(), None) for known, blob in groups]

    async def take(self) -> list[Any]:
        return [np.frombuffer(group.blob, np.uint8) for group in self._groups]


def of_bare_actor(groups: Sequence[list[Rollout]]) -> Contender:
    actor = ray.remote(Keeper).options(num_cpus=0).remote()

    async def put() -> None:
        packed = [encode_put(rollouts, None) for rollouts in groups]
        await actor.put.remote([(known, np.frombuffer(blob, np.uint8)) for known, blob in packed])

    async def take() -> None:
        for blob in await actor.take.remote():
            decode(blob.data)

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
        return TensorDict({**tensors, "reward": rewards}, batch_size=BATCH)

    ready = columns()
    names = {"keys": [f"group-{number}" for number in range(BATCH)], "partition_id": "train"}
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
    gc.freeze()  # what is here by now is looked through in nobody's turn
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
        await asyncio.gather(*(buffer.put(small, "w") for _ in range(BATCH - 1)))
        taker = asyncio.ensure_future(buffer.take_batch({"w": BATCH}, wait=True, timeout=60))
        await buffer.count("w", "completed")  # the taker waits by now
        start = perf_counter()
        await asyncio.gather(buffer.put(small, "w"), taker)
        waits.append(perf_counter() - start)
    return Timing.of(waits)


async def measure(rounds: int, directory: Path) -> tuple[dict[str, tuple[Timing, Timing]], Timing, int]:
    groups = [group(seed) for seed in range(BATCH)]
    num_bytes = sum(
        getattr(rollout, name).nbytes for rollouts in groups for rollout in rollouts for name in TENSORS
    )
    memory = ReplayBufferConfig(sampler="fifo")
    buffers = {
        ONE: RayReplayBuffer.create(memory, name="one"),
        "reroll, 3 shards": RayReplayBuffer.create(memory, name="three", num_shards=3),
        "reroll, on disk": RayReplayBuffer.create(
            ReplayBufferConfig(sampler="fifo", store=directory, max_uncommitted_steps=0), name="disk"
        ),
    }
    queues = {name: Queue(actor_options={"num_cpus": 0}) for name in (LISTS, ARRAYS)}
    moved = {LISTS: list(map(as_lists, groups)), ARRAYS: groups}
    contenders = {name: of_buffer(buffer, groups) for name, buffer in buffers.items()}
    contenders[BARE] = of_bare_actor(groups)
    contenders |= {name: of_queue(queue, moved[name]) for name, queue in queues.items()}
    if transfer_queue is not None:
        transfer_queue.init()
        contenders[PEER] = of_transfer_queue(groups, from_rollouts=True)
        contenders[f"{PEER}, columns ready"] = of_transfer_queue(groups, from_rollouts=False)
    times = await in_turn(contenders, rounds)
    wake = await wake_up(buffers[ONE], rounds)
    for buffer in buffers.values():
        await buffer.close()
    for queue in queues.values():
        queue.shutdown()
    if transfer_queue is not None:
        transfer_queue.close()
    return times, wake, num_bytes


def main() -> int:
    options = arguments("Measure the buffer on Ray.", "ray.json").parse_args()
    start = perf_counter()
    print_title("reroll on Ray benchmark")
    with tempfile.TemporaryDirectory(dir=".") as where:
        times, wake, num_bytes = asyncio.run(measure(10 if options.quick else 40, Path(where).absolute()))
    print_table(
        f"{BATCH} groups of {num_bytes // BATCH // 1024} KB, p50",
        ("", "put ms", "MB/s", "take ms", "MB/s"),
        [
            (
                name,
                *(
                    cell
                    for t in pair
                    for cell in (f"{t.median * 1e3:.1f}", f"{num_bytes / t.median / 1e6:.0f}")
                ),
            )
            for name, pair in times.items()
        ],
    )
    if transfer_queue is None:
        print(f"{PEER} is not installed here, and was left out; see the beginning of this file")
    claims = [
        Claim(f"{verb} at least as fast as {other}", f"{ratio:.2f} times", ratio >= 1)
        for other in (LISTS, ARRAYS, PEER)
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
        "batch_bytes": num_bytes,
        "put": {name: seconds(puts) for name, (puts, _) in times.items()},
        "take": {name: seconds(takes) for name, (_, takes) in times.items()},
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
