"""The buffer on Ray beside Ray's own queue and, where it is installed, TransferQueue; and how soon a batch arrives.

    python benchmarks/ray.py [--quick]

Groups of 256 KB go in batches of 16 from this process into an actor and back. In a queue they travel as Python objects, as its
users have them. All in one run on one Ray, so that the ratios can be compared; medians of several rounds.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable

sys.path.append(sys.path.pop(0))  # this file is named as the library that it measures

import numpy as np
from ray.util.queue import Queue

import ray
from reroll import ReplayBufferConfig, Rollout
from reroll.ray import RayReplayBuffer

BATCH = 16
MEMBERS = 8
TOKENS = 3_900  # with log-probs, mask and versions: 256 KB a group


def group(seed: int) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    return [
        Rollout(
            prompt_ids=rng.integers(0, 50_000, 200, np.int32),
            response_ids=rng.integers(0, 50_000, TOKENS, np.int32),
            logprobs=rng.random(TOKENS, np.float32),
            response_model_steps=[1] * TOKENS,
            reward=float(rng.random()),
            status="completed",
        )
        for _ in range(MEMBERS)
    ]


def as_objects(rollouts: list[Rollout]) -> list[dict]:
    """Return a group as users of a queue have it: dicts of lists."""
    return [
        {
            "prompt_ids": rollout.prompt_ids.tolist(),
            "response_ids": rollout.response_ids.tolist(),
            "logprobs": rollout.logprobs.tolist(),
            "reward": rollout.reward,
        }
        for rollout in rollouts
    ]


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def of_reroll(buffer: RayReplayBuffer, groups: list, rounds: int) -> tuple[float, float]:
    async def put() -> None:
        await asyncio.gather(*(buffer.put(rollouts, "t") for rollouts in groups))

    async def take() -> None:
        await buffer.take_batch({"t": BATCH}, wait=True, timeout=60)

    puts, takes = [], []
    for _ in range(rounds):
        puts.append(await timed(put))
        takes.append(await timed(take))
    return statistics.median(puts), statistics.median(takes)


async def of_queue(queue: Queue, groups: list, rounds: int) -> tuple[float, float]:
    actor = queue.actor

    async def put() -> None:
        await actor.put_nowait_batch.remote(groups)

    async def take() -> None:
        await actor.get_nowait_batch.remote(BATCH)

    puts, takes = [], []
    for _ in range(rounds):
        puts.append(await timed(put))
        takes.append(await timed(take))
    return statistics.median(puts), statistics.median(takes)


async def wake_up(buffer: RayReplayBuffer, rounds: int) -> float:
    """Return the median time from the start of the put that completes a batch until the taker has it."""
    small = [Rollout(prompt_ids=[1], response_ids=[2] * 100, status="completed")]
    waits = []
    for _ in range(rounds):
        for _ in range(BATCH - 1):
            await buffer.put(small, "w")
        taker = asyncio.ensure_future(buffer.take_batch({"w": BATCH}, wait=True, timeout=60))
        await buffer.count("w", "completed")  # the taker waits by now
        start = time.perf_counter()
        await asyncio.gather(buffer.put(small, "w"), taker)
        waits.append(time.perf_counter() - start)
    return statistics.median(waits)


def rate(seconds: float, num_bytes: int) -> str:
    return f"{seconds * 1e3:7.1f} ms  {num_bytes / seconds / 1e6:7.0f} MB/s"


async def main(rounds: int) -> None:
    groups = [group(seed) for seed in range(BATCH)]
    config = ReplayBufferConfig(sampler="fifo")
    size = BATCH * sum(r.response_ids.nbytes + r.prompt_ids.nbytes + r.logprobs.nbytes for r in groups[0])
    print(f"{BATCH} groups of {size / BATCH / 1024:.0f} KB, medians of {rounds} rounds\n")
    results = {}
    with tempfile.TemporaryDirectory() as where:
        for name, made in {
            "reroll, 1 shard": (config, 1),
            "reroll, 3 shards": (config, 3),
            "reroll, 1 shard, on disk": (config.model_copy(update={"store": where + "/one"}), 1),
        }.items():
            from pathlib import Path

            one = made[0] if made[0].store is None else made[0].model_copy(update={"store": Path(made[0].store)})
            buffer = RayReplayBuffer.create(one, name=name, num_shards=made[1])
            await of_reroll(buffer, groups, 3)
            results[name] = await of_reroll(buffer, groups, rounds)
            if name == "reroll, 1 shard":
                results["wake"] = await wake_up(buffer, rounds)
            await buffer.close()
    wake = results.pop("wake")
    for name, sent in {"queue, numpy": groups, "queue, lists": [as_objects(rollouts) for rollouts in groups]}.items():
        queue = Queue(actor_options={"num_cpus": 0})
        await of_queue(queue, sent, 3)
        results[name] = await of_queue(queue, sent, rounds)
        queue.shutdown()
    for verb, index in (("put", 0), ("take", 1)):
        for name, found in results.items():
            ratio = results["queue, lists"][index] / found[index]
            print(f"{verb:5s} {name:26s} {rate(found[index], size)}   {ratio:5.2f} x the queue of lists")
        print()
    print(f"take_batch(wait=True) of {BATCH} small groups after the put that completes it: {wake * 1e3:.1f} ms (p50)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    warnings.simplefilter("ignore")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=500_000_000, log_to_driver=False)
    try:
        asyncio.run(main(10 if options.quick else 40))
    finally:
        ray.shutdown()
