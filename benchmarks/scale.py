"""How many shards does a run need? The cost of each verb in a server process, and what it comes to at 1,024 to 16,384 GPUs.

python benchmarks/scale.py

A group of 16 responses is reserved, put, leased, acknowledged and trained once. A cost is CPU time of the server process, read
from /proc, so that socket and framing are included. How long a group stays in the buffer comes from a simulated run.
`docs/scale.md` has the table.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from reroll import RolloutGroup, connect
from reroll.simulate import Scenario, simulate

MEMBERS, PROMPT, TOKENS, BATCH = 16, 512, 2000, 64
ROLLOUTS_PER_GPU = 1250 / 1024
"""Rollouts a second of a GPU."""
GPUS = (1024, 2048, 4096, 8192, 16_384)
MOST_CPU, MOST_BYTES, MOST_MEMORY = 0.6, 1.25e9, 64e9
"""Of a shard: share of a core on average, so that bursts are served at once; bytes/s of a 10 Gb/s link in each direction; memory."""


def group(number: int) -> RolloutGroup:
    """Return a group as an engine returns it: arrays of ids and log-probabilities."""
    rng = np.random.default_rng(number)
    return RolloutGroup.pack(
        np.arange(PROMPT, dtype=np.int32),
        [rng.integers(0, 150_000, TOKENS, dtype=np.int32) for _ in range(MEMBERS)],
        logprobs=[rng.standard_normal(TOKENS, dtype=np.float32) for _ in range(MEMBERS)],
        rewards=[float(member % 2) for member in range(MEMBERS)],
        group_id=number,
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(address: str, pid: int, groups: int) -> dict[str, float]:
    """Return the CPU seconds of the server for one group, by verb."""
    made = [group(number) for number in range(32)]
    seconds: dict[str, float] = {}
    held: list[Any] = []
    batches: list[Any] = []

    async with connect(address) as client:
        await client.count("math", "completed")  # connects

        async def timed(
            name: str, times: int, at_once: int, call: Callable[[int], Awaitable[object]]
        ) -> None:
            started = cpu_seconds(pid)
            for first in range(0, times, at_once):
                await asyncio.gather(*map(call, range(first, first + at_once)))
            seconds[name] = (cpu_seconds(pid) - started) / groups

        async def reserve(_: int) -> None:
            held.append(await client.reserve(1, "math"))

        async def put(number: int) -> None:
            await client.put(made[number % 32], "math", model_step=0, reservation=held[number])

        async def lease(step: int) -> None:
            batches.append(await client.lease({"math": BATCH}, wait=True, train_step=step + 1).__aenter__())

        async def finish(step: int) -> None:
            await batches[step].ack()
            await client.advance(step + 1)

        await timed("reserve", groups, 16, reserve)
        await timed("put", groups, 16, put)
        await timed("lease", groups // BATCH, 1, lease)
        await timed("ack, advance", groups // BATCH, 1, finish)
    return seconds


def serve_and_measure(groups: int) -> dict[str, float]:
    """Start a server in a process of its own, and return its CPU seconds for one group, by verb."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "buffer.json")
        window = {"type": "staleness_window", "max_staleness": groups // BATCH + 1, "batch": BATCH}
        config.write_text(json.dumps({"sampler": "fifo", "rate_limiter": window}), encoding="utf-8")
        address = f"ipc://{folder}/shard"
        command = [sys.executable, "-m", "reroll", "serve", "--config", str(config), "--bind", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None  # noqa: S101
                server.stdout.readline()  # it serves
                return asyncio.run(measure(address, server.pid, groups))
            finally:
                server.terminate()


def held_seconds() -> float:
    """Return how many seconds of input a buffer holds at most, leased groups included: a simulated slice of 64 GPUs."""
    per_s = 64 * ROLLOUTS_PER_GPU / MEMBERS
    scenario = Scenario.of(
        {
            "buffer": {
                "sampler": "fifo",
                "rate_limiter": {"type": "staleness_window", "max_staleness": 1, "batch": 128},
            },
            "engines": {"count": 8, "tokens_per_s": 100, "half_speed_at": 200, "max_running": 512},
            "lengths": {"median": 1500, "sigma": 0.75, "cap": 16_384},
            "group": {"members": MEMBERS, "prompt_tokens": PROMPT},
            "trainer": {"batch": 128, "seconds_per_step": 128 / per_s - 2, "sync_s": 2},
            "steps": 30,
        }
    )
    result = simulate(scenario)
    return (max(point.ready for point in result.points) + 128) / (128 / result.step_s)


def main() -> None:
    """Print the costs and the table."""
    started = time.perf_counter()
    groups = 256 if "--quick" in sys.argv else 1024
    seconds, num_bytes, held_s = serve_and_measure(groups), group(0).nbytes, held_seconds()
    total = sum(seconds.values())
    for name, cost in {**seconds, "all": total}.items():
        print(f"{name:>14}: {cost * 1e6:7.0f} us a group")
    print(
        f"a group has {num_bytes / 1e6:.2f} MB, and stays {held_s:.0f} s at most; one core serves {MEMBERS / total:,.0f} rollouts/s\n"
    )
    print(
        "| GPUs | rollouts/s | groups/s | CPU cores | in and out, MB/s each | memory | shards | load of each shard |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for gpus in GPUS:
        rollouts = gpus * ROLLOUTS_PER_GPU
        per_s = rollouts / MEMBERS
        cores, traffic, memory = per_s * total, per_s * num_bytes, per_s * num_bytes * held_s
        shards = max(
            1,
            *(
                int(-(-need // most))
                for need, most in ((cores, MOST_CPU), (traffic, MOST_BYTES), (memory, MOST_MEMORY))
            ),
        )
        print(
            f"| {gpus:,} | {rollouts:,.0f} | {per_s:,.0f} | {cores:.2f} | {traffic / 1e6:,.0f} | {memory / 1e9:,.1f} GB | {shards} | "
            f"{cores / shards:.0%} of a core, {traffic / shards / 1e6:,.0f} MB/s, {memory / shards / 1e9:,.1f} GB |"
        )
    print(f"\nmeasured in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
