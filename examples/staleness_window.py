"""Disaggregated training under a staleness window: producers start only what can still be trained in time.

Before a producer spends GPU time on a group it reserves a place for it. The window counts what is under way, what is
ready and what was trained since the last step, and lets nobody start a group that would have to wait longer than
MAX_STALENESS steps. A put settles the reservation; a producer that gives up, or dies, gives its place back.

The same producers without a window run ahead of the trainer: groups grow too stale in the buffer, and their work is
lost.

    python examples/staleness_window.py
"""

import asyncio
import itertools
import random
from collections import Counter

from reroll import ReplayBuffer, Reservation, Rollout, StalenessWindow, Status, SyncReplayBufferConfig

TASK = "math"
STEPS = 12
BATCH = 8
MAX_STALENESS = 2
PRODUCERS = 32  # more than the trainer needs
ROLL_TICKS, TRAIN_TICKS = 40, 30


class Engine:
    """Stands in for an inference engine: knows its version, and takes a while."""

    def __init__(self, seed: int) -> None:
        self.version = 0
        self._random = random.Random(seed)

    async def generate(self, prompt: int) -> list[Rollout]:
        version = self.version  # the first token decides how stale the group will be
        for _ in range(ROLL_TICKS):
            await asyncio.sleep(0)
        chance = self._random.random()
        rewards = [float(self._random.random() < chance) for _ in range(4)]
        # All rewards equal: nothing to learn, and nothing that the trainer should wait for.
        status = Status.COMPLETED if len(set(rewards)) > 1 else Status.FILTERED
        return [
            Rollout(
                group_id=prompt,
                response_ids=[7, 8, 9],
                response_model_steps=[version] * 3,
                reward=r,
                status=status,
            )
            for r in rewards
        ]


async def produce(buffer: ReplayBuffer, engine: Engine, prompts: itertools.count, counts: Counter) -> None:
    """Roll one prompt after the other, each under a reservation."""
    while True:
        reservation: Reservation = await buffer.reserve(1, TASK)
        counts["started"] += 1
        try:
            group = await engine.generate(next(prompts))
            await buffer.put(group, TASK, reservation=reservation)
        finally:  # also when this producer is cancelled in mid-flight; nothing is left to release after a put
            counts["given back"] += await buffer.release(reservation)


async def train(buffer: ReplayBuffer, engine: Engine, producers: list[asyncio.Task]) -> Counter:
    trained = Counter()
    for step in range(1, STEPS + 1):
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={TASK: MAX_STALENESS + 1},
            current_train_step=step,
            expired_groups_retryable_by_task={TASK: False},  # what is too stale is dropped, and counted
        )
        async with buffer.lease({TASK: BATCH}, wait=True, timeout=30, train_step=step) as batch:
            for _ in range(TRAIN_TICKS):  # the optimizer step; producers go on meanwhile
                await asyncio.sleep(0)
            await batch.ack()
        engine.version = step
        await buffer.advance(step)  # version `step` serves from now on, and the window moves
        staleness = Counter(sample.info.staleness for sample in batch.samples[TASK])
        trained.update(staleness)
        print(
            f"  step {step}: groups by staleness {dict(sorted(staleness.items()))}, {expired[TASK]} expired before"
        )
        if step == STEPS // 2:  # some producers die, and their reservations come back
            for producer in producers[: PRODUCERS // 4]:
                producer.cancel()
    return trained


async def run(window: StalenessWindow | None) -> None:
    engine, prompts, counts = Engine(seed=0), itertools.count(), Counter()
    buffer = SyncReplayBufferConfig(rate_limiter=window).build()
    producers = [asyncio.create_task(produce(buffer, engine, prompts, counts)) for _ in range(PRODUCERS)]
    print(f"{window or 'no window'}:")
    trained = await train(buffer, engine, producers)
    for producer in producers:
        producer.cancel()
    await asyncio.gather(*producers, return_exceptions=True)

    books = (await buffer.ledger())[TASK]
    print(f"  trained groups by staleness: {dict(sorted(trained.items()))}, largest {max(trained)}")
    print(f"  {counts['started']} groups started, {counts['given back']} given back by producers that ended")
    print(
        f"  {books['put'].groups} put = {books['consumed'].groups} trained + {books['expired'].groups} expired + "
        f"{books['resident'].groups} here, of which {await buffer.count(TASK, Status.FILTERED)} are filtered"
    )


async def main() -> None:
    await run(StalenessWindow(MAX_STALENESS, batch=BATCH))
    await run(None)


if __name__ == "__main__":
    asyncio.run(main())
