"""`put_many`: as that many puts in order, all or none."""

import asyncio

import pytest

from reroll.engine.ledger import Amount
from reroll.engine.limits import Queue
from reroll.errors import InvalidArgument, Superseded, WaitTimeout
from reroll.group import RolloutGroup
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    FAILED,
    New,
    bucket,
    group,
    names,
    refused,
    rollout,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks


class ManyPutsSuite(Hooks):
    """What `put_many` does."""

    async def test_put_many_stores_groups_in_order(self, new: New) -> None:
        buffer = await new()
        mixed = [group("a", 2), RolloutGroup.of(group("b")), group("c", status=FAILED), [], group("d")]
        first, second, failed, empty, last = await buffer.put_many(
            mixed,
            "t",
            model_step=3,
            current_train_step=5,
            priorities=[1, 2, None, None, 4],
            tags=[{"x": 1}] * 5,
        )
        assert empty is None
        assert len({first, second, failed, last}) == 4
        rows = {row.uid: row for row in await buffer.query({})}
        assert [rows[uid].priority for uid in (first, second, last)] == [1, 2, 4]
        assert rows[failed].status is FAILED
        assert {row.staleness for row in rows.values()} == {1}
        assert await buffer.count_where({"tags.x": 1}) == 4
        assert await bucket(buffer, "put") == Amount(5 - 1, sum(row.num_tokens for row in rows.values()))
        assert sorted(names(await buffer.get(9, "t", COMPLETED))) == ["a", "b", "d"]

    async def test_put_many_of_nothing_stores_nothing(self, new: New) -> None:
        buffer = await new()
        assert await buffer.put_many([], "t") == []
        assert await buffer.put_many([[], ()], "t", put_ids=["a", "b"]) == [None, None]
        assert len(buffer) == 0

    async def test_put_many_writes_uids_to_the_callers_rollouts(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(), "t")
        uids = await buffer.put_many([group("a"), group("b", 2)], "t", model_step=1)
        for uid, rollouts in zip(uids, await buffer.peek(uids), strict=True):
            assert {item.group_uid for item in rollouts} == {uid}
            assert all(list(item.response_model_steps) == [1, 1] for item in rollouts)

    async def test_put_many_stores_nothing_if_one_group_is_wrong(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(), "t")
        async with refused(buffer, InvalidArgument, r"groups\[1\].*reward"):
            await buffer.put_many([group("a"), [rollout(reward="high")], group("b")], "t")
        async with refused(buffer, InvalidArgument, "2 entries for 1"):
            await buffer.put_many([group("a")], "t", priorities=[1, 2])
        async with refused(buffer, InvalidArgument, "groups"):
            await buffer.put_many(5, "t")
        async with refused(buffer, InvalidArgument, "items"):
            await buffer.put_many([5], "t")

    async def test_put_many_with_known_ids_stores_only_the_others(self, new: New) -> None:
        buffer = await new()
        known = await buffer.put(group("a"), "t", put_id="a")
        once = [group("a"), group("b"), group("b")]
        first = await buffer.put_many(once, "t", put_ids=["a", "b", "b"])
        assert first[0] == known
        assert first[1] == first[2] != known
        assert await buffer.put_many([group("b"), group("a")], "t", put_ids=["b", "a"]) == [first[1], known]
        assert len(buffer) == 2

    async def test_put_many_continues_checked_out_groups(self, new: New) -> None:
        buffer = await new()
        uids = await buffer.put_many([group(n, status=ABORTED) for n in "abc"], "t")
        taken = await buffer.get(3, "t", ABORTED)
        for rollouts in taken:
            for item in rollouts:
                item.append([7, 8])
                item.status = COMPLETED
        stored = await buffer.put_many([*taken, group("new")], "t")
        assert sorted(stored[:3]) == sorted(uids)
        assert {(await row_of(buffer, uid)).attempts for uid in uids} == {2}
        assert await buffer.count("t", COMPLETED) == 4
        async with refused(buffer, Superseded):
            await buffer.put_many([group("late"), group("a")], "t", uids=[None, uids[0]])

    async def test_put_many_refuses_two_results_for_one_group(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group("a", status=ABORTED), "t")
        await buffer.get(1, "t", ABORTED)
        async with refused(buffer, InvalidArgument, rf"groups\[1\] continues group {uid}"):
            await buffer.put_many([group("a"), group("a")], "t", uids=[uid, uid])

    async def test_put_many_expires_and_drops_as_put_does(self, new: New) -> None:
        buffer = await new()
        stale = [group("old", versions=0), group("young", versions=4)]
        old, young = await buffer.put_many(stale, "t", current_train_step=5, stale_threshold=3)
        assert (await row_of(buffer, old)).status is EXPIRED
        assert (await row_of(buffer, young)).status is COMPLETED
        again = [group("old", versions=0), group("young", versions=4)]
        dropped, kept = await buffer.put_many(
            again, "t", current_train_step=5, stale_threshold=3, expired_groups_retryable=False
        )
        assert dropped is None
        assert kept is not None
        assert len(buffer) == 3

    async def test_put_many_evicts_as_that_many_puts_do(self, new: New) -> None:
        buffer = await new(capacity=3, remover="fifo")
        await buffer.put_many([group(n) for n in "abcde"], "t")
        assert names(await buffer.get(9, "t", COMPLETED)) == ["c", "d", "e"]

    async def test_put_many_refuses_more_than_can_ever_enter(self, new: New) -> None:
        buffer = await new(capacity=3)
        async with refused(buffer, InvalidArgument, "capacity"):
            await buffer.put_many([group(n) for n in "abcd"], "t")
        limited = await new(rate_limiter=Queue(2))
        async with refused(limited, InvalidArgument, "put fewer"):
            await limited.put_many([group(n) for n in "abc"], "t")


class ManyPutsWaitingSuite(Hooks):
    """How `put_many` waits."""

    async def test_put_many_waits_for_room_for_all(self, new: New) -> None:
        buffer = await new(capacity=3)
        await buffer.put_many([group("a"), group("b")], "t")
        with pytest.raises(WaitTimeout):
            await buffer.put_many([group("c"), group("d")], "t", timeout=0)
        assert len(buffer) == 2
        putting = asyncio.ensure_future(buffer.put_many([group("c"), group("d")], "t", timeout=60))
        await asyncio.sleep(0)
        assert names(await buffer.get(1, "t", COMPLETED)) == ["a"]
        assert len(await putting) == 2
        assert names(await buffer.get(9, "t", COMPLETED)) == ["b", "c", "d"]

    async def test_a_reservation_covers_the_groups_of_put_many(self, new: New) -> None:
        buffer = await new(capacity=2)
        await buffer.put_many([group("a"), group("b")], "t")
        reservation = await buffer.reserve(2, "t")
        assert (
            len(await buffer.put_many([group("c"), group("d")], "t", reservation=reservation, timeout=0)) == 2
        )
        assert await buffer.release(reservation) == 0
        with pytest.raises(WaitTimeout):
            await buffer.put_many([group("e")], "t", reservation=reservation, timeout=0)
