"""lease(): groups are consumed when the holder says so, else they come back as if they had never been away."""

import asyncio
import threading
from collections import Counter

import pytest

from replay.buffers import (
    LONG_S,
    TASK,
    books,
    cancel,
    fifo,
    fill,
    group,
    in_order,
    quiet,
    replay,
    row_of,
    rows,
    start,
    timed,
    uids_of,
)
from reroll import (
    Closed,
    InvalidArgument,
    LeaseExpired,
    MinSize,
    ReplayBufferConfig,
    Status,
    SyncReplayBufferConfig,
    WaitTimeout,
)


async def give_back(buffer, batch, clock, how):
    """End a lease in one of the ways that are no acknowledgement."""
    if how == "nack":
        await batch.nack()
    elif how == "ttl":
        clock.advance(2 * LONG_S)
        await buffer.stats()  # any call notices that time has passed
    else:
        raise AssertionError(how)


ENDS = ["nack", "ttl"]

# --- the life of a lease


async def test_ack_consumes():
    buffer = fifo()
    uids = await fill(buffer, 3)
    async with buffer.lease({TASK: 2}, train_step=1) as batch:
        assert uids_of(batch.groups[TASK]) == uids[:2]
        assert batch.counts == {TASK: 2}
        assert [sample.info.uid for sample in batch.samples[TASK]] == uids[:2]
        assert (await books(buffer))["leased"][:3] == (2, 8, 0)
        await batch.ack()
        ledger = await books(buffer)
        assert (ledger["leased"].groups, ledger["consumed"]) == (0, (2, 8, 2, 8))
    assert (await books(buffer))["consumed"].groups == 2
    assert await in_order(buffer) == uids[2:]


async def test_leaving_the_context_without_ack_gives_back():
    buffer = fifo()
    uids = await fill(buffer, 3)
    async with buffer.lease({TASK: 2}):
        pass
    ledger = await books(buffer)
    assert (ledger["leased"].groups, ledger["consumed"].groups, ledger["resident"][2:]) == (0, 0, (0, 0))
    assert await in_order(buffer) == uids


async def test_an_exception_gives_back():
    buffer = fifo()
    uids = await fill(buffer, 3)
    with pytest.raises(ZeroDivisionError):
        async with buffer.lease({TASK: 2}):
            raise ZeroDivisionError
    assert await in_order(buffer) == uids


async def test_cancelling_the_holder_gives_back():
    buffer = fifo()
    uids = await fill(buffer, 3)

    async def hold():
        async with buffer.lease({TASK: 2}):
            await asyncio.Event().wait()

    holder = await start(hold())
    assert len(buffer) == 1
    await cancel(holder)
    assert await in_order(buffer) == uids


async def test_after_await_it_is_the_holder_who_ends_it():
    buffer = fifo()
    uids = await fill(buffer, 2)
    batch = await buffer.lease({TASK: 1})
    assert len(buffer) == 1
    await batch.nack()
    await batch.nack()  # once more is no error
    batch = await buffer.lease({TASK: 1})
    await batch.ack()
    await batch.ack()  # the same
    await batch.nack()  # too late: it is consumed
    assert await in_order(buffer) == uids[1:]


async def test_a_lease_that_was_not_taken_tells_how_to():
    buffer = fifo()
    await fill(buffer, 2)
    for name in ("groups", "ack"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; .*`await buffer.lease"):
            getattr(buffer.lease({TASK: 1}), name)
    with pytest.raises(AttributeError, match=r"no attribute 'grops'$"):
        _ = buffer.lease({TASK: 1}).grops
    blocking = ReplayBufferConfig().build_blocking()
    with pytest.raises(AttributeError, match=r"`with buffer.lease\(...\) as batch`"):
        _ = blocking.lease({TASK: 1}).groups
    assert repr(blocking.lease({TASK: 1}).take()) == f"BlockingBatch(id=1, counts={{'{TASK}': 0}})"
    assert repr(await buffer.lease({TASK: 1})) == f"Batch(id=1, counts={{'{TASK}': 1}})"


async def test_ack_after_nack_is_refused():
    buffer = fifo()
    await fill(buffer, 1)
    batch = await buffer.lease({TASK: 1})
    await batch.nack()
    with pytest.raises(InvalidArgument):
        await batch.ack()
    assert (await books(buffer))["resident"].groups == 1


async def test_a_ttl_that_ends_gives_back_and_wakes_who_waits():
    buffer, clock = timed(SyncReplayBufferConfig())
    uids = await fill(buffer, 2)
    await buffer.lease({TASK: 2}, ttl_s=LONG_S)
    waiting = await start(buffer.take_batch({TASK: 2}, wait=True))
    clock.advance(LONG_S / 2)
    await buffer.stats()
    await quiet()
    assert not waiting.done()
    clock.advance(LONG_S)
    await buffer.stats()
    groups, _ = await waiting
    assert uids_of(groups[TASK]) == uids


async def test_a_waiter_is_woken_by_the_ttl_alone():
    buffer = fifo()
    uids = await fill(buffer, 1)
    waiting = await start(buffer.take_batch({TASK: 1}, wait=True, timeout=30))
    assert uids_of((await waiting)[0][TASK]) == uids
    (uid,) = await fill(buffer, 1)
    await buffer.lease({TASK: 1}, ttl_s=0.02)
    groups, _ = await buffer.take_batch({TASK: 1}, wait=True, timeout=30)
    assert uids_of(groups[TASK]) == [uid]


async def test_a_waiter_that_slept_before_the_lease_is_woken_by_its_ttl():
    buffer = fifo()
    (uid,) = await fill(buffer, 1)
    waiting = await start(buffer.take_batch({TASK: 2}, wait=True, timeout=30))
    await buffer.lease({TASK: 1}, ttl_s=0.02)
    (other,) = await fill(buffer, 1)
    assert uids_of((await waiting)[0][TASK]) == [uid, other]


async def test_the_ttl_counts_from_when_the_groups_are_lent():
    buffer, clock = timed(SyncReplayBufferConfig())
    waiting = await start(buffer.lease({TASK: 1}, wait=True, ttl_s=LONG_S)._take())
    clock.advance(2 * LONG_S)
    await fill(buffer, 1)
    batch = await waiting
    assert (await books(buffer))["leased"].groups == 1
    await batch.ack()
    assert (await books(buffer))["consumed"].groups == 1


@pytest.mark.parametrize("ttl_s", [-1, "1", float("nan"), True])
async def test_a_bad_ttl_is_refused_by_its_name(ttl_s):
    buffer = fifo()
    await fill(buffer, 1)
    with pytest.raises(InvalidArgument, match="ttl_s"):
        await buffer.lease({TASK: 1}, ttl_s=ttl_s)
    assert len(buffer) == 1


async def test_without_wait_a_lease_gives_what_is_there():
    buffer = fifo()
    async with buffer.lease({TASK: 2, "code": 1}) as batch:
        assert (batch.counts, batch.groups) == ({TASK: 0, "code": 0}, {TASK: [], "code": []})
        await batch.ack()
    uids = await fill(buffer, 1)
    async with buffer.lease({TASK: 2, "code": 1, "chat": 0}) as batch:
        assert batch.counts == {TASK: 1, "code": 0, "chat": 0}
        await batch.ack()
    assert (await books(buffer))["consumed"].groups == len(uids)


async def test_a_closed_limiter_looks_empty_to_a_lease():
    buffer = fifo(rate_limiter=MinSize(3))
    await fill(buffer, 2)
    async with buffer.lease({TASK: 2}) as batch:
        assert batch.counts == {TASK: 0}
    assert len(buffer) == 2


async def test_with_wait_a_lease_is_all_or_nothing_over_all_tasks():
    buffer = fifo()
    await fill(buffer, 2, "a")
    waiting = await start(buffer.lease({"a": 2, "b": 1}, wait=True)._take())
    assert not waiting.done()
    assert len(buffer) == 2
    await fill(buffer, 1, "b")
    batch = await waiting
    assert batch.counts == {"a": 2, "b": 1}
    await batch.ack()
    with pytest.raises(WaitTimeout):
        await buffer.lease({"a": 1}, wait=True, timeout=0)


async def test_cancelling_a_lease_that_waits_loses_nothing():
    buffer = fifo()
    await fill(buffer, 1)
    for turns in range(4):
        waiting = await start(buffer.lease({TASK: 2}, wait=True)._take())
        (uid,) = await fill(buffer, 1)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (end,) = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(end, asyncio.CancelledError):
            await end.nack()
        assert len(buffer) == 2
        await buffer.delete([uid])
        await books(buffer)


# --- the old place


ORDERS = {
    "fifo": [1, 2, 3, 4, 5, 6],
    "lifo": [6, 5, 4, 3, 2, 1],
    "stalest": [2, 5, 1, 4, 6, 3],
    "freshest": [3, 6, 1, 4, 2, 5],
    "min_heap": [2, 5, 1, 4, 6, 3],
    "max_heap": [3, 6, 1, 4, 2, 5],
    "least_used": [1, 2, 3, 4, 5, 6],
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("sampler", ORDERS)
async def test_groups_come_back_to_their_old_place(sampler, how):
    buffer, clock = timed(ReplayBufferConfig(sampler=sampler))
    numbers = [1, 0, 2, 1, 0]  # versions and priorities
    await fill(buffer, 5, versions=numbers, priorities=[float(n) for n in numbers], current_train_step=4)
    before = await rows(buffer)
    batch = await buffer.lease({TASK: 3}, ttl_s=LONG_S)
    assert uids_of(batch.groups[TASK]) == [u for u in ORDERS[sampler] if u != 6][:3]
    # A newcomer of version and priority 2 or 1, so that it has ties with others.
    version = 2 if sampler in ("freshest", "max_heap") else 1
    await fill(buffer, 1, versions=[version], priorities=[float(version)], current_train_step=4)
    await give_back(buffer, batch, clock, how)
    after = await rows(buffer)
    for uid, row in before.items():
        lent = uid in uids_of(batch.groups[TASK])
        assert (after[uid].timestamp_id, after[uid].deliveries) == (row.timestamp_id, int(lent))
        assert (after[uid].times_sampled, after[uid].attempts) == (0, 1)
    expected = ORDERS[sampler]
    if sampler in ("stalest", "min_heap"):
        expected = [2, 5, 1, 4, 6, 3]
    assert await in_order(buffer) == expected


async def test_ties_of_a_heap_stay_in_the_order_of_their_last_update():
    buffer = replay(sampler="max_heap", max_times_sampled=1)
    uids = await fill(buffer, 3, priorities=[1.0, 1.0, 1.0])
    await buffer.update_priorities({uids[0]: 1.0})
    async with buffer.lease({TASK: 2}) as batch:
        assert uids_of(batch.groups[TASK]) == [uids[1], uids[2]]
    assert await in_order(buffer) == [uids[1], uids[2], uids[0]]


async def test_every_lease_counts_as_a_delivery_and_never_makes_a_group_fail():
    buffer = fifo(max_attempts=2)
    (uid,) = await fill(buffer, 1)
    for n in range(1, 9):
        async with buffer.lease({TASK: 1}):
            pass
        row = await row_of(buffer, uid)
        assert (row.deliveries, row.attempts, row.status) == (n, 1, Status.COMPLETED)


@pytest.mark.parametrize("status", ["aborted", "expired", "init", "failed", "filtered"])
async def test_other_statuses_come_back_in_order_too(status):
    buffer = fifo()
    uids = [await buffer.put(group(status=status), TASK) for _ in range(3)]
    async with buffer.lease({TASK: 2}, group_status=status) as batch:
        assert uids_of(batch.groups[TASK]) == uids[:2]
        assert (await books(buffer))["leased"].groups == 2
        assert await buffer.count(TASK, status) == 1
    assert [row.deliveries for row in (await rows(buffer)).values()] == [1, 1, 0]
    assert await in_order(buffer, status=status) == uids


@pytest.mark.parametrize("status", ["aborted", "expired"])
async def test_ack_of_what_is_to_be_rolled_again_moves_it_out(status):
    buffer = fifo()
    uid = await buffer.put(group(status=status), TASK)
    async with buffer.lease({TASK: 1}, group_status=status) as batch:
        await batch.ack()
    ledger = await books(buffer)
    assert (ledger["out"].groups, ledger["leased"].groups, ledger["consumed"].groups) == (1, 0, 0)
    (items,) = batch.groups[TASK]
    for item in items:
        item.status = "completed"
    assert await buffer.put(items, TASK) == uid
    row = await row_of(buffer, uid)
    assert (row.attempts, row.deliveries, row.status) == (2, 1, Status.COMPLETED)


@pytest.mark.parametrize("status", ["failed", "filtered"])
async def test_ack_of_rejected_groups_lets_them_go(status):
    buffer = fifo()
    await buffer.put(group(status=status), TASK)
    async with buffer.lease({TASK: 1}, group_status=status) as batch:
        await batch.ack()
    assert (await books(buffer))[status].groups == 1


async def test_rejected_groups_that_come_back_find_no_more_room_than_there_is():
    buffer = fifo(rejected_capacity=1)
    await buffer.put(group(status="failed"), TASK)
    async with buffer.lease({TASK: 1}, group_status="failed"):
        newest = await buffer.put(group(status="failed"), TASK)
    assert list(await rows(buffer)) == [newest]
    await books(buffer)


# --- not older than allowed


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("retryable", [True, False])
async def test_what_became_too_stale_meanwhile_expires_when_it_comes_back(how, retryable):
    buffer, clock = timed(SyncReplayBufferConfig())
    old, new = await fill(buffer, 2, versions=[0, 3])
    batch = await buffer.lease({TASK: 2}, ttl_s=LONG_S, train_step=4)
    expired = await buffer.refresh_staleness(
        task_stale_thresholds={TASK: 3},
        current_train_step=5,
        expired_groups_retryable_by_task={TASK: retryable},
    )
    assert expired == {TASK: 0}
    await give_back(buffer, batch, clock, how)
    found = await rows(buffer)
    assert found[new].status is Status.COMPLETED
    ledger = await books(buffer)
    if retryable:
        assert (found[old].status, found[old].staleness) == (Status.EXPIRED, 4)
        assert ledger["expired"][:2] == (0, 2)  # its response
        (items,) = await buffer.get(1, TASK, "expired")
        assert len(items[0].response_ids) == 0
    else:
        assert old not in found
        assert ledger["expired"][:2] == (1, 4)


async def test_only_a_refresh_says_what_is_too_stale():
    buffer = fifo()
    (uid,) = await fill(buffer, 1, versions=[0], current_train_step=1, stale_threshold=2)
    async with buffer.lease({TASK: 1}):
        await buffer.advance(50)
    row = await row_of(buffer, uid)
    assert (row.status, row.staleness) == (Status.COMPLETED, 49)


async def test_the_step_counts_as_of_when_it_comes_back():
    buffer = fifo()
    (uid,) = await fill(buffer, 1, versions=[0])
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=2)
    async with buffer.lease({TASK: 1}):
        await buffer.advance(9)  # no refresh, but the step moves on
    assert (await row_of(buffer, uid)).status is Status.EXPIRED


async def test_members_expire_one_by_one_when_they_come_back():
    buffer = fifo(expire="member")
    items = group(version=0) + group(version=3)
    uid = await buffer.put(items, TASK)
    async with buffer.lease({TASK: 1}):
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=5)
    assert (await row_of(buffer, uid)).status is Status.EXPIRED
    (got,) = await buffer.get(1, TASK, "expired")
    assert [len(item.response_ids) for item in got] == [0, 2]


async def test_aborted_groups_expire_too_when_they_come_back():
    buffer = fifo()
    uid = await buffer.put(group(version=0, status="aborted"), TASK)
    async with buffer.lease({TASK: 1}, group_status="aborted"):
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=5)
    assert (await row_of(buffer, uid)).status is Status.EXPIRED


async def test_groups_that_come_back_beyond_the_bound_are_dropped():
    buffer = fifo(max_staleness=1, on_stale="drop")
    await fill(buffer, 1, versions=[0])
    async with buffer.lease({TASK: 1}):
        await buffer.advance(9)
    assert (await books(buffer))["expired"].groups == 1


async def test_a_refresh_forgets_told_staleness_also_of_groups_that_are_lent():
    buffer = fifo()
    uid = await buffer.put(group(seq_staleness=3), TASK)
    assert (await row_of(buffer, uid)).staleness == 3
    async with buffer.lease({TASK: 1}):
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 2}, current_train_step=5)
    row = await row_of(buffer, uid)
    assert (row.status, row.staleness) == (Status.COMPLETED, 0)


# --- late


async def overdue_lease(n=3, **options):
    buffer, clock = timed(SyncReplayBufferConfig(**options))
    uids = await fill(buffer, n, versions=[0] * n)
    batch = await buffer.lease({TASK: n}, ttl_s=LONG_S)
    clock.advance(2 * LONG_S)
    assert (await books(buffer))["resident"].groups == n
    return buffer, uids, batch


async def test_a_late_ack_succeeds_if_nobody_got_the_groups():
    buffer, _, batch = await overdue_lease()
    await batch.ack()
    assert (await books(buffer))["consumed"] == (3, 12, 3, 12)
    assert len(buffer) == 0


async def test_a_late_ack_names_what_was_handed_out_again_and_consumes_the_rest():
    buffer, uids, batch = await overdue_lease()
    other = await buffer.lease({TASK: 1})
    with pytest.raises(LeaseExpired, match=rf"\[{uids[0]}\]"):
        await batch.ack()
    ledger = await books(buffer)
    assert (ledger["consumed"].groups, ledger["leased"].groups) == (2, 1)
    await other.ack()
    assert (await books(buffer))["consumed"].groups == 3


async def test_what_was_handed_out_again_and_came_back_is_still_named():
    buffer, uids, batch = await overdue_lease()
    async with buffer.lease({TASK: 2}):
        pass
    with pytest.raises(LeaseExpired) as error:
        await batch.ack()
    assert str(uids[:2]) in str(error.value)
    assert await in_order(buffer) == uids[:2]


async def test_a_late_ack_after_a_take_names_what_was_taken():
    buffer, uids, batch = await overdue_lease()
    assert uids_of(await buffer.get(1, TASK, "completed")) == uids[:1]
    with pytest.raises(LeaseExpired):
        await batch.ack()
    assert (await books(buffer))["consumed"].groups == 3


async def test_leaving_the_context_after_a_late_ack_hides_no_error():
    buffer, clock = timed(SyncReplayBufferConfig())
    await fill(buffer, 1)
    with pytest.raises(LeaseExpired):  # noqa: PT012
        async with buffer.lease({TASK: 1}, ttl_s=LONG_S) as batch:
            clock.advance(2 * LONG_S)
            await buffer.get(1, TASK, "completed")
            await batch.ack()


async def test_a_late_nack_is_no_error():
    buffer, uids, batch = await overdue_lease()
    await batch.nack()
    assert await in_order(buffer) == uids


async def test_a_late_ack_of_deleted_groups_succeeds():
    buffer, uids, batch = await overdue_lease()
    assert await buffer.delete(uids[:1]) == 1
    await batch.ack()
    ledger = await books(buffer)
    assert (ledger["consumed"].groups, ledger["deleted"].groups) == (2, 1)


async def test_a_late_ack_of_groups_that_expired_meanwhile_leaves_them_to_be_rolled_again():
    buffer, _, batch = await overdue_lease()
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=9)
    assert await buffer.count(TASK, "expired") == 3
    await batch.ack()
    ledger = await books(buffer)
    assert ledger["out"].groups == 0  # no producer has them
    assert ledger["resident"].trained_groups == 3
    assert await buffer.count(TASK, "expired") == 3


async def test_a_late_ack_counts_in_the_statistics_as_the_use_it_is():
    buffer, _, batch = await overdue_lease(1)
    await batch.ack()
    stats = (await buffer.stats()).tasks[TASK]
    assert (stats.trained.groups, stats.trained_uses.histogram) == (1, {1: 1})


# --- one holder at a time


async def test_two_holders_never_have_the_same_group():
    buffer, _ = timed(SyncReplayBufferConfig(capacity=6))
    held, acked = Counter(), []

    async def produce():
        for _ in range(60):
            await buffer.put(group(), TASK)

    async def train(number):
        for turn in range(1_000):
            try:
                async with buffer.lease({TASK: 2}, wait=turn % 2 == 0, timeout=0, ttl_s=LONG_S) as batch:
                    mine = uids_of(batch.groups[TASK])
                    for uid in mine:
                        held[uid] += 1
                        assert held[uid] == 1
                    for _ in range((number + turn) % 4):
                        await asyncio.sleep(0)
                    for uid in mine:
                        held[uid] -= 1
                    if (number * 7 + turn) % 3:
                        await batch.ack()
                        acked.extend(mine)
            except WaitTimeout:
                pass
            await asyncio.sleep(0)
            if len(acked) == 60:
                return

    await asyncio.gather(produce(), *(train(number) for number in range(4)))
    assert sorted(acked) == list(range(1, 61))
    assert (await books(buffer))["consumed"].groups == 60


def test_two_threads_never_have_the_same_group():
    buffer = SyncReplayBufferConfig(capacity=6).build_blocking()
    lock, held, acked, errors = threading.Lock(), Counter(), [], []
    everything = threading.Event()

    def train(number):
        try:
            for turn in range(10_000):
                if everything.is_set():
                    return
                with buffer.lease({TASK: 1}, wait=True, timeout=30, ttl_s=LONG_S) as batch:
                    (uid,) = uids_of(batch.groups[TASK])
                    with lock:
                        held[uid] += 1
                        assert held[uid] == 1
                    with lock:
                        held[uid] -= 1
                    if (number + turn) % 3:
                        batch.ack()
                        with lock:
                            acked.append(uid)
                            if len(acked) >= 120:
                                everything.set()
                                buffer.close()
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001  (raised in the test's own thread)
            errors.append(error)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(120):
        buffer.put(group(), TASK, timeout=30)
    for thread in threads:
        thread.join(60)
    assert not errors
    assert sorted(acked) == list(range(1, 121))


# --- counting, room, eviction


async def test_len_and_count_exclude_what_is_lent():
    buffer = fifo()
    await fill(buffer, 3)
    async with buffer.lease({TASK: 2}):
        assert len(buffer) == 1
        assert await buffer.count(TASK, "completed") == 1
        assert await buffer.count_statuses([TASK], ["completed"]) == {TASK: {Status.COMPLETED: 1}}
        assert not await buffer.is_ready({TASK: 2})
        stats = await buffer.stats()
        assert (stats.leases, stats.tasks[TASK].leased, stats.tasks[TASK].num_groups) == (1, 2, 1)
    assert len(buffer) == 3


async def test_without_a_remover_lent_groups_count_against_the_capacity():
    buffer = fifo(capacity=2)
    await fill(buffer, 2)
    batch = await buffer.lease({TASK: 1})
    waiting = await start(buffer.put(group(), TASK))
    assert not waiting.done()
    await batch.ack()
    assert await waiting == 3
    batch = await buffer.lease({TASK: 1})
    waiting = await start(buffer.put(group(), TASK))
    await batch.nack()
    await quiet()
    assert not waiting.done()
    assert await buffer.count(TASK, "completed") == 2
    await cancel(waiting)


async def test_without_a_remover_lent_groups_count_against_max_bytes():
    probe = fifo()
    uid = await probe.put(group(100), TASK)
    size = (await row_of(probe, uid)).num_bytes
    buffer = fifo(max_bytes=2 * size)
    for _ in range(2):
        await buffer.put(group(100), TASK)
    batch = await buffer.lease({TASK: 1})
    waiting = await start(buffer.put(group(100), TASK))
    is_done = waiting.done()
    await cancel(waiting)
    await batch.nack()
    assert (is_done, sum(row.num_bytes for row in (await rows(buffer)).values())) == (False, 2 * size)


async def test_with_a_remover_lent_groups_do_not_count_and_are_never_evicted():
    buffer = fifo(capacity=2, remover="fifo")
    uids = await fill(buffer, 2)
    batch = await buffer.lease({TASK: 2})
    more = await fill(buffer, 2)
    assert (await books(buffer))["evicted"].groups == 0
    more += await fill(buffer, 1)
    ledger = await books(buffer)
    assert (ledger["evicted"].groups, ledger["leased"].groups) == (1, 2)
    assert list(await rows(buffer)) == more[1:]
    await batch.ack()
    assert (await books(buffer))["consumed"].groups == len(uids)


async def test_with_a_remover_what_comes_back_competes_with_who_is_there():
    buffer = fifo(capacity=2, remover="min_heap")
    await fill(buffer, 2, priorities=[5.0, 1.0])
    batch = await buffer.lease({TASK: 2})
    await fill(buffer, 2, priorities=[3.0, 4.0])
    await batch.nack()
    assert list(await rows(buffer)) == [1, 4]  # priorities 5 and 4
    ledger = await books(buffer)
    assert (ledger["evicted"].groups, ledger["leased"].groups) == (2, 0)


async def test_an_evicted_lease_can_still_be_acknowledged_late():
    buffer, clock = timed(SyncReplayBufferConfig(capacity=1, remover="fifo"))
    await fill(buffer, 1)
    batch = await buffer.lease({TASK: 1}, ttl_s=LONG_S)
    await fill(buffer, 1)
    clock.advance(2 * LONG_S)
    assert (await books(buffer))["evicted"].groups == 1  # the older one gave way on its return
    await batch.ack()
    assert (await books(buffer))["resident"].groups == 1


# --- across delete, close


async def test_what_is_lent_is_not_deleted():
    buffer = fifo()
    uids = await fill(buffer, 2)
    batch = await buffer.lease({TASK: 1})
    assert await buffer.delete(uids) == 1
    assert await buffer.delete({}) == 0
    await batch.nack()
    assert await in_order(buffer) == uids[:1]
    assert (await books(buffer))["deleted"].groups == 1


async def test_priorities_of_lent_groups_are_not_resident():
    buffer = replay(sampler="max_heap", max_times_sampled=1)
    uids = await fill(buffer, 2, priorities=[2.0, 1.0])
    async with buffer.lease({TASK: 1}):
        unknown = await buffer.update_priorities(dict.fromkeys(uids, 0.5))
        assert unknown in ([uids[0]], [])
    await books(buffer)


async def test_close_gives_everything_back_and_later_acks_are_refused():
    buffer = fifo()
    await fill(buffer, 2)
    batch = await buffer.lease({TASK: 1})
    await buffer.close()
    assert len(buffer) == 2
    with pytest.raises(Closed):
        await batch.ack()
    with pytest.raises(Closed):
        await buffer.lease({TASK: 1})


async def test_close_inside_the_context_is_no_error_when_it_is_left():
    buffer = fifo()
    await fill(buffer, 2)
    async with buffer.lease({TASK: 1}):
        await buffer.close()
    assert len(buffer) == 2


async def test_close_wakes_a_lease_that_waits():
    buffer = fifo()
    waiting = await start(buffer.lease({TASK: 1}, wait=True)._take())
    await buffer.close()
    with pytest.raises(Closed):
        await waiting


# --- the blocking twin


def test_blocking_lease():
    buffer = SyncReplayBufferConfig().build_blocking()
    uids = [buffer.put(group(), TASK) for _ in range(3)]
    with buffer.lease({TASK: 2}, train_step=1) as batch:
        assert uids_of(batch.groups[TASK]) == uids[:2]
        assert (batch.counts, len(batch.samples[TASK])) == ({TASK: 2}, 2)
        assert (len(buffer), buffer.stats().leases) == (1, 1)
        batch.ack()
    with buffer.lease({TASK: 1}):
        pass
    with pytest.raises(ZeroDivisionError), buffer.lease({TASK: 1}):
        raise ZeroDivisionError
    batch = buffer.lease({TASK: 1}).take()
    assert len(buffer) == 0
    batch.nack()
    assert [row.deliveries for row in buffer.query({})] == [3]
    assert buffer.ledger()[TASK]["consumed"].groups == 2
    assert uids_of(buffer.get(5, TASK, "completed")) == uids[2:]


def test_blocking_lease_of_nothing():
    buffer = SyncReplayBufferConfig().build_blocking()
    with buffer.lease({TASK: 2}) as batch:
        assert batch.counts == {TASK: 0}
        batch.ack()


def test_a_blocked_thread_is_woken_by_the_ttl():
    buffer = SyncReplayBufferConfig().build_blocking()
    uid = buffer.put(group(), TASK)
    late = buffer.lease({TASK: 1}, ttl_s=0.02).take()
    with buffer.lease({TASK: 1}, wait=True, timeout=30) as batch:
        assert uids_of(batch.groups[TASK]) == [uid]
        batch.ack()
    with pytest.raises(LeaseExpired, match=str(uid)):
        late.ack()
