"""A buffer to look at: two tasks, several statuses, text that could be taken for something else."""

from reroll import AsyncReplayBufferConfig, Rollout

CONFIG = AsyncReplayBufferConfig(capacity=100)
HOSTILE = "<script>alert(1)</script> [red]x[/red] \x1b[31mred"


def group(size, *, reward=None, status="completed", **fields):
    return [
        Rollout(
            prompt_ids=[1, 2],
            response_ids=range(10, 10 + size),
            response_mask=[1] * (size - 1) + [0],
            response_model_steps=[0] * (size // 2) + [1] * (size - size // 2),
            reward=float(member) if reward is None else reward,
            status=status,
            message=HOSTILE,
            response="the answer",
            **fields,
        )
        for member in range(2)
    ]


async def fill(buffer, *, count=12):
    """Put groups, of which some fail, expire and are trained."""
    for n in range(count):
        task = "code" if n % 3 == 0 else "math"
        await buffer.put(
            group(n + 2), task, model_step=1, priority=float(n), tags={"n": n}, current_train_step=2
        )
    await buffer.put(group(3, status="failed", error_msg="out of memory"), "math")
    await buffer.take_batch({"math": 2}, train_step=2)
