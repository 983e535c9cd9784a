"""Looking into a live buffer: query, peek, patch, stats, metrics, ledger. Nothing here takes a group away.

python examples/inspect_buffer.py
"""

import asyncio
import random

from reroll import AsyncReplayBufferConfig, QueryError, ReplayBuffer, Rollout, Status

TASK = "math"


async def fill(buffer: ReplayBuffer, seed: int) -> None:
    """Put groups of several versions, tagged with their source; a few are unfinished or failed."""
    rng = random.Random(seed)
    for number in range(12):
        version = number // 4
        status = {5: Status.ABORTED, 9: Status.FAILED}.get(number, Status.COMPLETED)
        solved = rng.random()
        group = [
            Rollout(
                group_id=f"prompt-{number}",
                prompt_ids=[1, 2, 3],
                response_ids=[rng.randrange(32_000) for _ in range(rng.randrange(5, 60))],
                reward=float(rng.random() < solved),
                status=status,
            )
            for _ in range(4)
        ]
        source = "gsm8k" if number % 2 else "aime"
        await buffer.put(group, TASK, model_step=version, current_train_step=3, tags={"source": source})


async def main() -> None:
    buffer = AsyncReplayBufferConfig().build()
    await fill(buffer, seed=0)

    print("how many are there of each status?")
    counts = await buffer.count_statuses([TASK], list(Status))
    print("  " + ", ".join(f"{status.value} {count}" for status, count in counts[TASK].items()))

    print("the stalest completed groups from aime, the longest first:")
    where = {"status": "completed", "staleness": {"$gte": 1}, "tags.source": "aime"}
    for row in await buffer.query(where, order_by="-num_tokens", limit=3):
        print(
            f"  uid {row.uid}: {row.num_tokens} tokens, staleness {row.staleness}, reward {row.reward_mean}"
        )

    print("groups without a learning signal, since all rewards are equal:")
    flat = await buffer.query({"status": "completed", "reward_std": 0.0})
    print(f"  uids {[row.uid for row in flat]}")

    print("what is in the failed one?")
    (failed,) = await buffer.query({"status": Status.FAILED})
    (group,) = await buffer.peek([failed.uid])
    print(f"  {failed.group_id}: {group[0]}")

    print("a reward model that answers late:")
    await buffer.patch(1, reward=[1.0, 0.0, 0.0, 0.0], tags={"judged": True})
    (judged,) = await buffer.query({"tags.judged": True})
    print(f"  uid {judged.uid}: mean {judged.reward_mean}, std {judged.reward_std:.3f}")

    print("a question with a mistake:")
    try:
        await buffer.query({"stalenes": 1})
    except QueryError as error:
        print(f"  QueryError: {error}")

    await buffer.take_batch({TASK: 4}, train_step=3)
    print("after one batch of 4, the ledger:")
    for bucket, amount in (await buffer.ledger())[TASK].items():
        if amount.groups or bucket == "put":
            print(
                f"  {bucket}: {amount.groups} groups, {amount.tokens} tokens, trained {amount.trained_groups}"
            )

    print("some of the metrics, a flat dict for W&B or TensorBoard:")
    metrics = await buffer.metrics()
    for name in ("gen/groups", "train/groups", "train/staleness_oldest_mean", "buffer/groups"):
        print(f"  {name} = {metrics[name]:g}")

    stats = await buffer.stats()
    print("and from the stats, for people:")
    print(f"  trained groups by staleness: {stats.tasks[TASK].trained_staleness['oldest'].histogram}")
    print(f"  tokens lost: {sum(stats.total.lost_tokens.values())}; warnings: {stats.warnings}")


if __name__ == "__main__":
    asyncio.run(main())
