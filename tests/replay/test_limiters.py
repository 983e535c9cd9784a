"""Rate limiters in the buffer: what counts as insert and sample, what is refunded, and who never waits."""

import pytest

from replay.buffers import (
    LONG_S,
    TASK,
    books,
    cancel,
    fifo,
    fill,
    group,
    quiet,
    replay,
    start,
    timed,
    uids_of,
)
from reroll import (
    InvalidArgument,
    InvalidConfig,
    MinSize,
    Queue,
    ReplayBufferConfig,
    SampleToInsertRatio,
    SyncReplayBufferConfig,
    Unlimited,
    WaitTimeout,
)
from reroll.testing.probe import probe

WIDE = SampleToInsertRatio(1.0, 1, (-1e9, 1e9))  # counts, and never blocks


def counted(buffer, task=TASK):
    counters = probe(buffer).engine.task(task).counters
    return counters.inserts, counters.samples, counters.deletes


async def can_put(buffer, task=TASK):
    """Return whether a COMPLETED group may be put now, by trying."""
    try:
        await buffer.put(group(), task, timeout=0)
    except WaitTimeout:
        return False
    return True


# --- what counts


async def test_inserts_are_groups_that_became_completed():
    buffer = fifo()
    for status in ("aborted", "init", "failed", "filtered", "expired"):
        await buffer.put(group(status=status), TASK)
    assert counted(buffer) == (0, 0, 0)
    await fill(buffer, 2)
    assert counted(buffer) == (2, 0, 0)
    (items,) = await buffer.get(1, TASK, "aborted")
    items[0].status = "completed"
    await buffer.put(items, TASK)
    assert counted(buffer) == (3, 0, 0)


async def test_samples_are_completed_groups_handed_to_trainers():
    buffer = replay(rate_limiter=WIDE, max_times_sampled=2)
    await fill(buffer, 4)
    await buffer.put(group(status="aborted"), TASK)
    await buffer.sample(2, TASK)
    assert counted(buffer) == (4, 2, 0)
    await buffer.get(1, TASK, "aborted")
    assert counted(buffer) == (4, 2, 0)
    await buffer.get(1, TASK, "completed")
    assert counted(buffer) == (4, 3, 1)
    async with buffer.lease({TASK: 1}) as batch:
        assert counted(buffer)[1] == 4
        await batch.ack()
    assert counted(buffer)[1] == 4


async def test_samples_are_refunded_on_nack_and_ttl():
    buffer, clock = timed(SyncReplayBufferConfig(rate_limiter=WIDE))
    await fill(buffer, 2)
    async with buffer.lease({TASK: 2}):
        assert counted(buffer) == (2, 2, 0)
    assert counted(buffer) == (2, 0, 0)
    await buffer.lease({TASK: 1}, ttl_s=LONG_S)
    clock.advance(2 * LONG_S)
    await buffer.stats()
    assert counted(buffer) == (2, 0, 0)


@pytest.mark.parametrize("retryable", [True, False])
async def test_inserts_are_refunded_when_a_group_expires_never_sampled(retryable):
    buffer = replay(rate_limiter=WIDE, max_times_sampled=3)
    await fill(buffer, 3, versions=[0, 0, 9])
    used = (await buffer.sample(1, TASK))[0].info.uid
    await buffer.refresh_staleness(
        task_stale_thresholds={TASK: 1},
        current_train_step=10,
        expired_groups_retryable_by_task={TASK: retryable},
    )
    expected = (2, 1, 1) if used != 3 else (1, 1, 0)
    assert counted(buffer) == expected


async def test_inserts_are_refunded_when_a_group_is_deleted_never_sampled():
    buffer = replay(rate_limiter=WIDE, max_times_sampled=3, sampler="least_used")
    uids = await fill(buffer, 3)
    await buffer.sample(1, TASK)
    await buffer.delete(uids)
    assert counted(buffer) == (1, 1, 1)


async def test_inserts_are_refunded_when_a_group_passes_the_bound():
    buffer = replay(max_staleness=1)
    await fill(buffer, 2, versions=[0, 0])
    await buffer.advance(9)
    assert counted(buffer) == (0, 0, 0)


async def test_what_comes_back_too_stale_is_refunded_as_if_never_there():
    buffer = fifo(rate_limiter=WIDE)
    await fill(buffer, 1, versions=[0])
    async with buffer.lease({TASK: 1}):
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=9)
    assert counted(buffer) == (0, 0, 0)


async def test_an_evicted_group_is_not_refunded():
    buffer = replay(capacity=2, remover="fifo")
    await fill(buffer, 5)
    assert counted(buffer) == (5, 0, 3)


async def test_a_group_that_expires_at_put_never_was_an_insert():
    buffer = fifo(rate_limiter=Queue(1))
    await fill(buffer, 1)
    for retryable in (True, False):
        await buffer.put(
            group(version=0),
            TASK,
            current_train_step=9,
            stale_threshold=1,
            expired_groups_retryable=retryable,
            timeout=0,
        )
    assert counted(buffer) == (1, 0, 0)


# --- who waits


async def test_a_queue_of_two():
    buffer = fifo(rate_limiter=Queue(2))
    await fill(buffer, 2)
    waiting = [await start(buffer.put(group(), TASK)) for _ in range(2)]
    assert not any(put.done() for put in waiting)
    await buffer.get(1, TASK, "completed")
    await quiet()
    assert [put.done() for put in waiting] == [True, False]
    async with buffer.lease({TASK: 2}):
        await quiet()
        assert waiting[1].done()  # a sample counts when it is handed out
        await quiet()
    assert len(buffer) == 3
    assert not await can_put(buffer)


async def test_refunds_make_room_for_inserts():
    buffer = fifo(rate_limiter=Queue(2))
    uids = await fill(buffer, 2, versions=[0, 5])
    waiting = await start(buffer.put(group(version=9), TASK))
    await buffer.delete(uids[:1])
    await quiet()
    assert waiting.done()
    waiting = await start(buffer.put(group(version=9), TASK))
    assert not waiting.done()
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 2}, current_train_step=10)
    await quiet()
    assert waiting.done()


@pytest.mark.parametrize("limit", [{"rate_limiter": Queue(1)}, {"capacity": 1}])
@pytest.mark.parametrize("status", ["aborted", "init", "failed", "filtered", "expired"])
async def test_other_statuses_never_wait(limit, status):
    buffer = fifo(**limit)
    await fill(buffer, 1)
    await buffer.put(group(status=status), TASK, timeout=0)
    waiting = await start(buffer.put(group(), TASK))  # a COMPLETED one waits in line
    assert not waiting.done()
    await buffer.put(group(status=status), TASK, timeout=0)  # and is passed
    assert await buffer.count(TASK, status) == 2
    await cancel(waiting)


@pytest.mark.parametrize("limit", [{"rate_limiter": Queue(1)}, {"capacity": 1}])
async def test_puts_with_a_reservation_never_wait(limit):
    buffer = fifo(**limit)
    await fill(buffer, 1)
    reservation = await buffer.reserve(3, TASK)
    await buffer.put(group(), TASK, reservation=reservation, timeout=0)
    waiting = await start(buffer.put(group(), TASK))
    assert not waiting.done()
    await buffer.put(group(), TASK, reservation=reservation, timeout=0)
    await cancel(waiting)
    assert await buffer.count(TASK, "completed") == 3
    await books(buffer)


async def test_tasks_have_limiters_of_their_own():
    buffer = fifo(rate_limiter=Queue(1), tasks={"b": {"rate_limiter": Queue(3)}})
    await fill(buffer, 1, "a")
    assert not await can_put(buffer, "a")
    await fill(buffer, 3, "b")
    assert not await can_put(buffer, "b")
    await buffer.get(1, "b", "completed")
    assert not await can_put(buffer, "a")
    assert await can_put(buffer, "b")


async def test_get_and_take_see_a_closed_limiter_as_empty():
    buffer = fifo(rate_limiter=MinSize(3))
    await fill(buffer, 2)
    assert await buffer.get(2, TASK, "completed") == []
    assert await buffer.take_batch({TASK: 2}) == ({TASK: []}, {TASK: 0})
    assert not await buffer.is_ready({TASK: 1})
    assert await buffer.sample(2, TASK, allow_short=True) == []
    assert await buffer.count(TASK, "completed") == 2
    with pytest.raises(WaitTimeout):
        await buffer.take_batch({TASK: 1}, wait=True, timeout=0)
    await fill(buffer, 1)
    assert len(await buffer.get(2, TASK, "completed")) == 2


async def test_get_gives_as_many_as_the_limiter_allows():
    buffer = replay(rate_limiter=SampleToInsertRatio(1.0, 1, (0.0, 4.0)))
    await fill(buffer, 3)
    await buffer.sample(1, TASK)
    assert len(await buffer.get(3, TASK, "completed")) == 2
    assert await buffer.get(3, TASK, "completed") == []


async def test_a_ratio_holds_samples_and_inserts_to_each_other():
    buffer = replay(rate_limiter=SampleToInsertRatio(2.0, 1, 2.0))  # 0 to 4
    await fill(buffer, 2)
    assert not await can_put(buffer)
    for _ in range(4):
        await buffer.sample(1, TASK, timeout=0)
    with pytest.raises(WaitTimeout):
        await buffer.sample(1, TASK, timeout=0)
    waiting = await start(buffer.sample(1, TASK))
    await fill(buffer, 1)
    await waiting


async def test_other_statuses_are_taken_whatever_the_limiter_says():
    buffer = fifo(rate_limiter=MinSize(10))
    await buffer.put(group(status="aborted"), TASK)
    assert len(await buffer.get(1, TASK, "aborted")) == 1


async def test_a_nack_lets_others_sample_again():
    buffer = fifo(rate_limiter=Queue(2))
    uids = await fill(buffer, 2)
    batch = await buffer.lease({TASK: 2})
    waiting = await start(buffer.take_batch({TASK: 2}, wait=True))
    await batch.nack()
    assert uids_of((await waiting)[0][TASK]) == uids


# --- changed at run time


async def test_another_limiter_wakes_puts_that_wait():
    buffer = fifo(rate_limiter=Queue(1))
    await fill(buffer, 1)
    waiting = [await start(buffer.put(group(), TASK)) for _ in range(3)]
    await buffer.set_rate_limiter(TASK, Queue(3))
    await quiet()
    assert [put.done() for put in waiting] == [True, True, False]
    await buffer.set_rate_limiter(TASK, Unlimited())
    await quiet()
    assert waiting[2].done()


async def test_another_limiter_wakes_samples_that_wait():
    buffer = fifo(rate_limiter=MinSize(5))
    await fill(buffer, 2)
    taking = await start(buffer.take_batch({TASK: 1}, wait=True))
    sampling = await start(buffer.sample(1, TASK))
    ready = await start(buffer.wait_ready({TASK: 1}))
    assert not taking.done()
    await buffer.set_rate_limiter(TASK, {"type": "min_size", "min_size": 1})
    await taking
    await sampling
    assert len(buffer) == 0
    await cancel(ready)


async def test_another_limiter_keeps_the_counters_and_other_tasks():
    buffer = fifo(rate_limiter=Queue(2))
    await fill(buffer, 2)
    await buffer.set_rate_limiter(TASK, Queue(1))
    await buffer.get(1, TASK, "completed")
    assert not await can_put(buffer)
    await fill(buffer, 2, "other")
    assert not await can_put(buffer, "other")


async def test_a_limiter_that_can_never_proceed_is_refused_and_changes_nothing():
    buffer = fifo(capacity=2, rate_limiter=Queue(2))
    with pytest.raises(InvalidConfig):
        await buffer.set_rate_limiter(TASK, MinSize(3))
    with pytest.raises(InvalidArgument):
        await buffer.set_rate_limiter(TASK, "no such thing")
    await fill(buffer, 2)
    assert not await can_put(buffer)


async def test_a_limiter_and_a_window_are_given_as_a_list():
    limits = [{"type": "queue", "size": 1}, {"type": "staleness_window", "max_staleness": 0, "batch": 2}]
    buffer = ReplayBufferConfig(sampler="fifo", rate_limiter=limits).build()
    await fill(buffer, 1)
    assert not await can_put(buffer)
    await buffer.reserve(1, TASK, timeout=0)
    with pytest.raises(WaitTimeout):
        await buffer.reserve(1, TASK, timeout=0)


# --- groups that leave before they have given the samples of a ratio


@pytest.mark.parametrize("leave", ["get", "delete", "expire"])
async def test_a_ratio_does_not_wait_for_samples_of_groups_that_left(leave):
    buffer = ReplayBufferConfig(
        max_times_sampled=3, rate_limiter=SampleToInsertRatio(3.0, 1, 6.0), seed=1
    ).build()
    for round_ in range(1, 30):
        uid = await buffer.put(group(version=round_), TASK, timeout=0)
        await buffer.sample(1, TASK, timeout=0)
        if leave == "get":
            await buffer.get(1, TASK, "completed")
        elif leave == "delete":
            await buffer.delete([uid])
        else:
            await buffer.refresh_staleness(
                task_stale_thresholds={TASK: 1},
                current_train_step=round_ + 2,
                expired_groups_retryable_by_task={TASK: False},
            )
    waiting = await start(buffer.take_batch({TASK: 3}, wait=True, timeout=LONG_S))
    for _ in range(3):
        await buffer.put(group(version=40), TASK, timeout=0)
    groups, _ = await waiting
    assert len(groups[TASK]) == 3


async def test_more_than_min_size_is_refused_where_evictions_leave_a_ratio_unreached():
    buffer = ReplayBufferConfig(
        capacity=4,
        remover="fifo",
        max_times_sampled=2,
        rate_limiter=SampleToInsertRatio(2.0, 2, 4.0),
    ).build()
    with pytest.raises(InvalidArgument, match="at most 2"):
        await buffer.take_batch({TASK: 3}, wait=True, timeout=0)
    with pytest.raises(InvalidArgument, match="at most 2"):
        await buffer.sample(3, TASK, timeout=0)
    with pytest.raises(WaitTimeout):
        await buffer.take_batch({TASK: 2}, wait=True, timeout=0)
