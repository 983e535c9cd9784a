"""`max_staleness` binds in loops, whatever producers and trainers do in which order."""

import asyncio

import pytest

from replay.buffers import TASK, books, fifo, fill, group, replay
from reroll import (
    AsyncReplayBufferConfig,
    InvalidConfig,
    ReplayBufferConfig,
    Rollout,
    StalenessWindow,
    Status,
    TaskConfig,
)


async def test_the_loop_of_the_readme_with_a_slow_producer_trains_nothing_beyond_the_bound():
    buffer = AsyncReplayBufferConfig(capacity=16, max_staleness=2).build()
    weights, steps = 0, 60
    trained: list[int] = []
    is_trained = [asyncio.Event() for _ in range(steps + 1)]

    async def produce(turns: int) -> None:
        while True:
            old = await buffer.get(1, TASK, Status.EXPIRED)
            version = weights
            rollouts = old[0] if old else [Rollout(prompt_ids=[1, 2, 3]) for _ in range(4)]
            if turns:  # so many steps are trained meanwhile
                await is_trained[min(len(trained) + turns, steps)].wait()
            for rollout in rollouts:
                rollout.response_ids, rollout.reward, rollout.status = [7, 8, 9], 1.0, Status.COMPLETED
            await buffer.put(rollouts, TASK, model_step=version)
            await asyncio.sleep(0)

    producers = [asyncio.create_task(produce(turns)) for turns in (0, 0, 0, 20)]
    for step in range(1, steps + 1):
        # As users do who know of thresholds only: what is put after this, and before the take, was never checked.
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=step)
        for _ in range(5):
            await asyncio.sleep(0)
        batch, _ = await buffer.take_batch({TASK: 4}, wait=True, timeout=60, train_step=step)
        trained.append(max(rollout.seq_staleness for rollouts in batch[TASK] for rollout in rollouts))
        is_trained[step].set()
        weights = step
    for producer in producers:
        producer.cancel()
    await asyncio.gather(*producers, return_exceptions=True)
    assert max(trained) <= 2
    assert (await buffer.stats()).tasks[TASK].stale > 0, "the slow producer was never too late"
    await books(buffer)


async def test_a_put_that_waited_for_room_is_judged_when_it_enters():
    buffer = fifo(capacity=1, max_staleness=1)
    await fill(buffer, 1, versions=[5])
    waiting = asyncio.ensure_future(buffer.put(group(version=0), TASK))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await buffer.get(1, TASK, "completed", train_step=6)
    await waiting
    assert await buffer.count(TASK, "expired") == 1


async def test_a_step_makes_room_for_puts_that_wait():
    buffer = fifo(capacity=2, max_staleness=1)
    await fill(buffer, 2, versions=[0, 0])
    waiting = asyncio.ensure_future(buffer.put(group(version=8), TASK))
    await asyncio.sleep(0)
    await buffer.advance(9)
    await asyncio.wait_for(waiting, 60)
    assert await buffer.count_statuses([TASK], [Status.COMPLETED, Status.EXPIRED]) == {
        TASK: {Status.COMPLETED: 1, Status.EXPIRED: 2}
    }


async def test_a_refresh_counts_and_judges_what_passes_the_bound_by_it():
    buffer = fifo(max_staleness=1)
    await fill(buffer, 3, versions=[0, 3, 8])
    expired = await buffer.refresh_staleness(
        task_stale_thresholds={TASK: 7},
        current_train_step=9,
        expired_groups_retryable_by_task={TASK: False},
    )
    assert expired == {TASK: 2}
    assert (await books(buffer))["expired"].groups == 2


async def test_a_group_under_a_lease_that_hides_nothing_is_dropped_beyond_the_bound():
    buffer = replay(max_staleness=1)
    await fill(buffer, 1, versions=[0])
    batch = await buffer.lease({TASK: 1}, train_step=1)
    await buffer.advance(9)
    assert await buffer.query({}) == []
    await batch.ack()
    found = (await books(buffer))["expired"]
    assert (found.groups, found.trained_groups) == (1, 1)


async def test_a_trained_group_that_is_rolled_again_too_late_is_dropped():
    buffer = replay(max_staleness=3)
    await fill(buffer, 1, versions=[0])
    await buffer.sample(1, TASK, train_step=1)
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=2)
    (again,) = await buffer.get(1, TASK, "expired")
    again[0].response_ids, again[0].status = [1], "completed"
    await buffer.advance(9)
    assert await buffer.put(again, TASK, model_step=1) is None
    assert (await books(buffer))["expired"].groups == 1


async def test_a_leased_group_is_dropped_if_the_bound_or_the_refresh_drops():
    for options, retryable in (({}, False), ({"on_stale": "drop"}, True)):
        buffer = fifo(max_staleness=1, **options)
        await fill(buffer, 1, versions=[0])
        async with buffer.lease({TASK: 1}):
            await buffer.refresh_staleness(
                task_stale_thresholds={TASK: 2},
                current_train_step=9,
                expired_groups_retryable_by_task={TASK: retryable},
            )
        assert (await books(buffer))["expired"].groups == 1


async def test_a_window_takes_its_staleness_from_the_task():
    window = StalenessWindow(batch=2)
    buffer = fifo(max_staleness=1, rate_limiter=window)
    assert (await buffer.reserve(4, TASK, timeout=0)).groups == 4
    with pytest.raises(TimeoutError):
        await buffer.reserve(1, TASK, timeout=0)
    config = ReplayBufferConfig(
        sampler="fifo",
        max_staleness=5,
        tasks={"a": TaskConfig(rate_limiter={"type": "staleness_window", "batch": 1})},
    )
    assert config.for_task("a").window() == StalenessWindow(5, 1)
    assert (
        StalenessWindow(0, 2)
        == ReplayBufferConfig(max_staleness=3, rate_limiter=StalenessWindow(0, 2)).window()
    ), "its own goes first"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rate_limiter": StalenessWindow(batch=2)}, "neither has its task"),
        ({"rate_limiter": {"type": "staleness_window", "batch": 2}}, "neither has its task"),
        (
            {"rate_limiter": StalenessWindow(batch=2, sync_interval=4), "max_staleness": 1},
            "never admits a group",
        ),
        ({"max_staleness": -1}, "max_staleness"),
        ({"max_staleness": 1.5}, "max_staleness"),
        ({"on_stale": "expire"}, "on_stale"),
        ({"max_age": 3}, "max_age"),
    ],
)
def test_bounds_that_cannot_be(options, match):
    with pytest.raises(ValueError, match=match):
        ReplayBufferConfig(sampler="fifo", **options).build()


def test_a_window_needs_its_batch():
    with pytest.raises(InvalidConfig, match="batch"):
        StalenessWindow(2)
