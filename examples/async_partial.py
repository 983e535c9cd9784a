"""Asynchronous training with over-sampling and partial rollouts.

More groups are in flight than a batch needs. At each weight update the engine aborts what is running; aborted groups
are parked in the buffer with the tokens that they have, are taken back first, and are continued by the new weights. So
one response may be made by several versions, and each token keeps the version that made it. Before each step the buffer
is told its number: groups that are too stale by then expire, are emptied, and are rolled again from their prompt.

    python examples/async_partial.py
"""

import asyncio
import itertools
import random
from collections import Counter

from reroll import AsyncReplayBufferConfig, ReplayBuffer, Rollout, Status, status_from_finish_reason

TASK = "math"
STEPS = 8
BATCH = 6
RESPONSES = 4
IN_FLIGHT = 14  # more than a batch needs
STALE_THRESHOLD = 3  # staleness 0, 1 and 2 may be trained


class Engine:
    """Stands in for an inference engine whose running requests can be aborted."""

    def __init__(self, seed: int) -> None:
        self.version = 0
        self.is_running = True
        self._random = random.Random(seed)

    async def generate(self, rollout: Rollout) -> None:
        """Continue a response, which may be empty, until it ends or is aborted."""
        response = rollout.response_ids.tolist()
        finish_reason = "abort"
        while self.is_running:
            response += [self._random.randrange(32_000) for _ in range(4)]
            if self._random.random() < 0.04:
                finish_reason = "stop"
                break
            await asyncio.sleep(0)
        rollout.response_ids = response
        rollout.finish_reason = finish_reason
        rollout.status = status_from_finish_reason(finish_reason)


def new_group(prompt: int) -> list[Rollout]:
    return [
        Rollout(group_id=prompt, rollout_id=i, prompt_ids=[1, 2, 3], response_ids=[])
        for i in range(RESPONSES)
    ]


async def next_group(buffer: ReplayBuffer, prompts: itertools.count) -> list[Rollout]:
    """Return what to roll next: aborted groups first, then expired ones, then a new prompt."""
    for status in (Status.ABORTED, Status.EXPIRED):
        if groups := await buffer.get(1, TASK, status):
            return groups[0]
    return new_group(next(prompts))


async def produce(buffer: ReplayBuffer, engine: Engine, prompts: itertools.count) -> None:
    """Roll one group after the other, until the engine aborts."""
    while engine.is_running:
        group = await next_group(buffer, prompts)
        version = engine.version  # read before generating: it is the weights that make the tokens
        unfinished = [rollout for rollout in group if rollout.status is not Status.COMPLETED]
        await asyncio.gather(*(engine.generate(rollout) for rollout in unfinished))
        # Stamps only the tokens that have no version yet; older ones keep theirs.
        await buffer.put(group, TASK, model_step=version)


class Producers:
    """All that is in flight, under one version of the weights."""

    def __init__(self, buffer: ReplayBuffer, engine: Engine) -> None:
        self._buffer, self._engine = buffer, engine
        self._prompts = itertools.count()
        self._running: list[asyncio.Task] = []

    def start(self, version: int) -> None:
        self._engine.version = version
        self._engine.is_running = True
        work = (produce(self._buffer, self._engine, self._prompts) for _ in range(IN_FLIGHT))
        self._running = [asyncio.create_task(producer) for producer in work]

    async def abort(self) -> int:
        """End what is running, and return how many groups are parked unfinished."""
        self._engine.is_running = False
        await asyncio.gather(*self._running)
        return await self._buffer.count(TASK, Status.ABORTED)


def versions_of(rollout: Rollout) -> str:
    runs = Counter(rollout.response_model_steps)
    return " + ".join(f"{tokens} tokens of version {version}" for version, tokens in runs.items())


async def main() -> None:
    buffer = AsyncReplayBufferConfig().build()
    producers = Producers(buffer, Engine(seed=0))
    producers.start(version=0)

    rolled_again = mixed = 0
    for step in range(1, STEPS + 1):
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={TASK: STALE_THRESHOLD}, current_train_step=step
        )
        await buffer.wait_ready({TASK: BATCH})
        rows = {row.uid: row for row in await buffer.query({"task_name": TASK, "status": "completed"})}
        batches, _ = await buffer.take_batch({TASK: BATCH}, wait=True, train_step=step)

        groups = batches[TASK]
        staleness = Counter(max(rollout.seq_staleness for rollout in group) for group in groups)
        several = [r for group in groups for r in group if len(set(r.response_model_steps)) > 1]
        mixed += len(several)
        rolled_again += sum(rows[group[0].group_uid].attempts > 1 for group in groups)
        aborted = await producers.abort()
        print(
            f"step {step}: trained {len(groups)} groups, by staleness {dict(sorted(staleness.items()))}; "
            f"{expired[TASK]} expired before, {aborted} aborted after"
        )
        if several:
            longest = max(several, key=lambda rollout: len(set(rollout.response_model_steps)))
            print(f"        one response: {versions_of(longest)}")
        if step < STEPS:
            producers.start(version=step)

    books = (await buffer.ledger())[TASK]
    print(f"{mixed} trained responses were made by several versions")
    print(f"{rolled_again} trained groups had been put more than once")
    print(
        f"ledger: {books['put'].groups} groups put = {books['consumed'].groups} trained "
        f"+ {books['resident'].groups} here + {books['out'].groups} with producers; "
        f"{books['expired'].tokens} of {books['put'].tokens} tokens expired"
    )


if __name__ == "__main__":
    asyncio.run(main())
