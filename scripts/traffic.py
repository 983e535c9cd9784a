"""Engines and a trainer at work on a server: what the pictures of the documentation show.

    python scripts/traffic.py tcp://127.0.0.1:5555

Three tasks with habits of their own: `math` is a queue, `code` is replayed by priority, `chat` has long responses that are
aborted and continued. Numbers are drawn from a seed; how far they get depends on the machine.
"""

import asyncio
import math
import random
import sys
from typing import Any

from reroll import ReplayBufferConfig, Rollout, Status, connect
from reroll.errors import WaitTimeout

CONFIG = ReplayBufferConfig.model_validate(
    {
        "sampler": "stalest",
        "capacity": 160,
        "max_bytes": 60_000_000,
        "seed": 0,
        "tasks": {
            "code": {
                "sampler": {"type": "prioritized", "alpha": 0.7, "beta": 0.4, "half_life": 8},
                "remover": "fifo",
                "capacity": 400,
                "max_times_sampled": 6,
                "priority_signal": "reward_std",
            },
            "chat": {"capacity": 48},
        },
    }
)
GROUP = 8
BATCH = {"math": 24, "code": 24, "chat": 6}
MEDIAN = {"math": 90, "code": 160, "chat": 420}
PACE_S = {"math": 0.04, "code": 0.08, "chat": 0.07}
STALE = {"math": 4, "code": 24, "chat": 5}
SCRIPT = "<script>document.title = 'gone'</script>"


class Weights:
    """What the engines generate with."""

    version = 0


def prompt(task: str, dice: random.Random) -> tuple[str, str]:
    """Return a question and its answer."""
    a, b = dice.randint(12, 98), dice.randint(12, 98)
    if task == "math":
        return f"What is {a} x {b}? Think step by step.", f"{a} x {b} = {a * b}"
    if task == "code":
        return (
            f"Write a function that returns every multiple of {a} below {a * b}.",
            f"def multiples():\n    return list(range(0, {a * b}, {a}))",
        )
    return (
        f"Why does this page show {SCRIPT} as text?",
        "Since whatever comes from outside is text, and never markup.",
    )


class Engine:
    """Generates groups of one task, and continues what was aborted or has expired."""

    def __init__(self, client: Any, task: str, seed: int) -> None:
        self._client = client
        self._task = task
        self._dice = random.Random(seed)

    async def run(self) -> None:
        while True:
            if self._dice.random() < 0.3:
                for status in (Status.ABORTED, Status.EXPIRED):
                    for group in await self._client.get(2, self._task, status):
                        await self._put(group)
            question, answer = prompt(self._task, self._dice)
            skill = self._dice.random()
            group = [
                Rollout(
                    message=question,
                    prompt_ids=list(question.encode()),
                    group_id=f"{self._task}-{self._dice.randint(0, 999)}",
                    response=answer,
                    extra_fields={"skill": skill},
                )
                for _ in range(GROUP)
            ]
            await self._put(group)

    async def _put(self, group: list[Rollout]) -> None:
        for rollout in group:
            if rollout.status is not Status.COMPLETED:  # finished before the others were aborted
                self._generate(rollout)
        await asyncio.sleep(self._dice.expovariate(1 / PACE_S[self._task]))
        await self._client.put(group, self._task, model_step=Weights.version)

    def _generate(self, rollout: Rollout) -> None:
        dice, have = self._dice, [] if rollout.response_ids is None else rollout.response_ids.tolist()
        more = int(dice.lognormvariate(math.log(MEDIAN[self._task]), 0.6))
        rollout.response_ids = have + [dice.randint(0, 50_000) for _ in range(more)]
        total = len(have) + more
        rollout.response_mask = [0 if 20 <= place % 120 < 32 else 1 for place in range(total)]  # a tool spoke
        rollout.logprobs = [-0.5] * total
        is_done = self._task != "chat" or have or dice.random() < 0.93
        rollout.status = Status.COMPLETED if is_done else Status.ABORTED
        rollout.finish_reason = "stop" if is_done else "abort"
        if is_done:
            skill = (rollout.extra_fields or {}).get("skill", 0.5)
            learnt = 1 - math.exp(-Weights.version / 60)
            rollout.reward = float(dice.random() < min(0.97, 0.6 * skill + 0.45 * learnt))


async def train(client: Any) -> None:
    """Take batches of all tasks, train, and renew the weights."""
    dice, step = random.Random(99), 0
    while True:
        step += 1
        await client.refresh_staleness(task_stale_thresholds=STALE, current_train_step=step)
        try:
            async with client.lease(BATCH, wait=True, timeout=4, train_step=step) as lent:
                await asyncio.sleep(dice.uniform(0.5, 0.9))
                await lent.ack()
        except WaitTimeout:
            continue
        Weights.version = step
        if step % 10 == 0:  # its checkpoint is on disk
            await client.commit(step)


async def drive(address: str, for_s: float | None = None) -> None:
    """Let them work for so long."""
    async with connect(address) as engines, connect(address) as trainer:
        work = [
            asyncio.create_task(Engine(engines, task, seed).run())
            for seed, task in enumerate(("math", "math", "code", "chat"))
        ]
        work.append(asyncio.create_task(train(trainer)))
        try:
            done, _ = await asyncio.wait(work, timeout=for_s, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        for task in done:
            task.result()


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1]))
