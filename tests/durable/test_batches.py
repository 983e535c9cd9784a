"""Batches of a usual size on disk: seen by other processes, after a crash, and in a copy."""

import pytest

from durable.stores import copy_of, crashed, fifo, picture
from replay.buffers import TASK, books, fill, uids_of
from reroll import open_readonly


async def test_a_batch_is_seen_by_others_and_survives_a_crash(tmp_path):
    buffer = fifo(tmp_path / "store")
    uids = await fill(buffer, 60)
    assert uids_of(await buffer.get(20, TASK, "completed", train_step=1)) == uids[:20]
    assert uids_of(await buffer.get(20, TASK, "completed", train_step=2)) == uids[20:40]
    seen = await picture(buffer)
    with open_readonly(tmp_path / "store") as other:
        assert other.query({}) == seen["rows"]
        assert other.ledger()[TASK] == await books(buffer)
        assert (
            other.to_arrow(place=None).column("place").to_pylist() == ["uncommitted"] * 40 + ["resident"] * 20
        )
    again = crashed(buffer)
    assert await picture(again) == seen
    assert await again.rewind(1) == 20
    assert uids_of(await again.get(20, TASK, "completed", train_step=2)) == uids[20:40]
    assert await again.commit(2) == 40
    twice = crashed(again)
    assert await picture(twice) == await picture(again)
    assert [row.uid for row in await twice.query({})] == uids[40:]
    for one in (buffer, again, twice):
        await one.close()


@pytest.mark.parametrize("how", ["taken", "acknowledged", "acknowledged late"])
async def test_what_was_consumed_is_in_memory_no_longer_and_comes_back_whole(tmp_path, how):
    buffer = fifo(tmp_path / "store")
    uids = await fill(buffer, 12)
    assert (await buffer.stats()).memory_bytes > 0
    if how == "taken":
        await buffer.get(12, TASK, "completed", train_step=1)
    else:
        batch = await buffer.lease({TASK: 12}, train_step=1)
        if how == "acknowledged late":
            await buffer.end_lease(batch.id)
        await batch.ack()
    assert (await books(buffer))["uncommitted"].groups == 12
    assert (await buffer.stats()).memory_bytes == 0
    assert await buffer.rewind(0) == 12
    back = await buffer.get(12, TASK, "completed")
    assert uids_of(back) == uids
    assert {tuple(rollout.response_ids) for (rollout,) in back} == {(7, 7)}
    await buffer.close()


async def test_what_is_saved_or_closed_has_the_batch_too(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 40)
    await buffer.get(20, TASK, "completed", train_step=1)
    seen = await picture(buffer)
    await buffer.save(tmp_path / "saved")
    resumed = fifo(tmp_path / "other")
    await resumed.resume(tmp_path / "saved")
    left = copy_of(tmp_path / "store")
    await buffer.close()
    reopened = fifo(tmp_path / "store")
    from_log = fifo(left)
    for one in (resumed, reopened, from_log):
        assert await picture(one) == seen
        assert await one.rewind(0) == 20
        assert len(one) == 40
        await one.close()
