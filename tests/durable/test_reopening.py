"""A durable buffer that is found again after a crash, and after another one."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from durable.stores import cancelled, copy_of, crashed, fifo, passed, picture, stalled, while_writing
from durable_errors.samples import alter_payload
from replay.buffers import TASK, fill, group, quiet, uids_of
from reroll import (
    CorruptData,
    InvalidArgument,
    LeaseExpired,
    MinSize,
    NotStorable,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    StalenessWindow,
    WaitTimeout,
    register,
)
from reroll.engine.limits import Window
from reroll.testing.probe import probe


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
    await probe(again).disk.drained()
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
    with pytest.raises(InvalidArgument, match="not checked out"):
        await again.put(group(), TASK, uid=1)
    await again.get(1, TASK, "completed", train_step=1)
    assert await again.put(batch.groups[TASK][0], TASK) == 3, "a group of its own, as it would be in memory"
    with pytest.raises(InvalidArgument, match="not checked out"):
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


async def put_each(buffer, ids):
    return [await buffer.put(group(), TASK, put_id=put_id) for put_id in ids]


async def test_put_ids_that_are_remembered_no_longer_are_forgotten_on_disk(tmp_path):
    buffer = fifo(tmp_path / "store")
    await put_each(buffer, "abcdef")
    shorter = crashed(buffer, put_id_history=3)
    assert await put_each(shorter, "da") == [4, 7], "the first one was forgotten"
    for options in ({"put_id_history": 3}, {}):
        again = crashed(shorter, **options)
        assert await put_each(again, "efa") == [5, 6, 7]
        assert await put_each(again, "d") == [8]
        await again.close()
    await buffer.close()
    await shorter.close()


async def test_a_put_id_that_comes_again_as_it_is_forgotten_is_the_newest(tmp_path):
    buffer = fifo(tmp_path / "store", put_id_history=3)
    await put_each(buffer, "abc")
    with stalled(buffer):
        before = await while_writing(buffer.put(group(), TASK))  # what follows shares a commit
        puts = [await while_writing(buffer.put(group(), TASK, put_id=put_id)) for put_id in "xda"]
    assert [await put for put in (before, *puts)] == [4, 5, 6, 7]
    again = crashed(buffer, put_id_history=3)
    assert await put_each(again, "y") == [8]
    assert await put_each(again, "da") == [6, 7]
    await buffer.close()
    await again.close()


async def test_leases_that_are_remembered_no_longer_are_forgotten_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("reroll.buffer.leases._REMEMBERED", 2)
    lives = [fifo(tmp_path / "store")]
    await fill(lives[0], 4)
    for _ in range(4):
        for _ in range(4):
            await lives[-1].lease({TASK: 1})
        with probe(lives[-1]).disk.store.reader() as reader:
            assert len(list(reader.records("lease"))) <= 4 + 2
        lives.append(crashed(lives[-1]))
    for buffer in lives:
        await buffer.close()


async def test_groups_whose_members_expire_do_not_stay_in_memory(tmp_path):
    options = {"max_resident_bytes": 0, "expire": "member"}
    buffer = fifo(tmp_path / "store", **options)
    for _ in range(3):
        await buffer.put([*group(50, version=0), *group(20, version=9)], TASK)
    assert (await buffer.stats()).memory_bytes == 0
    assert await buffer.refresh_staleness(task_stale_thresholds={TASK: 5}, current_train_step=10) == {TASK: 3}
    assert (await buffer.stats()).memory_bytes == 0
    again = crashed(buffer, **options)
    assert await picture(again) == await picture(buffer)
    for one in (buffer, again):
        for stale, fresh in await one.get(3, TASK, "expired"):
            assert (len(stale.response_ids), len(fresh.response_ids)) == (0, 20)
        await one.close()


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
    group_of = probe(buffer).groups.find(1)
    with stalled(buffer):
        writer = await while_writing(buffer.put(group(), TASK))
        reader = await while_writing(buffer.lease({TASK: 1}))
        while not group_of.is_here:
            await quiet()
        assert not reader.done()
        probe(buffer).disk.settle([group_of])  # as another reader does at its end
        assert group_of.is_here
    batch = await reader
    assert uids_of(batch.groups[TASK]) == [1]
    await writer
    assert not group_of.is_here
    await buffer.close()


@pytest.mark.parametrize("restart", ["crash", "save", "save into a store"])
@pytest.mark.parametrize("expire", ["group", "member"])
@pytest.mark.parametrize("resident", [None, 0])
async def test_groups_of_dead_leases_are_checked_against_the_last_refresh(
    tmp_path, restart, expire, resident
):
    options = {"expire": expire, "max_resident_bytes": resident}
    buffer = fifo(tmp_path / "store", **options)
    await buffer.put(group(version=0, rewards=(1.0, 0.0)), TASK)  # too stale soon
    await buffer.put([*group(version=0), *group(version=5)], TASK)  # one of its members is
    await buffer.put(group(version=5), TASK)
    (untold,) = group()
    untold.seq_staleness = 4  # as its engine says; it has no versions
    await buffer.put([untold], TASK)
    await buffer.lease({TASK: 4}, train_step=1)
    (late,) = group()
    late.seq_staleness = 4
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=6)
    await buffer.put([late], TASK)
    await buffer.lease({TASK: 1}, train_step=6)

    if restart == "crash":
        again = crashed(buffer, **options)
    else:
        await buffer.save(tmp_path / "saved")
        again = fifo(tmp_path / "other", **options) if "store" in restart else fifo(None, expire=expire)
        await again.resume(tmp_path / "saved")
    found = {row.uid: (row.status.value, row.staleness) for row in await again.query({})}
    assert found == {
        1: ("expired", 5),
        2: ("expired", 0 if expire == "member" else 5),
        3: ("completed", 0),
        4: ("completed", 0),
        5: ("completed", 4),  # told after that refresh
    }
    await picture(again)
    emptied, mixed = await again.get(2, TASK, "expired")
    assert [len(item.response_ids) for item in emptied] == [0, 0]
    assert [len(item.response_ids) for item in mixed] == ([0, 2] if expire == "member" else [0, 0])
    if restart == "crash":
        await picture(once_more := crashed(again, **options))
        assert (await once_more.ledger())[TASK]["expired"] == (await again.ledger())[TASK]["expired"]
        await once_more.close()
    await buffer.close()
    await again.close()


async def test_groups_of_dead_leases_that_are_not_rolled_again_are_dropped(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 2, versions=[0, 5])
    await buffer.lease({TASK: 2}, train_step=1)
    await buffer.refresh_staleness(
        task_stale_thresholds={TASK: 3},
        current_train_step=6,
        expired_groups_retryable_by_task={TASK: False},
    )
    again = crashed(buffer)
    assert uids_of(await again.get(9, TASK, "completed")) == [2]
    assert (await picture(again))["ledger"][TASK]["expired"].groups == 1
    await buffer.close()
    await again.close()


async def test_a_damaged_group_that_came_home_too_stale_does_not_hinder_the_others(tmp_path):
    options = {"expire": "member", "max_resident_bytes": 0}
    buffer = fifo(tmp_path / "store", **options)
    await fill(buffer, 2, versions=[0, 0])
    await buffer.lease({TASK: 2}, train_step=1)
    await buffer.refresh_staleness(task_stale_thresholds={TASK: 3}, current_train_step=6)
    copy = copy_of(tmp_path / "store")
    await buffer.close()
    alter_payload(copy, 1)
    again = fifo(copy, **options)
    assert await again.count(TASK, "expired") == 2
    with pytest.raises(CorruptData, match=r"group 1 .*delete\(\[1\]\)"):
        await again.get(2, TASK, "expired")
    await again.delete([1])
    assert uids_of(await again.get(2, TASK, "expired")) == [2]
    await again.close()


@dataclass(frozen=True)
class Own:
    """A limiter of somebody's own."""

    type: ClassVar[str] = "own"
    window: ClassVar[Window] = Window(1.0, 1, -math.inf, math.inf)

    def can_insert(self, counters, k=1):
        return True

    def can_sample(self, counters, k=1):
        return counters.size >= 1


def limiter_in(buffer):
    return probe(buffer).engine.tasks[TASK].settings.limiter


RATIO = SampleToInsertRatio(2.0, 3, (0.0, 12.0))


@pytest.mark.parametrize("restart", ["crash", "save"])
@pytest.mark.parametrize(
    ("configured", "set_since", "then", "found"),
    [
        (Queue(2), Queue(5), Queue(2), Queue(5)),
        (None, RATIO, None, RATIO),
        (Own(), Queue(5), Own(), Queue(5)),
        (Queue(2), Queue(5), Queue(3), Queue(3)),  # the configuration is newer
        (Own(), Queue(5), Queue(3), Queue(3)),
        (Queue(2), Own(), Queue(2), Queue(2)),  # nobody could read it
        (Queue(2), Queue(2), Queue(3), Queue(3)),
    ],
)
async def test_a_limiter_that_was_set_is_there_again_while_the_configuration_is_the_same(  # noqa: PLR0917
    tmp_path, restart, configured, set_since, then, found
):
    buffer = fifo(tmp_path / "store", rate_limiter=configured, max_times_sampled=2)
    await fill(buffer, 2)
    await buffer.set_rate_limiter(TASK, set_since)
    options = {"rate_limiter": then, "max_times_sampled": 2}
    if restart == "crash":
        again = crashed(buffer, **options)
    else:
        await buffer.save(tmp_path / "saved")
        again = fifo(None, **options)
        await again.resume(tmp_path / "saved")
    assert limiter_in(again) == found
    if restart == "crash" and set_since == found:
        await fill(again, 1)
        once_more = crashed(again, **options)
        assert limiter_in(once_more) == found
        await once_more.close()
    await buffer.close()
    await again.close()


@pytest.mark.parametrize("restart", ["crash", "save"])
@pytest.mark.parametrize(
    ("set_since", "then", "found"),
    [
        (Prioritized(beta=0.4), Prioritized(), Prioritized(beta=0.4)),
        (Prioritized(alpha=0.5), Prioritized(), Prioritized(alpha=0.5)),
        (Prioritized(beta=0.4), Prioritized(beta=0.9), Prioritized(beta=0.9)),  # the configuration is newer
    ],
)
async def test_sampler_parameters_that_were_set_survive_a_restart(tmp_path, restart, set_since, then, found):
    buffer = fifo(tmp_path / "store", sampler=Prioritized(), max_times_sampled=None)
    uids = await fill(buffer, 2)
    await buffer.update_priorities({uids[0]: 4.0})
    await buffer.set_sampler(TASK, set_since)
    options = {"sampler": then, "max_times_sampled": None}
    if restart == "crash":
        again = crashed(buffer, **options)
    else:
        await buffer.save(tmp_path / "saved")
        again = fifo(None, **options)
        await again.resume(tmp_path / "saved")
    weights = {sample.info.uid: sample.info.weight for sample in await again.sample(2, TASK)}
    assert weights[uids[0]] == pytest.approx(4.0 ** -(found.alpha * found.beta))
    await buffer.close()
    await again.close()


async def test_a_limiter_that_was_set_and_can_never_proceed_any_more_is_told(tmp_path):
    buffer = fifo(tmp_path / "store", rate_limiter=Queue(2), capacity=9)
    await fill(buffer, 1)
    await buffer.set_rate_limiter(TASK, MinSize(5))
    with pytest.warns(UserWarning, match=r"continues with Queue\(size=2\), as configured.*min_size"):
        again = crashed(buffer, rate_limiter=Queue(2), capacity=3)
    assert limiter_in(again) == Queue(2)
    await buffer.close()
    await again.close()


async def test_that_a_group_was_out_is_remembered_over_more_than_one_crash(tmp_path):
    buffer = fifo(tmp_path / "store")
    await buffer.put(group(status="aborted"), TASK)
    (items,) = await buffer.get(1, TASK, "aborted")
    second = crashed(buffer)
    await fill(second, 1)
    third = crashed(second)
    items[0].status = "completed"
    assert await third.put(items, TASK) == 1
    assert {row.uid: row.attempts for row in await third.query({})} == {1: 2, 2: 1}
    for each in (buffer, second, third):
        await each.close()


async def test_a_put_that_is_repeated_is_acknowledged_when_the_first_is_on_disk(tmp_path):
    buffer = fifo(tmp_path / "store")
    with stalled(buffer):
        first = await while_writing(buffer.put(group(), TASK, put_id=1))
        second = await while_writing(buffer.put(group(), TASK, put_id=1))
        await quiet()
        assert not second.done()
    assert await first == await second == 1
    await buffer.close()


@pytest.mark.parametrize("verb", ["sample", "lease", "take"])
@pytest.mark.parametrize("resident", [None, 0])
async def test_what_expires_while_its_hand_out_is_written_is_handed_out_whole(tmp_path, verb, resident):
    buffer = fifo(tmp_path / "store", max_times_sampled=2, max_resident_bytes=resident)
    await fill(buffer, 1, versions=[0])
    calls = {
        "sample": lambda: buffer.sample(1, TASK, train_step=1),
        "lease": lambda: buffer.lease({TASK: 1}, train_step=1),
        "take": lambda: buffer.get(1, TASK, "completed", train_step=1),
    }
    with stalled(buffer):
        reader = await while_writing(calls[verb]())
        refresh = await while_writing(
            buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=5)
        )
    found = await reader
    (items,) = {"sample": lambda: [found[0].group], "lease": lambda: found.groups[TASK]}.get(
        verb, lambda: found
    )()
    assert list(items[0].response_ids) == [7, 7]
    assert await refresh == {TASK: int(verb != "take")}
    await buffer.close()


class Foreign:
    """A rollout of somebody's own class, which cannot take a uid."""

    __slots__ = ("response_ids", "response_model_steps", "seq_staleness", "status")

    def __init__(self, told):
        self.status, self.seq_staleness, self.response_ids, self.response_model_steps = told


register(
    Foreign,
    name="tests.Foreign",
    encode=lambda item: (item.status, item.seq_staleness, item.response_ids, item.response_model_steps),
    decode=Foreign,
)


@pytest.mark.parametrize("how", ["taken", "lent"])
@pytest.mark.parametrize("resident", [None, 0])
async def test_the_objects_that_were_handed_out_come_back_as_their_group(tmp_path, how, resident):
    buffer = fifo(tmp_path / "store", max_resident_bytes=resident)
    await buffer.put([Foreign(("aborted", 0, [5], [0]))], TASK)
    if how == "taken":
        (items,) = await buffer.get(1, TASK, "aborted")
    else:
        batch = await buffer.lease({TASK: 1}, group_status="aborted")
        (items,) = batch.groups[TASK]
        await batch.ack()
    assert len(await buffer.peek([1])) == 1, "whoever looks gets copies, or the same"
    items[0].status = "completed"
    assert await buffer.put(items, TASK) == 1
    assert await buffer.put([Foreign(("completed", 0, [5], [0]))], TASK) == 2
    await picture(buffer)
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


@pytest.mark.parametrize("way", ["reopened", "resumed"])
async def test_a_smaller_capacity_holds_as_soon_as_the_buffer_is_there(tmp_path, way):
    buffer = fifo(tmp_path / "store", capacity=9, remover="fifo")
    await fill(buffer, 8)
    smaller = {"capacity": 3, "remover": "fifo"}
    if way == "reopened":
        again = crashed(buffer, **smaller)
    else:
        await buffer.save(tmp_path / "saved")
        again = fifo(tmp_path / "resumed", **smaller)
        await again.resume(tmp_path / "saved")
    for each in (again, crashed(again, **smaller)):
        assert await each.count(TASK, "completed") == len(each) == 3
        assert (await each.stats()).tasks[TASK].limits.occupied == 3
        shown = await picture(each)
        assert [row.uid for row in shown["rows"]] == [6, 7, 8]
        assert shown["ledger"][TASK]["evicted"].groups == 5
        await each.close()
    await buffer.close()


async def test_a_smaller_capacity_without_a_remover_drops_nothing_and_warns(tmp_path):
    buffer = fifo(tmp_path / "store", capacity=9)
    await fill(buffer, 8)
    with pytest.warns(UserWarning, match="holds 8 COMPLETED groups, above its capacity of 3: all are kept"):
        again = crashed(buffer, capacity=3)
    assert await again.count(TASK, "completed") == 8
    assert (await again.stats()).tasks[TASK].limits.occupied == 8
    await again.get(5, TASK, "completed")
    with pytest.raises(WaitTimeout):
        await again.put(group(), TASK, timeout=0.01)
    await again.get(1, TASK, "completed")
    assert await again.put(group(), TASK) == 9
    for each in (buffer, again):
        await each.close()


async def test_groups_that_come_home_after_a_crash_are_bound(tmp_path):
    buffer = fifo(tmp_path / "store", max_staleness=2)
    await fill(buffer, 2, versions=[0, 8])
    await buffer.lease({TASK: 2})
    await buffer.advance(9)
    again = crashed(buffer, max_staleness=2)
    assert [(row.uid, row.status.value) for row in await again.query({})] == [
        (1, "expired"),
        (2, "completed"),
    ]
    third = crashed(again, max_staleness=2)
    assert await picture(third) == await picture(again)
    for each in (buffer, again, third):
        await each.close()


@pytest.mark.parametrize("how", ["store", "resume"])
async def test_a_bound_that_is_configured_later_holds_at_once(tmp_path, how):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 2, versions=[0, 8])
    await buffer.put(group(seq_staleness=7), TASK)
    await buffer.advance(9)
    if how == "store":
        again = crashed(buffer, max_staleness=2, on_stale="drop")
    else:
        await buffer.save(tmp_path / "saved")
        again = fifo(tmp_path / "other", max_staleness=2, on_stale="drop")
        await again.resume(tmp_path / "saved")
    assert [row.uid for row in await again.query({})] == [2]
    assert (await again.ledger())[TASK]["expired"].groups == 2
    for each in (buffer, again):
        await each.close()
