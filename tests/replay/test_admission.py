"""StalenessWindow: reserve(), put(reservation=), release() and advance()."""

import asyncio

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
)
from reroll import (
    Closed,
    InvalidArgument,
    InvalidConfig,
    MinSize,
    Queue,
    Reservation,
    StalenessWindow,
    SyncReplayBufferConfig,
    WaitTimeout,
)
from reroll.testing.probe import probe


def windowed(max_staleness=0, batch=2, sync_interval=1, **options):
    return fifo(rate_limiter=StalenessWindow(max_staleness, batch, sync_interval), **options)


async def free(buffer, task=TASK):
    """Return how many groups may start now, by trying, and leave things as they were."""
    held = []
    try:
        while True:
            held.append(await buffer.reserve(1, task, timeout=0))
    except WaitTimeout:
        pass
    for reservation in held:
        await buffer.release(reservation)
    return len(held)


# --- the formula


@pytest.mark.parametrize("sync_interval", [1, 2, 3, 4])
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 3, 4])
async def test_the_window_is_that_of_the_formula(max_staleness, sync_interval):
    if max_staleness < sync_interval - 1:
        with pytest.raises(InvalidConfig, match="max_staleness"):
            StalenessWindow(max_staleness, 2, sync_interval)
        return
    buffer = windowed(max_staleness, 3, sync_interval)
    for done in range(9):
        if done:
            await buffer.advance(done)
        behind = done % sync_interval
        assert await free(buffer) == (max_staleness + 1 - behind) * 3


async def test_a_version_may_be_told():
    buffer = windowed(max_staleness=2, batch=2)
    await buffer.advance(5, version=3)
    assert await free(buffer) == (2 + 1 - 2) * 2
    await buffer.advance(5, version=5)  # the weights arrive later
    assert await free(buffer) == 6
    await buffer.advance(6, version=5)
    assert await free(buffer) == 4
    await buffer.advance(2)  # an older step changes nothing
    assert await free(buffer) == 4


async def test_a_task_that_comes_later_knows_the_step():
    buffer = windowed(max_staleness=2, batch=2)
    await buffer.advance(5, version=4)
    assert await free(buffer, "later") == 4


async def test_what_is_under_way_ready_lent_or_consumed_counts():
    buffer = windowed(max_staleness=3, batch=2)  # 8 groups
    reservation = await buffer.reserve(4, TASK)
    assert await free(buffer) == 4
    for _ in range(3):
        await buffer.put(group(version=0), TASK, reservation=reservation)
    assert await free(buffer) == 4  # one under way, three ready
    await buffer.put(group(version=0, status="aborted"), TASK, reservation=reservation)
    assert await free(buffer) == 4  # aborted ones count as running
    (items,) = await buffer.get(1, TASK, "aborted")
    assert await free(buffer) == 4  # out ones too
    batch = await buffer.lease({TASK: 1})
    assert await free(buffer) == 4
    await batch.ack()
    assert await free(buffer) == 4  # consumed since the last advance
    await buffer.get(1, TASK, "completed")
    assert await free(buffer) == 4
    await buffer.advance(1)
    assert await free(buffer) == 6
    items[0].status = "completed"
    await buffer.put(items, TASK)
    assert await free(buffer) == 6
    await books(buffer)


@pytest.mark.parametrize("status", ["aborted", "expired"])
async def test_groups_lent_to_be_rolled_again_count_too(status):
    buffer = windowed(max_staleness=0, batch=2)
    await buffer.put(group(status=status), TASK)
    before = await free(buffer)
    batch = await buffer.lease({TASK: 1}, group_status=status)
    assert await free(buffer) == 1  # it is lent
    await batch.ack()
    assert await free(buffer) == 1  # it is out
    await buffer.forget([1])
    assert await free(buffer) == 2
    assert before == (1 if status == "aborted" else 2)


@pytest.mark.parametrize("status", ["filtered", "failed"])
async def test_filtered_and_failed_groups_free_their_place(status):
    buffer = windowed()
    reservation = await buffer.reserve(2, TASK)
    waiting = await start(buffer.reserve(1, TASK))
    assert not waiting.done()
    await buffer.put(group(status=status), TASK, reservation=reservation)
    await waiting


async def test_groups_that_expire_free_their_place():
    buffer = windowed()
    reservation = await buffer.reserve(2, TASK)
    waiting = await start(buffer.reserve(1, TASK))
    await buffer.put(group(version=0), TASK, reservation=reservation, current_train_step=9, stale_threshold=1)
    await waiting
    buffer = windowed()
    await fill(buffer, 2, versions=[0, 0])
    waiting = await start(buffer.reserve(2, TASK))
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=9)
    await waiting


async def test_deleted_and_forgotten_groups_free_their_place():
    buffer = windowed()
    uids = await fill(buffer, 1)
    out = await buffer.put(group(status="aborted"), TASK)
    waiting = [await start(buffer.reserve(1, TASK)) for _ in range(2)]
    await buffer.delete(uids)
    await quiet()
    assert [w.done() for w in waiting] == [True, False]
    await buffer.get(1, TASK, "aborted")
    await buffer.forget([out])
    await waiting[1]


async def test_groups_that_stay_out_too_long_free_their_place_and_wake_who_waits():
    buffer = windowed(batch=1, out_ttl_s=0.02)
    await buffer.put(group(status="aborted"), TASK)
    waiting = await start(buffer.reserve(1, TASK))
    await buffer.get(1, TASK, "aborted")  # nobody calls after this
    async with asyncio.timeout(2):  # else for ever
        await waiting


async def test_groups_that_stay_out_too_long_after_an_ack_wake_who_waits():
    buffer = windowed(batch=1, out_ttl_s=0.02)
    await buffer.put(group(status="aborted"), TASK)
    waiting = await start(buffer.reserve(1, TASK))
    async with buffer.lease({TASK: 1}, group_status="aborted") as batch:
        await batch.ack()
    async with asyncio.timeout(2):
        await waiting


async def test_what_comes_back_from_a_lease_too_stale_frees_its_place():
    buffer = windowed()
    await fill(buffer, 2, versions=[0, 0])
    batch = await buffer.lease({TASK: 2})
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=9)
    waiting = await start(buffer.reserve(2, TASK))
    assert not waiting.done()
    await batch.nack()
    await waiting


# --- reserve


async def test_reserve_waits_and_advance_wakes():
    buffer = windowed()
    first = await buffer.reserve(2, TASK)
    assert first == Reservation(first.id, TASK, 2)
    waiting = await start(buffer.reserve(2, TASK))
    for _ in range(2):
        await buffer.put(group(), TASK, reservation=first)
    await buffer.get(2, TASK, "completed")
    await quiet()
    assert not waiting.done()
    await buffer.advance(1)
    assert (await waiting).groups == 2


async def test_reservations_of_one_size_are_granted_in_order():
    buffer = windowed(batch=2)
    held = [await buffer.reserve(1, TASK) for _ in range(2)]
    order = []

    async def reserve(name):
        order.append((name, await buffer.reserve(1, TASK)))

    waiting = [await start(reserve(name)) for name in "ab"]
    assert order == []
    await buffer.put(group(status="failed"), TASK, reservation=held[0])
    await quiet()
    assert [name for name, _ in order] == ["a"]
    await buffer.release(held[1])
    await quiet()
    assert [name for name, _ in order] == ["a", "b"]
    await asyncio.gather(*waiting)


async def test_without_a_window_reserve_is_granted_at_once():
    buffer = fifo()
    reservation = await buffer.reserve(10_000, TASK, timeout=0)
    assert await buffer.release(reservation) == 10_000


@pytest.mark.parametrize("n", [0, -1, 1.5, "1", None, True])
async def test_n_is_a_whole_number_of_at_least_one(n):
    with pytest.raises(InvalidArgument):
        await windowed().reserve(n, TASK)


async def test_more_than_the_window_ever_allows_is_refused_at_once():
    with pytest.raises(InvalidArgument, match="4"):
        await windowed(max_staleness=1, batch=2).reserve(5, TASK)


async def test_a_timeout_or_a_cancelled_reserve_takes_nothing():
    buffer = windowed(batch=1)
    held = await buffer.reserve(1, TASK)
    with pytest.raises(WaitTimeout):
        await buffer.reserve(1, TASK, timeout=0)
    for turns in range(4):
        waiting = await start(buffer.reserve(1, TASK))
        await buffer.release(held)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (end,) = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(end, asyncio.CancelledError):
            await buffer.release(end)
        held = await buffer.reserve(1, TASK, timeout=0)
    await buffer.release(held)
    assert await free(buffer) == 1


async def test_a_cancelled_reserve_lets_the_next_go_on():
    buffer = windowed(batch=1)
    held = await buffer.reserve(1, TASK)
    first, second = [await start(buffer.reserve(1, TASK)) for _ in range(2)]
    await buffer.release(held)  # wakes the first, which is cancelled before it runs
    await cancel(first)
    assert (await second).groups == 1


async def test_close_wakes_a_reserve_that_waits():
    buffer = windowed(batch=1)
    await buffer.reserve(1, TASK)
    waiting = await start(buffer.reserve(1, TASK))
    await buffer.close()
    with pytest.raises(Closed):
        await waiting


async def test_a_reservation_that_waits_for_two_places_does_not_hold_up_one_that_needs_one():
    buffer = windowed(max_staleness=0, batch=2)
    first = await buffer.reserve(2, TASK)
    await buffer.put(group(version=0), TASK, reservation=first)
    await buffer.put(group(version=0, status="filtered"), TASK, reservation=first)
    large = await start(buffer.reserve(2, TASK))  # one place is free
    assert not large.done()
    await buffer.reserve(1, TASK, timeout=0)
    await cancel(large)


# --- the life of a reservation


async def test_each_put_settles_one_group():
    buffer = windowed(max_staleness=1, batch=2)
    reservation = await buffer.reserve(3, TASK)
    assert (await buffer.stats()).reservations == 1
    await buffer.put(group(), TASK, reservation=reservation)
    assert await buffer.release(reservation) == 2
    assert await buffer.release(reservation) == 0
    assert (await buffer.stats()).reservations == 0
    assert await free(buffer) == 3


async def test_a_put_that_is_sent_again_settles_once():
    buffer = windowed(max_staleness=1, batch=2)
    reservation = await buffer.reserve(2, TASK)
    uid = await buffer.put(group(), TASK, reservation=reservation, put_id="x")
    assert await buffer.put(group(), TASK, reservation=reservation, put_id="x") == uid
    assert await buffer.release(reservation) == 1


async def test_a_put_of_a_group_that_is_there_settles_its_place_too():
    buffer = windowed(batch=2)
    await buffer.put(group(), TASK, put_id="a")
    await buffer.put(group(), TASK, put_id="b")
    await buffer.take_batch({TASK: 2}, train_step=1)
    await buffer.advance(1)
    again = await buffer.reserve(2, TASK)  # by who was started anew, and does not know what it has put
    waiting = start(buffer.reserve(1, TASK))
    assert await buffer.put(group(), TASK, put_id="a", reservation=again) == 1
    assert await buffer.put(group(), TASK, put_id="a", reservation=again) == 1, "sent again"
    await waiting
    assert await free(buffer) == 0
    assert await buffer.put(group(), TASK, put_id="b", reservation=again) == 2
    assert await free(buffer) == 1
    assert await buffer.release(again) == 0


async def test_reservations_that_are_over_take_up_no_room():
    buffer = fifo()
    await buffer.reserve(1, TASK, ttl_s=LONG_S)
    for _ in range(1000):
        reservation = await buffer.reserve(1, TASK, ttl_s=2 * LONG_S)
        await buffer.put(group(), TASK, reservation=reservation)
    deadlines = probe(buffer).reservations._deadlines
    assert len(deadlines._heap) < 100
    assert deadlines.next() is not None


async def test_a_dropped_group_settles_its_place():
    buffer = windowed()
    reservation = await buffer.reserve(2, TASK)
    dropped = await buffer.put(
        group(version=0),
        TASK,
        reservation=reservation,
        current_train_step=9,
        stale_threshold=1,
        expired_groups_retryable=False,
    )
    assert dropped is None
    assert await buffer.release(reservation) == 1


async def test_a_put_that_is_refused_settles_nothing():
    buffer = windowed()
    reservation = await buffer.reserve(2, TASK)
    with pytest.raises(InvalidArgument):
        await buffer.put(["no rollout"], TASK, reservation=reservation)
    assert await buffer.put([], TASK, reservation=reservation) is None
    assert await buffer.release(reservation) == 2


async def test_a_reservation_used_up_is_as_none():
    buffer = windowed(capacity=1)
    reservation = await buffer.reserve(1, TASK)
    await buffer.put(group(), TASK, reservation=reservation)
    with pytest.raises(WaitTimeout):
        await buffer.put(group(), TASK, reservation=reservation, timeout=0)


async def test_a_reservation_of_another_task_is_refused_before_anything_changes():
    buffer = windowed()
    reservation = await buffer.reserve(1, "other")
    with pytest.raises(InvalidArgument, match="other"):
        await buffer.put(group(), TASK, reservation=reservation)
    assert len(buffer) == 0
    assert await free(buffer, "other") == 1


@pytest.mark.parametrize("bad", [1, "x", (1, TASK, 1)])
async def test_what_is_no_reservation_is_refused_before_anything_changes(bad):
    buffer = windowed()
    with pytest.raises(InvalidArgument, match="reservation"):
        await buffer.put(group(), TASK, reservation=bad)
    with pytest.raises(InvalidArgument, match="reservation"):
        await buffer.release(bad)
    assert len(buffer) == 0


async def test_the_ttl_gives_a_reservation_back():
    buffer, clock = timed(SyncReplayBufferConfig(rate_limiter=StalenessWindow(0, 2)))
    dead = await buffer.reserve(2, TASK, ttl_s=LONG_S)
    waiting = await start(buffer.reserve(2, TASK))
    clock.advance(2 * LONG_S)
    await buffer.stats()
    alive = await waiting
    assert await buffer.release(dead) == 0
    await buffer.put(group(), TASK, reservation=dead)  # a put after its end is as one without
    assert await buffer.release(alive) == 2


async def test_a_reserve_that_waits_is_woken_by_the_ttl_alone():
    buffer = windowed(batch=1)
    await buffer.reserve(1, TASK, ttl_s=0.02)
    await buffer.reserve(1, TASK, timeout=30)


async def test_the_ttl_counts_from_when_the_reservation_is_granted():
    buffer, clock = timed(SyncReplayBufferConfig(rate_limiter=StalenessWindow(0, 1)))
    held = await buffer.reserve(1, TASK)
    waiting = await start(buffer.reserve(1, TASK, ttl_s=LONG_S))
    clock.advance(2 * LONG_S)
    await buffer.release(held)
    granted = await waiting
    assert await buffer.release(granted) == 1


async def test_close_and_ledger_know_no_reservations():
    buffer = windowed()
    await buffer.reserve(2, TASK)
    ledger = await buffer.ledger()
    assert not any(amount.groups for amounts in ledger.values() for amount in amounts.values())


def test_the_blocking_twin_reserves():
    config = SyncReplayBufferConfig(rate_limiter=StalenessWindow(0, 2))
    buffer = config.build_blocking()
    reservation = buffer.reserve(2, TASK)
    with pytest.raises(WaitTimeout):
        buffer.reserve(1, TASK, timeout=0)
    buffer.put(group(), TASK, reservation=reservation)
    assert buffer.release(reservation) == 1
    buffer.advance(1)
    assert buffer.reserve(1, TASK, timeout=30, ttl_s=0.02).groups == 1


# --- configurations


def test_a_window_with_another_order_warns():
    with pytest.warns(UserWarning, match="window"):
        replay(rate_limiter=StalenessWindow(1, 2), max_times_sampled=1)


@pytest.mark.parametrize(
    "options",
    [
        {"max_staleness": -1},
        {"batch": 0},
        {"sync_interval": 0},
        {"max_staleness": 0, "sync_interval": 2},
    ],
)
def test_a_window_that_lets_nobody_start_is_refused(options):
    with pytest.raises(InvalidConfig):
        StalenessWindow(**{"max_staleness": 1, "batch": 2, **options})


def test_a_window_that_fills_with_groups_that_the_limiter_lets_nobody_sample_is_refused():
    # One sample an insert: two groups, each used once of three times, are all that the window lets be there.
    with pytest.raises(InvalidConfig):
        fifo(rate_limiter=[Queue(2), StalenessWindow(0, 2)], max_times_sampled=3)


def test_a_window_that_never_fills_the_limiters_min_size_is_refused():
    # At most 2 groups are under way, and nobody trains before 4 are there.
    with pytest.raises(InvalidConfig):
        fifo(rate_limiter=[MinSize(4), StalenessWindow(0, 2)])
