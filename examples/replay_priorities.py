"""Replay: groups are trained several times, half of each batch is fresh, the rest is chosen by priority.

The priority of a group is p(1-p), where p is the share of its responses that solve the prompt: what is always or never
solved teaches nothing. It halves with every HALF_LIFE versions, so that replay stays close to the policy, and is told
anew after training. No group is trained more than MAX_USES times, or with a staleness above MAX_STALENESS. Batches are
leased: one training step fails here, and its groups come back as if it had never been.

    python examples/replay_priorities.py
"""

import asyncio
import math
import random
from collections import Counter

from reroll import Mixture, Prioritized, ReplayBuffer, ReplayBufferConfig, Rollout, Sample, Status

TASK = "math"
STEPS = 16
BATCH, NEW_GROUPS, RESPONSES = 16, 8, 8
MAX_USES, MAX_STALENESS, HALF_LIFE = 4, 5, 2
FAILS_AT = 9  # the first attempt of this step

CONFIG = ReplayBufferConfig(
    sampler=Mixture(NEW_GROUPS / BATCH, replay=Prioritized(beta=0.5, half_life=HALF_LIFE, reuse_decay=0.8)),
    priority_signal="solve_rate",
    max_times_sampled=MAX_USES,
    max_staleness=MAX_STALENESS,  # which also bounds how many groups there are
    on_stale="drop",  # nobody rolls groups again here
    seed=0,
)


class Policy:
    """Stands in for engine and trainer: solves a prompt with a chance that grows with its skill."""

    def __init__(self, seed: int) -> None:
        self.version, self.skill = 0, 0.0
        self._random = random.Random(seed)

    def chance(self, difficulty: float) -> float:
        return 1 / (1 + math.exp(2 * (difficulty - self.skill)))

    def generate(self, prompt: int) -> list[Rollout]:
        difficulty = self._random.uniform(-3, 5)
        chance = self.chance(difficulty)
        return [
            Rollout(
                group_id=prompt,
                response_ids=[7, 8, 9],
                reward=float(self._random.random() < chance),
                status=Status.COMPLETED,
                extra_fields={"difficulty": difficulty},
            )
            for _ in range(RESPONSES)
        ]

    def train(self, samples: list[Sample]) -> None:
        """Learn the most from what is solved every other time; importance weights correct for the choice."""
        for group, info in samples:
            rate = sum(rollout.reward for rollout in group) / len(group)
            self.skill += 0.2 * info.weight * rate * (1 - rate)


async def produce(buffer: ReplayBuffer, policy: Policy, groups: int, step: int) -> None:
    for number in range(groups):
        version = policy.version  # read before generating
        await buffer.put(policy.generate(1000 * step + number), TASK, model_step=version)


async def train(buffer: ReplayBuffer, policy: Policy, step: int, *, fails: bool) -> tuple[list[Sample], int]:
    async with buffer.lease({TASK: BATCH}, wait=True, timeout=30, train_step=step) as batch:
        samples = batch.samples[TASK]
        if fails:
            raise MemoryError("out of memory")  # the lease ends without ack
        policy.train(samples)
        await batch.ack()  # now the uses count
    # What the trainer knows now: how the new policy would fare.
    rates = {info.uid: policy.chance(group[0].extra_fields["difficulty"]) for group, info in samples}
    gone = await buffer.update_priorities({uid: rate * (1 - rate) for uid, rate in rates.items()})
    return samples, len(gone)  # this was their last use


async def main() -> None:
    policy, buffer = Policy(seed=0), CONFIG.build()
    await produce(buffer, policy, BATCH - NEW_GROUPS, 0)  # the first batch can only be fresh
    uses = Counter()
    for step in range(1, STEPS + 1):
        await produce(buffer, policy, NEW_GROUPS, step)
        try:
            samples, last = await train(buffer, policy, step, fails=step == FAILS_AT)
        except MemoryError as error:
            rows = await buffer.query({"task_name": TASK})
            back = sum(row.deliveries > row.times_sampled for row in rows)  # leased more often than used
            print(f"step {step}: {error}; {back} groups came back, and no use was counted; once more")
            samples, last = await train(buffer, policy, step, fails=False)
        policy.version = step
        await buffer.advance(step)

        infos = [sample.info for sample in samples]
        uses.update(info.uid for info in infos)
        replayed = [info for info in infos if info.times_sampled > 1]
        print(
            f"step {step}: {BATCH - len(replayed)} fresh, {len(replayed)} replayed, {last} for the last time; "
            f"staleness {dict(sorted(Counter(info.staleness for info in infos).items()))}; "
            f"skill {policy.skill:.2f}"
        )

    books = (await buffer.ledger())[TASK]
    print(f"groups by uses: {dict(sorted(Counter(uses.values()).items()))}, never more than {MAX_USES}")
    print(
        f"ledger: {books['put'].groups} groups put = {books['consumed'].groups} used {MAX_USES} times "
        f"+ {books['expired'].groups} passed staleness {MAX_STALENESS} + {books['resident'].groups} here"
    )


if __name__ == "__main__":
    asyncio.run(main())
