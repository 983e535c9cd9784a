"""The synchronous loop: each step, B prompts x K responses, take exactly B groups, train, next.

Shows `put(model_step=...)`, `take_batch(wait=True, train_step=...)` and a ledger that ends with nothing left over.
Everything is on policy: step t is trained on what the weights of step t - 1 generated, so staleness is 0.

    python examples/sync_loop.py
"""

import asyncio
import random

from reroll import ReplayBuffer, Rollout, Status, SyncReplayBufferConfig

TASK = "math"
STEPS = 4
PROMPTS = 8  # B
RESPONSES = 4  # K


class Engine:
    """Stands in for an inference engine: random tokens, of random length."""

    def __init__(self, seed: int) -> None:
        self.version = 0  # the weights after this training step
        self._random = random.Random(seed)

    async def generate(self, prompt: int) -> Rollout:
        length = 4 + int(self._random.lognormvariate(3, 0.7))
        response = [self._random.randrange(32_000) for _ in range(length)]
        for _ in range(0, length, 8):
            await asyncio.sleep(0)  # others generate meanwhile, so groups finish in any order
        return Rollout(
            group_id=prompt,
            prompt_ids=[1, 2, 3],
            response_ids=response,
            logprobs=[-0.5] * length,
            reward=float(self._random.random() < 0.5),
            status=Status.COMPLETED,
            finish_reason="stop",
        )


async def roll_prompt(buffer: ReplayBuffer, engine: Engine, prompt: int) -> None:
    version = engine.version  # read before generating
    group = await asyncio.gather(*(engine.generate(prompt) for _ in range(RESPONSES)))
    await buffer.put(group, TASK, model_step=version)


async def main() -> None:
    engine = Engine(seed=0)
    buffer = SyncReplayBufferConfig().build()
    for step in range(1, STEPS + 1):
        async with asyncio.TaskGroup() as producers:
            for prompt in range(PROMPTS):
                producers.create_task(roll_prompt(buffer, engine, (step - 1) * PROMPTS + prompt))
            batches, _ = await buffer.take_batch({TASK: PROMPTS}, wait=True, train_step=step)
        rollouts = [rollout for group in batches[TASK] for rollout in group]
        rewards = [rollout.reward for rollout in rollouts]
        print(
            f"step {step}: trained {len(batches[TASK])} groups of {RESPONSES}, "
            f"{sum(rollout.num_tokens for rollout in rollouts)} tokens, "
            f"mean reward {sum(rewards) / len(rewards):.2f}, "
            f"staleness {max(rollout.seq_staleness for rollout in rollouts)}"
        )
        engine.version = step  # the optimizer step is done, and the engine has the new weights

    books = (await buffer.ledger())[TASK]
    print(
        f"ledger: {books['put'].groups} groups put, {books['consumed'].groups} trained, {len(buffer)} left over"
    )


if __name__ == "__main__":
    asyncio.run(main())
