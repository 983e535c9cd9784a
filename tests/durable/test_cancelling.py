"""Calls that are cancelled while the disk writes: nobody got anything, nothing is lost, nothing is there twice."""

import asyncio
from contextlib import ExitStack

import pytest

from durable.stores import cancelled, crashed, fifo, passed, picture, stalled, while_writing
from replay.buffers import TASK, fill, group, uids_of
from reroll.testing.probe import probe
from server.waiting import until


async def checked(buffer, **options):
    """Return all that is there, after a check that a crash would leave the same."""
    await probe(buffer).disk.drained()
    again = crashed(buffer, **options)
    mine, theirs = await picture(buffer), await picture(again)
    assert mine == theirs
    await again.close()
    return mine


@pytest.mark.parametrize("step", [None, 3])
@pytest.mark.parametrize("status", ["completed", "aborted", "failed"])
async def test_a_take(tmp_path, status, step):
    buffer = fifo(tmp_path / "store")
    for _ in range(3):
        await buffer.put(group(status=status), TASK)
    before = await picture(buffer)
    with stalled(buffer):
        taker = await while_writing(buffer.get(2, TASK, status, train_step=step))
        assert not taker.done()
        await cancelled(taker)
    after = await checked(buffer)
    assert after["ledger"] == before["ledger"]
    assert after["rows"] == before["rows"]
    assert uids_of(await buffer.get(5, TASK, status)) == [1, 2, 3]
    await buffer.close()


@pytest.mark.parametrize("verb", ["sample", "lease"])
async def test_a_draw(tmp_path, verb):
    options = {"max_times_sampled": 2}
    buffer = fifo(tmp_path / "store", **options)
    await fill(buffer, 3)
    await buffer.sample(1, TASK)
    before, counted = await picture(buffer), await passed(buffer)
    call = buffer.sample(2, TASK) if verb == "sample" else buffer.lease({TASK: 2})
    with stalled(buffer):
        draw = await while_writing(call)
        await cancelled(draw)
    after = await checked(buffer, **options)
    assert after["ledger"] == before["ledger"]
    assert [row.times_sampled for row in after["rows"]] == [1, 0, 0]
    assert (await passed(buffer))[TASK][2].groups == counted[TASK][2].groups == 1
    assert [s.info.uid for s in await buffer.sample(2, TASK)] == [1, 2]
    await buffer.close()


async def test_a_take_that_is_cancelled_is_undone_on_disk_though_nobody_calls_any_more(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 3)
    before = probe(buffer).disk.store.commits
    with stalled(buffer):
        taker = await while_writing(buffer.get(2, TASK, "completed"))
        await until(lambda: probe(buffer).disk._now is not None)
        await cancelled(taker)
    await until(lambda: probe(buffer).disk.store.commits == before + 2, timeout_s=30)  # taken, and undone
    again = crashed(buffer)
    assert uids_of(await again.get(9, TASK, "completed")) == [1, 2, 3]
    await buffer.close()
    await again.close()


async def test_a_take_of_a_step_that_is_committed_meanwhile(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 3)
    with stalled(buffer):
        taker = await while_writing(buffer.get(2, TASK, "completed", train_step=1))
        committing = await while_writing(buffer.commit(1))
        newcomer = await while_writing(buffer.put(group(), TASK))
        await cancelled(taker)
    await committing
    await newcomer
    after = await checked(buffer)
    assert [row.uid for row in after["rows"]] == [3, 4]
    assert after["ledger"][TASK]["consumed"].groups == 2, (
        "the trainer said that its checkpoint holds that step"
    )
    assert uids_of(await buffer.get(5, TASK, "completed")) == [3, 4]
    await buffer.close()


async def test_a_take_that_is_rewound_meanwhile(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 3)
    with stalled(buffer):
        taker = await while_writing(buffer.get(2, TASK, "completed", train_step=1))
        rewinding = await while_writing(buffer.rewind(0))
        again = await while_writing(buffer.get(1, TASK, "completed", train_step=1))
        await cancelled(taker)
    assert await rewinding == 2
    assert uids_of(await again) == [1]
    after = await checked(buffer)
    assert [(row.uid, row.times_sampled) for row in after["rows"]] == [(2, 0), (3, 0)]
    assert probe(buffer).engine.tasks[TASK].counters.samples == 1
    await buffer.close()


async def test_a_draw_of_a_group_that_is_deleted_meanwhile(tmp_path):
    options = {"max_times_sampled": 5}
    buffer = fifo(tmp_path / "store", **options)
    await fill(buffer, 2)
    await buffer.sample(1, TASK)
    with stalled(buffer):
        draw = await while_writing(buffer.sample(2, TASK))
        deleting = await while_writing(buffer.delete([1]))
        putting = await while_writing(buffer.put(group(), TASK))
        newer = await while_writing(buffer.sample(2, TASK))
        await cancelled(draw)
    await asyncio.gather(deleting, putting, newer)
    after = await checked(buffer, **options)
    assert [(row.uid, row.times_sampled) for row in after["rows"]] == [(2, 1), (3, 1)]
    await buffer.close()


@pytest.mark.parametrize("what", ["forget", "put"])
async def test_a_take_to_roll_again_that_somebody_ends_meanwhile(tmp_path, what):
    buffer = fifo(tmp_path / "store")
    for _ in range(2):
        await buffer.put(group(status="aborted"), TASK)
    taker = await while_writing(buffer.get(2, TASK, "aborted"))
    with stalled(buffer):
        other = await while_writing(
            buffer.forget([1]) if what == "forget" else buffer.put(group(), TASK, uid=1)
        )
        await cancelled(taker)
    await other
    after = await checked(buffer)
    statuses = {row.uid: row.status.value for row in after["rows"]}
    assert statuses == ({2: "aborted"} if what == "forget" else {1: "completed", 2: "aborted"})
    assert probe(buffer).engine.tasks[TASK].checked_out == 0
    assert after["ledger"][TASK]["out"].groups == 0
    await buffer.close()


async def test_a_reservation(tmp_path):
    buffer = fifo(tmp_path / "store")
    with stalled(buffer):
        reserving = await while_writing(buffer.reserve(2, TASK))
        await cancelled(reserving)
    assert (await buffer.stats()).reservations == 0
    await buffer.close()


async def test_a_put_may_be_stored_and_is_stored_once_if_it_is_repeated(tmp_path):
    buffer = fifo(tmp_path / "store")
    with stalled(buffer):
        await cancelled(await while_writing(buffer.put(group(), TASK, put_id="again")))
    assert await buffer.put(group(), TASK, put_id="again") == 1
    assert [row.uid for row in (await checked(buffer))["rows"]] == [1]
    await buffer.close()


def test_an_event_loop_that_ends_while_the_disk_writes(tmp_path):
    buffer = fifo(tmp_path / "store")

    async def interrupted():
        await while_writing(buffer.put(group(), TASK, put_id="a"))
        await until(lambda: probe(buffer).disk._now is not None)

    async def goes_on(slow_disk):
        again = await while_writing(buffer.put(group(), TASK, put_id="a"))  # which changes nothing
        assert not again.done()
        slow_disk.close()
        assert await again == 1
        await buffer.close()

    with ExitStack() as slow_disk:
        slow_disk.enter_context(stalled(buffer))
        asyncio.run(interrupted())
        asyncio.run(goes_on(slow_disk))


@pytest.mark.parametrize("verb", ["take", "lease"])
async def test_groups_of_a_cancelled_call_are_bound_by_the_step_of_now(tmp_path, verb):
    options = {"max_staleness": 2}
    buffer = fifo(tmp_path / "store", **options)
    await fill(buffer, 2, versions=[0, 8])
    with stalled(buffer):
        call = buffer.get(2, TASK, "completed") if verb == "take" else buffer.lease({TASK: 2})
        taker = await while_writing(call)
        told = await while_writing(buffer.advance(9))
        await cancelled(taker)
    await told
    after = await checked(buffer, **options)
    assert [(row.uid, row.status.value) for row in after["rows"]] == [(1, "expired"), (2, "completed")]
    await buffer.close()
