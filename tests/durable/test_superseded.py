"""Groups that two producers roll again, because the buffer was opened anew in between: one result is stored, and one refused."""

import asyncio

import pytest

from durable.stores import cancelled, copy_of, crashed, fifo, stalled, while_writing
from replay.buffers import TASK, group
from reroll import InvalidArgument, ReplayBufferConfig, Superseded
from reroll.engine.ledger import closes
from reroll.testing.buffer.rolled_again import own
from reroll.testing.buffer.rolled_again import rolled as again
from reroll.testing.probe import probe


async def handed_out_twice(store, **options):
    """Return a buffer that was opened again, and a group of it as two producers have it."""
    buffer = fifo(store, **options)
    await buffer.put(group(status="aborted"), TASK)
    (first,) = await buffer.get(1, TASK, "aborted")
    reopened = crashed(buffer, **options)
    await buffer.close()
    (second,) = await reopened.get(1, TASK, "aborted")
    return reopened, first, second


def rolled(rollouts, tokens=4, status="completed"):
    for rollout in rollouts:
        rollout.response_ids, rollout.status = [9] * tokens, status
        rollout.response_model_steps = rollout.response_mask = rollout.num_tokens = None
    return rollouts


async def check(buffer, *, refused, completed=1, put=1):
    books, stats = (await buffer.ledger())[TASK], (await buffer.stats()).tasks[TASK]
    assert closes(books)
    assert (books["put"].groups, await buffer.count(TASK, "completed")) == (put, completed)
    assert stats.superseded == refused


@pytest.mark.parametrize("quicker", [0, 1], ids=["the first holder", "the second holder"])
async def test_whoever_puts_first_is_stored_and_the_other_is_refused(tmp_path, quicker):
    buffer, *holders = await handed_out_twice(tmp_path / "store")
    assert await buffer.put(rolled(holders[quicker], tokens=5), TASK) == 1
    late = rolled(holders[1 - quicker], tokens=6)
    with pytest.raises(Superseded, match=r"group 1 .* group_uid to None"):
        await buffer.put(late, TASK)
    await check(buffer, refused=1)
    (trained,) = await buffer.get(9, TASK, "completed")
    assert trained[0].response_ids.tolist() == [9] * 5
    with pytest.raises(Superseded):  # however late, and however often
        await buffer.put(late, TASK)
    await check(buffer, refused=2, completed=0)
    await buffer.close()


async def test_it_is_refused_also_by_uid_and_after_the_next_crash(tmp_path):
    buffer, first, second = await handed_out_twice(tmp_path / "store")
    await buffer.put(rolled(second), TASK)
    reopened = crashed(buffer)
    (copied,) = group()
    assert copied.group_uid is None
    for late, uid in ((rolled(first), None), ([copied], 1)):
        with pytest.raises(Superseded):
            await reopened.put(late, TASK, uid=uid)
    await check(reopened, refused=2)
    with pytest.raises(InvalidArgument, match="group 7 is not checked out"):
        await reopened.put([copied], TASK, uid=7)
    for each in (buffer, reopened):
        await each.close()


async def test_a_group_that_was_given_up_is_new_also_after_a_crash(tmp_path):
    buffer = fifo(tmp_path / "store")
    await buffer.put(group(status="aborted"), TASK)
    (taken,) = await buffer.get(1, TASK, "aborted")
    await buffer.forget([1])
    reopened = crashed(buffer)
    assert await reopened.put(rolled(taken), TASK) == 2
    await check(reopened, refused=0, put=2)
    for each in (buffer, reopened):
        await each.close()


async def test_what_is_refused_can_be_put_as_a_new_group(tmp_path):
    buffer, first, second = await handed_out_twice(tmp_path / "store")
    await buffer.put(rolled(second), TASK)
    for rollout in rolled(first):
        rollout.group_uid = None
    assert await buffer.put(first, TASK) == 2
    await buffer.close()


async def test_a_put_that_is_repeated_is_the_same_put(tmp_path):
    buffer, first, second = await handed_out_twice(tmp_path / "store")
    for _ in range(2):
        assert await buffer.put(rolled(second), TASK, put_id="second") == 1
    with pytest.raises(Superseded):
        await buffer.put(rolled(first), TASK, put_id="first")
    assert await buffer.put(rolled(second), TASK, uid=1, put_id="second") == 1
    await check(buffer, refused=1)
    await buffer.close()


async def test_one_of_two_that_wait_for_room_is_refused(tmp_path):
    buffer, *holders = await handed_out_twice(tmp_path / "store", capacity=1)
    await buffer.put(group(), TASK)
    puts = [asyncio.ensure_future(buffer.put(rolled(held), TASK)) for held in holders]
    async with asyncio.timeout(60):
        while probe(buffer).waits.waiting(("put", TASK)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await buffer.get(1, TASK, "completed")
    assert await puts[0] == 1
    await buffer.get(1, TASK, "completed")
    with pytest.raises(Superseded):
        await puts[1]
    assert (await buffer.ledger())[TASK]["put"].groups == 2
    await buffer.close()


@pytest.mark.parametrize("acks", [True, False])
async def test_the_first_put_wins_also_while_the_group_is_leased_to_another(tmp_path, acks):
    buffer = fifo(tmp_path / "store")
    await buffer.put(group(status="aborted"), TASK)
    (first,) = await buffer.get(1, TASK, "aborted")
    reopened = crashed(buffer)
    lent = await reopened.lease({TASK: 1}, group_status="aborted")
    (second,) = lent.groups[TASK]
    assert await reopened.put(rolled(first, tokens=5), TASK, put_id="first") == 1
    await (lent.ack() if acks else lent.nack())
    with pytest.raises(Superseded):
        await reopened.put(rolled(second), TASK, put_id="second")
    assert await reopened.put(rolled(first), TASK, put_id="first") == 1  # repeated
    await check(reopened, refused=1)
    for each in (buffer, reopened):
        await each.close()


@pytest.mark.parametrize(
    "make", [lambda: group(status="aborted", version=1), own], ids=["Rollout", "own class"]
)
@pytest.mark.parametrize("end", ["close", "kill", "ttl"])
async def test_the_holder_of_a_lease_may_put_its_group_however_the_lease_ended(tmp_path, make, end):
    buffer = fifo(tmp_path / "store")
    await buffer.put(make(), TASK)
    batch = await buffer.lease({TASK: 1}, group_status="aborted")
    held = again(batch.groups[TASK][0])
    if end == "ttl":
        await buffer.end_lease(batch.id)
        reopened = buffer
    elif end == "kill":
        reopened = crashed(buffer)
    else:
        await buffer.close()
        reopened = fifo(tmp_path / "store")
    assert await reopened.count(TASK, "aborted") == 1
    assert await reopened.put(held, TASK) == 1
    await check(reopened, refused=0)
    for each in (buffer, reopened):
        await each.close()


async def test_what_comes_back_unfinished_goes_round_as_any_other(tmp_path):
    buffer, first, second = await handed_out_twice(tmp_path / "store")
    await buffer.put(rolled(first, status="aborted"), TASK)
    with pytest.raises(Superseded):
        await buffer.put(rolled(second), TASK)
    (again,) = await buffer.get(1, TASK, "aborted")
    assert await buffer.put(rolled(again), TASK) == 1
    await check(buffer, refused=1)
    await buffer.close()


async def test_a_hand_out_that_reached_nobody_supersedes_nobody(tmp_path):
    buffer = fifo(tmp_path / "store")
    await buffer.put(group(status="aborted"), TASK)
    (first,) = await buffer.get(1, TASK, "aborted")
    reopened = crashed(buffer)
    with stalled(reopened):
        await cancelled(await while_writing(reopened.get(1, TASK, "aborted")))
        putting = asyncio.ensure_future(reopened.put(rolled(first), TASK))
    assert await putting == 1
    await check(reopened, refused=0)
    for each in (buffer, reopened):
        await each.close()


async def test_a_checkpoint_that_is_resumed_is_a_restart(tmp_path):
    buffer = fifo(tmp_path / "store")
    await buffer.put(group(status="aborted"), TASK)
    (first,) = await buffer.get(1, TASK, "aborted")
    await buffer.save(tmp_path / "saved")
    await buffer.close()
    resumed = ReplayBufferConfig(sampler="fifo").build()
    await resumed.resume(tmp_path / "saved")
    (second,) = await resumed.get(1, TASK, "aborted")
    await resumed.put(rolled(second), TASK)
    with pytest.raises(Superseded):
        await resumed.put(rolled(first), TASK)
    await check(resumed, refused=1)


def test_blocking_buffers_have_the_same_rule(tmp_path):
    config = ReplayBufferConfig(sampler="fifo", store=tmp_path / "store")
    buffer = config.build_blocking()
    buffer.put(group(status="aborted"), TASK)
    (first,) = buffer.get(1, TASK, "aborted")
    reopened = config.model_copy(update={"store": copy_of(tmp_path / "store")}).build_blocking()
    buffer.close()
    (second,) = reopened.get(1, TASK, "aborted")
    reopened.put(rolled(second), TASK)
    with pytest.raises(Superseded):
        reopened.put(rolled(first), TASK)
    reopened.close()
