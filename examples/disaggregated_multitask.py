"""Disaggregated training on two tasks: producers and the trainer run at their own pace.

Each task has its own batch size, staleness threshold, sampler and capacity. The trainer takes one batch over both tasks
in one atomic step, as soon as both parts exist. A task that is ahead is held back by its capacity: its puts wait, so
nothing is evicted, and a fast task never delays a slow one. Weights change while responses are running, so the engine
notes the version of each token by itself. What is too stale when its turn comes is dropped, and counted.

    python examples/disaggregated_multitask.py
"""

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass

from reroll import ReplayBuffer, ReplayBufferConfig, Rollout, Status, TaskConfig, WaitTimeout

STEPS = 6


@dataclass(frozen=True)
class Work:
    """How one task is rolled and trained."""

    batch: int
    stale_threshold: int
    mean_length: int
    producers: int


TASKS = {
    "math": Work(batch=8, stale_threshold=3, mean_length=20, producers=6),  # quick
    "agent": Work(batch=2, stale_threshold=6, mean_length=160, producers=2),  # slow, so it may be staler
}
CONFIG = ReplayBufferConfig(
    sampler="fifo",
    tasks={"math": TaskConfig(capacity=16), "agent": TaskConfig(capacity=4, sampler="stalest")},
)


class Engine:
    """Stands in for an inference engine that takes new weights in mid-flight."""

    def __init__(self, seed: int) -> None:
        self.version = 0
        self._random = random.Random(seed)

    async def generate(self, prompt: str, mean_length: int) -> Rollout:
        response, versions = [], []
        for _ in range(1 + int(self._random.expovariate(1 / mean_length))):
            response.append(self._random.randrange(32_000))
            versions.append(self.version)
            await asyncio.sleep(0)
        return Rollout(
            group_id=prompt,
            prompt_ids=[1, 2, 3],
            response_ids=response,
            response_model_steps=versions,
            reward=float(self._random.random() < 0.5),
            status=Status.COMPLETED,
        )


async def produce(buffer: ReplayBuffer, engine: Engine, task: str, held_back: Counter) -> None:
    """Roll one prompt after the other; only a full buffer slows it down."""
    work = TASKS[task]
    for number in itertools.count():
        prompt = f"{task} {number}"
        group = await asyncio.gather(*(engine.generate(prompt, work.mean_length) for _ in range(4)))
        limits = {"stale_threshold": work.stale_threshold, "expired_groups_retryable": False}
        try:
            await buffer.put(group, task, current_train_step=engine.version + 1, timeout=0, **limits)
        except WaitTimeout:  # nothing has changed, so it can be put again
            held_back[task] += 1
            await buffer.put(group, task, current_train_step=engine.version + 1, **limits)


async def train(buffer: ReplayBuffer, engine: Engine) -> None:
    for step in range(1, STEPS + 1):
        dropped = await buffer.refresh_staleness(
            task_stale_thresholds={task: work.stale_threshold for task, work in TASKS.items()},
            current_train_step=step,
            expired_groups_retryable_by_task=dict.fromkeys(TASKS, False),
        )
        batches, counts = await buffer.take_batch(
            {task: work.batch for task, work in TASKS.items()}, wait=True, train_step=step
        )
        stalest = {task: max(r.seq_staleness for group in batches[task] for r in group) for task in TASKS}
        print(
            f"step {step}: trained {counts['math']} math and {counts['agent']} agent groups, "
            f"stalest {stalest['math']} and {stalest['agent']}; "
            f"dropped as too stale: {dropped['math']} and {dropped['agent']}"
        )
        for _ in range(30):  # the optimizer step; producers go on meanwhile
            await asyncio.sleep(0)
        engine.version = step


async def main() -> None:
    engine, buffer, held_back = Engine(seed=0), CONFIG.build(), Counter()
    producers = [
        asyncio.create_task(produce(buffer, engine, task, held_back))
        for task, work in TASKS.items()
        for _ in range(work.producers)
    ]
    await train(buffer, engine)
    for producer in producers:  # a put that is cancelled while it waits has put nothing
        producer.cancel()
    await asyncio.gather(*producers, return_exceptions=True)

    for task, books in (await buffer.ledger()).items():
        print(
            f"{task}: {books['put'].groups} groups put = {books['consumed'].groups} trained "
            f"+ {books['expired'].groups} too stale + {books['resident'].groups} here; "
            f"evicted {books['evicted'].groups}; puts held back by a full buffer: {held_back[task]}"
        )


if __name__ == "__main__":
    asyncio.run(main())
