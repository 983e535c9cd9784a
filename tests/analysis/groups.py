"""Buffers to look at: of several tasks, statuses and places."""

from reroll import Fifo, Prioritized, ReplayBufferConfig, Rollout, TaskConfig

CONFIG = ReplayBufferConfig(
    sampler=Prioritized(),
    remover=Fifo(),
    capacity=100,
    max_times_sampled=2,
    max_uncommitted_steps=8,
    seed=1,
    tasks={"code": TaskConfig(sampler="stalest", max_times_sampled=1)},
)


def group(number, *, members=2, status="completed", **fields):
    return [
        Rollout(
            status=status,
            group_id=f"prompt {number}",
            rollout_id=member,
            prompt_ids=[1, 2, 3],
            response_ids=range(member + number),
            logprobs=[-0.5] * (member + number),
            response="text",
            reward=float(member),
            **fields,
        )
        for member in range(members)
    ]


async def fill(buffer):
    """Put groups of all sorts; return their uids."""
    uids = [
        await buffer.put(group(1), "math", model_step=3, tags={"level": 1, "source": "a"}),
        await buffer.put(group(2), "math", model_step=4, priority=7.5, current_train_step=6),
        await buffer.put(group(3, members=1), "math"),
        await buffer.put(group(4, status="aborted"), "math", model_step=4),
        await buffer.put(group(5, status="aborted"), "math", model_step=5),
        await buffer.put(group(6, status="failed", error_msg="oom"), "code"),
        await buffer.put(group(7), "code", model_step=5),
        await buffer.put(group(8), "code", model_step=5),
    ]
    await buffer.get(1, "math", "aborted")  # is out
    await buffer.get(1, "code", "completed", train_step=7)  # is uncommitted
    await buffer.lease({"code": 1}, train_step=7)
    return uids
