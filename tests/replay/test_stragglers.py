"""Stragglers under a StalenessWindow: running groups that would pass the bound expire, are waited for, or are resumed."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.buffers import LONG_S, TASK, books, group, timed
from reroll import (
    AsyncReplayBufferConfig,
    InvalidConfig,
    ReplayBufferConfig,
    StalenessWindow,
    SyncReplayBufferConfig,
    WaitTimeout,
)
from reroll.simulate import loop


def waiting(ahead=1, batch=2, **options):
    return AsyncReplayBufferConfig(rate_limiter=StalenessWindow(ahead, batch, stragglers="wait"), **options)


async def quiet():
    for _ in range(20):
        await asyncio.sleep(0)


async def start(call):
    started = asyncio.ensure_future(call)
    await quiet()
    return started


async def train(buffer, step, n=2):
    """Train a batch and return its staleness."""
    async with buffer.lease({TASK: n}, wait=True, timeout=0, train_step=step) as batch:
        found = [sample.info.staleness for sample in batch.samples[TASK]]
        await batch.ack()
    await buffer.advance(step)
    return found


async def test_a_trainer_waits_for_a_running_group_that_is_due():
    buffer = waiting().build()
    late = await buffer.reserve(1, TASK)
    others = await buffer.reserve(3, TASK)
    for _ in range(3):
        await buffer.put(group(version=0), TASK, reservation=others)
    assert await train(buffer, 1) == [0, 0]  # it is due in the step after
    more = await buffer.reserve(2, TASK)
    for _ in range(2):
        await buffer.put(group(version=1), TASK, reservation=more)
    taker = await start(buffer.take_batch({TASK: 2}, wait=True, train_step=2))
    assert not taker.done()
    assert not await buffer.is_ready({TASK: 2})
    assert await buffer.is_ready({TASK: 1})  # one place of the batch is kept for it
    await buffer.put(group(version=0), TASK, reservation=late)
    groups, _ = await taker
    assert [one[0].seq_staleness for one in groups[TASK]] == [1, 1]
    await books(buffer)


async def test_a_batch_may_be_taken_in_parts_while_a_group_is_due():
    buffer = waiting(0, 4).build()
    late, others = await buffer.reserve(1, TASK), await buffer.reserve(3, TASK)
    for _ in range(3):
        await buffer.put(group(version=0), TASK, reservation=others)
    await buffer.take_batch({TASK: 2}, wait=True, timeout=0)
    await buffer.take_batch({TASK: 1}, wait=True, timeout=0)
    with pytest.raises(WaitTimeout, match="At most 0 groups may be trained before running ones"):
        await buffer.take_batch({TASK: 1}, wait=True, timeout=0)
    await buffer.put(group(version=0), TASK, reservation=late)
    await buffer.take_batch({TASK: 1}, wait=True, timeout=0)


@pytest.mark.parametrize("end", ["release", "ttl", "filtered"])
async def test_a_due_group_that_ends_lets_the_trainer_go_on(end):
    buffer, clock = timed(waiting(0, 2))
    late = await buffer.reserve(1, TASK, ttl_s=LONG_S)
    other = await buffer.reserve(1, TASK)
    await buffer.put(group(version=0), TASK, reservation=other)
    await buffer.put(group(version=0), TASK)
    taker = await start(buffer.take_batch({TASK: 2}, wait=True))
    assert not taker.done()
    if end == "release":
        await buffer.release(late)
    elif end == "ttl":
        clock.advance(2 * LONG_S)
        await buffer.stats()
    else:
        await buffer.put(group(version=0, status="filtered"), TASK, reservation=late)
    await asyncio.wait_for(taker, 5)


async def test_aborted_groups_are_waited_for_wherever_they_are():
    buffer = waiting(0, 2, capacity=2).build()
    await buffer.put(group(version=0, status="aborted"), TASK)
    for _ in range(2):
        await buffer.put(group(version=0), TASK)
    taker = await start(buffer.take_batch({TASK: 2}, wait=True))
    assert not taker.done()
    (items,) = await buffer.get(1, TASK, "aborted")
    await quiet()
    assert not taker.done()
    items[0].status = "completed"
    await buffer.put(items, TASK, timeout=0)  # it is waited for, so it does not wait for room
    await taker


async def test_what_runs_is_known_after_a_restart(tmp_path):
    config = waiting(0, 2, store=tmp_path)
    buffer = config.build()
    await buffer.put(group(version=0, status="aborted"), TASK)
    await buffer.put(group(version=0), TASK)
    await buffer.get(1, TASK, "aborted")
    await buffer.close()
    buffer = config.build()
    assert not await buffer.is_ready({TASK: 2})
    await buffer.put(group(version=0), TASK)
    assert not await buffer.is_ready({TASK: 2})
    (items,) = await buffer.get(1, TASK, "aborted")
    await buffer.forget([items[0].group_uid])
    assert await buffer.is_ready({TASK: 2})
    await buffer.close()


async def test_a_group_that_is_overdue_is_not_waited_for():
    buffer = waiting(0, 1).build()
    late = await buffer.reserve(1, TASK)
    await buffer.advance(1)  # a trainer that did not wait
    assert await buffer.wait_overdue(late, timeout=0) == "cancel"
    await buffer.put(group(version=1), TASK)
    assert await train(buffer, 2, 1) == [0]


@pytest.mark.parametrize("stragglers", ["expire", "resume"])
async def test_without_wait_the_trainer_goes_on(stragglers):
    window = StalenessWindow(0, 1, stragglers=stragglers)
    buffer = AsyncReplayBufferConfig(rate_limiter=window).build()
    await buffer.reserve(1, TASK)
    await buffer.put(group(version=0), TASK)
    assert await train(buffer, 1, 1) == [0]


async def test_without_a_window_nothing_is_overdue():
    buffer = SyncReplayBufferConfig().build()
    reservation = await buffer.reserve(1, TASK)
    await buffer.advance(99)
    with pytest.raises(WaitTimeout, match="until step inf"):
        await buffer.wait_overdue(reservation, timeout=0)


async def test_many_waits_for_overdue_groups_end_together_and_can_be_cancelled():
    buffer = AsyncReplayBufferConfig(rate_limiter=StalenessWindow(0, 8)).build()
    held = [await buffer.reserve(1, TASK) for _ in range(8)]
    calls = [await start(buffer.wait_overdue(one)) for one in held]
    calls[0].cancel()
    await buffer.release(held[1])
    await buffer.advance(1)
    assert await asyncio.gather(*calls[1:]) == [None, *["cancel"] * 6]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StalenessWindow(1, 2, stragglers="hurry"), "stragglers must be expire, wait or resume"),
        (
            lambda: SyncReplayBufferConfig(rate_limiter=StalenessWindow(1, 2, stragglers="wait")).build(),
            "stalest",
        ),
        (lambda: waiting(max_times_sampled=2).build(), "max_times_sampled=1"),
        (
            lambda: AsyncReplayBufferConfig(
                max_staleness=1, rate_limiter=StalenessWindow(batch=2, stragglers="resume")
            ).build(),
            "max_staleness=1 of the task expires them",
        ),
    ],
)
def test_a_window_that_cannot_keep_its_promise_is_refused(build, message):
    with pytest.raises(InvalidConfig, match=message):
        build()


def test_a_file_names_what_happens_to_stragglers():
    window = {"type": "staleness_window", "max_staleness": 1, "batch": 2, "stragglers": "wait"}
    config = ReplayBufferConfig.model_validate({"sampler": "stalest", "rate_limiter": window})
    assert config.window() == StalenessWindow(1, 2, stragglers="wait")
    assert ReplayBufferConfig.model_validate(config.model_dump(mode="json")).window() == config.window()


@settings(max_examples=40, deadline=None)
@given(
    ahead=st.sampled_from([0, 0.5, 1, 1.25, 2, 3]),
    sync_interval=st.integers(1, 3),
    batch=st.integers(1, 4),
    seconds=st.lists(st.floats(0.01, 30), min_size=8, max_size=60),
    aborts=st.sets(st.integers(0, 60)),
)
def test_no_group_passes_the_bound_however_long_it_runs(ahead, sync_interval, batch, seconds, aborts):
    """Producers with any durations, some of which abort and continue; a trainer that takes one second a step."""
    ahead = max(ahead, sync_interval - 1)
    window = StalenessWindow(ahead, batch, sync_interval, stragglers="wait")
    trained = []

    async def roll(buffer, number, reservation, versions):
        version = versions[-1]
        await asyncio.sleep(seconds[number % len(seconds)])
        status = "aborted" if number in aborts else "completed"
        await buffer.put(group(version=version, status=status), TASK, reservation=reservation)

    async def roll_again(buffer):
        while True:
            taken, _ = await buffer.take_batch({TASK: 1}, group_status="aborted", wait=True)
            await asyncio.sleep(1.5)
            taken[TASK][0][0].status = "completed"
            await buffer.put(taken[TASK][0], TASK)

    async def run():
        buffer, versions, rolling = AsyncReplayBufferConfig(rate_limiter=window).build(), [0], set()

        async def produce():
            for number in itertools.count():
                reservation = await buffer.reserve(1, TASK)
                task = asyncio.ensure_future(roll(buffer, number, reservation, versions))
                rolling.add(task)
                task.add_done_callback(rolling.discard)

        helpers = [asyncio.ensure_future(produce()), asyncio.ensure_future(roll_again(buffer))]
        for step in range(1, 13):
            async with buffer.lease({TASK: batch}, wait=True, train_step=step) as lent:
                trained.extend(sample.info.staleness for sample in lent.samples[TASK])
                await asyncio.sleep(1)
                await lent.ack()
            if step % sync_interval == 0:
                versions.append(step)
            await buffer.advance(step)
        for task in (*helpers, *rolling):
            task.cancel()
        await books(buffer)
        await buffer.close()

    loop.run(run())
    assert len(trained) == 12 * batch
    assert max(trained) <= window.bound
