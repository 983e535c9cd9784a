"""A durable buffer that is found again after a crash, and after another one."""

import pytest

from durable.stores import cancelled, crashed, fifo, passed, picture, stalled, while_writing
from replay.buffers import TASK, fill, group, quiet, uids_of
from reroll import InvalidArgument, LeaseExpired, NotStorable, StalenessWindow


async def test_what_came_home_after_a_crash_is_home_after_the_next_one(tmp_path):
    buffer = fifo(tmp_path / "store", max_times_sampled=2)
    await fill(buffer, 4)
    await buffer.put(group(status="aborted"), TASK)
    await buffer.lease({TASK: 2})
    await buffer.lease({TASK: 1}, group_status="aborted")
    await buffer.sample(1, TASK)
    await buffer.put(group(status="aborted"), TASK)
    await buffer.get(1, TASK, "aborted")
    second = crashed(buffer, max_times_sampled=2)
    await second.put(group(), TASK)  # writes the books, and none of the rows that came home
    third = crashed(second, max_times_sampled=2)
    assert await picture(third) == await picture(second)
    for each in (buffer, second, third):
        await each.close()


async def test_what_was_taken_for_no_step_is_gone_for_good(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 2)
    await buffer.get(1, TASK, "completed")
    second = crashed(buffer)
    await second.put(group(), TASK)
    assert await second.commit(9) == 0
    third = crashed(second)
    assert (await picture(third)) == await picture(second)
    assert [row.uid for row in await third.query({})] == [2, 3]
    assert (await third.ledger())[TASK]["consumed"].groups == 1
    for each in (buffer, second, third):
        await each.close()


@pytest.mark.parametrize("verb", ["take", "sample", "lease"])
async def test_statistics_tell_of_the_last_hand_out(tmp_path, verb):
    buffer = fifo(tmp_path / "store", max_times_sampled=2)
    await fill(buffer, 3)
    if verb == "take":
        await buffer.take_batch({TASK: 2})
    elif verb == "sample":
        await buffer.sample(2, TASK)
    else:
        await (await buffer.lease({TASK: 2})).ack()
    again = crashed(buffer, max_times_sampled=2)
    mine, theirs = await passed(buffer), await passed(again)
    assert mine[TASK][0] == theirs[TASK][0]
    assert mine[TASK][2].groups == theirs[TASK][2].groups == 2
    assert mine[TASK][2].lengths == theirs[TASK][2].lengths
    await buffer.close()
    await again.close()


async def test_a_late_ack_after_a_crash_consumes(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 3)
    batch = await buffer.lease({TASK: 2}, train_step=4)
    again = crashed(buffer)
    assert len(again) == 3
    await again.ack_lease(batch.id)
    await again.ack_lease(batch.id)
    assert [row.uid for row in await again.query({})] == [3]
    books = (await again.ledger())[TASK]
    assert (books["uncommitted"].groups, books["leased"].groups) == (2, 0)
    third = crashed(again)
    await third.ack_lease(batch.id)
    assert await picture(third) == await picture(again)
    assert await third.rewind(3) == 2
    for each in (buffer, again, third):
        await each.close()


async def test_a_late_ack_of_what_was_handed_out_again_names_it(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 3)
    batch = await buffer.lease({TASK: 2})
    again = crashed(buffer)
    assert uids_of(await again.get(1, TASK, "completed")) == [1]
    third = crashed(again)
    for each in (again, third):
        with pytest.raises(LeaseExpired) as caught:
            await each.ack_lease(batch.id)
        assert list(caught.value.uids) == [1]
        assert [row.uid for row in await each.query({})] == [3]
    for each in (buffer, again, third):
        await each.close()


async def test_a_hand_out_that_was_cancelled_does_not_spoil_a_late_ack(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 2)
    batch = await buffer.lease({TASK: 2})
    again = crashed(buffer)
    with stalled(again):
        taker = await while_writing(again.get(2, TASK, "completed"))
        await cancelled(taker)
    await again._disk.drained()
    assert len(again) == 2
    await again.ack_lease(batch.id)
    assert len(again) == 0
    await buffer.close()
    await again.close()


async def test_only_groups_that_are_rolled_again_can_be_continued_after_a_crash(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 2)
    batch = await buffer.lease({TASK: 1})
    again = crashed(buffer)
    with pytest.raises(InvalidArgument, match="not out"):
        await again.put(group(), TASK, uid=1)
    await again.get(1, TASK, "completed", train_step=1)
    assert await again.put(batch.groups[TASK][0], TASK) == 3, "a group of its own, as it would be in memory"
    with pytest.raises(InvalidArgument, match="not out"):
        await again.put(group(), TASK, uid=1)
    await buffer.close()
    await again.close()


async def test_the_producer_of_a_group_that_was_out_may_still_put_it(tmp_path):
    buffer = fifo(tmp_path / "store")
    await buffer.put(group(status="aborted"), TASK)
    (items,) = await buffer.get(1, TASK, "aborted")
    again = crashed(buffer)
    assert await again.count(TASK, "aborted") == 1
    items[0].status = "completed"
    assert await again.put(items, TASK) == 1
    (row,) = await again.query({})
    assert (row.status.value, row.attempts) == ("completed", 2)
    third = crashed(again)
    assert await picture(third) == await picture(again)
    for each in (buffer, again, third):
        await each.close()


async def test_the_oldest_put_ids_go_first_also_after_a_crash(tmp_path):
    buffer = fifo(tmp_path / "store", put_id_history=2)
    for name in ("z", "a"):
        await buffer.put(group(), TASK, put_id=name)
    again = crashed(buffer, put_id_history=2)
    await again.put(group(), TASK, put_id="m")
    third = crashed(again, put_id_history=2)
    for each in (again, third):
        assert await each.put(group(), TASK, put_id="a") == 2
        assert await each.put(group(), TASK, put_id="m") == 3
        assert await each.put(group(), TASK, put_id="z") == 4, "was to be forgotten"
    for each in (buffer, again, third):
        await each.close()


async def test_a_put_id_that_cannot_be_stored_is_refused_before_anything_changes(tmp_path):
    buffer = fifo(tmp_path / "store")
    with pytest.raises(NotStorable, match="put_id"):
        await buffer.put(group(), TASK, put_id=object())
    assert len(buffer) == 0
    assert await buffer.put(group(), TASK, put_id=("a", 1)) == 1
    again = crashed(buffer)
    assert await again.put(group(), TASK, put_id=("a", 1)) == 1
    await buffer.close()
    await again.close()


async def test_a_reservation_of_the_time_before_is_nobody_elses(tmp_path):
    options = {"rate_limiter": StalenessWindow(0, 2)}
    buffer = fifo(tmp_path / "store", **options)
    old = await buffer.reserve(1, TASK)
    again = crashed(buffer, **options)
    new = await again.reserve(2, TASK)
    assert new.id != old.id
    assert await again.release(old) == 0
    assert (await again.stats()).reservations == 1
    await buffer.close()
    await again.close()


@pytest.mark.parametrize("resident", [None, 0])
async def test_rejected_groups_that_were_taken_stay_taken(tmp_path, resident):
    buffer = fifo(tmp_path / "store", max_resident_bytes=resident)
    for _ in range(3):
        await buffer.put(group(status="failed"), TASK)
    taker = await while_writing(buffer.get(2, TASK, "failed"))
    other = await while_writing(buffer.put(group(), TASK))
    assert uids_of(await taker) == [1, 2]
    await other
    again = crashed(buffer, max_resident_bytes=resident)
    assert await picture(again) == await picture(buffer)
    await buffer.close()
    await again.close()


async def test_what_was_deleted_while_somebody_reads_it_is_deleted_on_disk(tmp_path):
    buffer = fifo(tmp_path / "store", max_resident_bytes=0)
    await fill(buffer, 3)
    reader = await while_writing(buffer.peek([1, 2]))
    assert await buffer.delete([1]) == 1
    again = crashed(buffer, max_resident_bytes=0)
    assert await picture(again) == await picture(buffer)
    assert uids_of(await reader) == [1, 2]
    await buffer.close()
    await again.close()


async def test_rollouts_that_are_about_to_be_shown_stay_in_memory(tmp_path):
    buffer = fifo(tmp_path / "store", max_resident_bytes=0)
    await fill(buffer, 1)
    group_of = buffer._groups.find(1)
    with stalled(buffer):
        writer = await while_writing(buffer.put(group(), TASK))
        reader = await while_writing(buffer.lease({TASK: 1}))
        while not group_of.items:
            await quiet()
        assert not reader.done()
        buffer._disk.settle([group_of])  # as another reader does at its end
        assert group_of.items
    batch = await reader
    assert uids_of(batch.groups[TASK]) == [1]
    await writer
    assert not group_of.items
    await buffer.close()


async def test_rollouts_that_are_being_written_stay_in_memory(tmp_path):
    buffer = fifo(tmp_path / "store", max_resident_bytes=0)
    with stalled(buffer):
        writer = await while_writing(buffer.put(group(), TASK))
        await quiet()  # the commit has begun
        assert uids_of(await buffer.peek([1])) == [1]
        assert uids_of(await buffer.peek([1])) == [1]
    await writer
    assert uids_of(await buffer.peek([1])) == [1]
    await buffer.close()
