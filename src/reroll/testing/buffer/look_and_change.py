"""Count, look, change; ledger and close."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from reroll.engine.ledger import Amount, closes
from reroll.errors import Closed, InvalidArgument, InvalidPriority, QueryError, UnknownUid
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    FAILED,
    FILTERED,
    New,
    bucket,
    group,
    names,
    picture,
    put_all,
    refused,
    rollout,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks
from reroll.testing.buffer.wrong_calls import EVERY_VERB


class LookAndChangeSuite(Hooks):
    """Reads, and changes of single groups."""

    # --- count and look

    async def test_the_matrix_of_counts_is_complete(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(), group(), group(status=ABORTED))
        counts = await buffer.count_statuses(["t", "unknown"], [COMPLETED, "aborted", FAILED])
        assert counts == {
            "t": {COMPLETED: 2, ABORTED: 1, FAILED: 0},
            "unknown": {COMPLETED: 0, ABORTED: 0, FAILED: 0},
        }
        assert counts["t"]["aborted"] == await buffer.count("t", "aborted") == 1
        assert await buffer.count_statuses([], [COMPLETED]) == {}
        assert len(buffer) == 3

    async def test_is_ready_says_what_take_batch_would_give(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(), group(status=ABORTED))
        assert await buffer.is_ready({"t": 1})
        assert await buffer.is_ready({"t": 1}, group_status="aborted")
        assert await buffer.is_ready({"t": 0, "u": -1})
        assert await buffer.is_ready({})
        assert not await buffer.is_ready({"t": 2})
        assert not await buffer.is_ready({"t": 1, "u": 1})
        assert await buffer.wait_ready({"t": 1}, timeout=0) is None

    async def test_rows_tell_what_is_known(self, new: New) -> None:
        buffer = await new()
        items = [
            rollout(3, versions=[2, 4, 4], reward=1.0, group_id="g"),
            rollout(1, versions=5, reward={"score": 0.0}),
        ]
        await buffer.put(items, "t", priority=2.5, tags={"level": 3}, current_train_step=6)
        row = await row_of(buffer, 1)
        assert (row.task_name, row.status, row.staleness, row.version) == ("t", COMPLETED, 3, 2)
        assert (row.priority, row.times_sampled, row.attempts, row.deliveries) == (2.5, 0, 1, 0)
        assert (row.num_rollouts, row.num_tokens, row.reward_mean, row.reward_std) == (2, 10, 0.5, 0.5)
        assert (row.group_id, row.tags) == ("g", {"level": 3})
        assert row.num_bytes > 0

    async def test_query_finds_orders_and_limits(self, new: New) -> None:
        buffer = await new()
        for index, reward in enumerate((0.5, None, 1.0, 0.5)):
            await buffer.put(group(index, reward=reward), "tu"[index % 2], tags={"even": index % 2 == 0})

        async def found(where: Any, **options: Any) -> list[int]:
            return [row.uid for row in await buffer.query(where, **options)]

        assert await found({}) == [1, 2, 3, 4]
        assert await found({"task_name": "u"}) == [2, 4]
        assert await found({"tags.even": True, "reward_mean": {"$lt": 1.0}}) == [1]
        assert await found({"$not": {"uid": {"$in": [1, 2]}}}) == [3, 4]
        assert await found({}, order_by="reward_mean") == [1, 4, 3, 2]
        assert await found({}, order_by="-reward_mean", limit=2) == [3, 1]
        assert await found({}, limit=0) == []
        assert await found({}, order_by="-reward_mean", limit=2, offset=1) == [1, 4]
        assert await found({}, order_by="task_name", offset=2) == [2, 4]
        assert await found({}, offset=4) == []
        assert await buffer.count_where({"task_name": "u"}) == 2
        with pytest.raises(InvalidArgument, match="offset"):
            await buffer.query({}, offset=-1)
        with pytest.raises(QueryError, match="above"):
            await buffer.query({"uid": {"$above": 1}})
        with pytest.raises(QueryError, match="above"):
            await buffer.count_where({"uid": {"$above": 1}})

    async def test_rows_can_be_ordered_by_group_ids_of_several_kinds(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("b"), group(2), group(None), group("a"), group(1))
        found = [row.group_id for row in await buffer.query({}, order_by="group_id")]
        assert found[-1] is None
        assert [name for name in found if isinstance(name, str)] == ["a", "b"]
        assert [name for name in found if isinstance(name, int)] == [1, 2]

    async def test_peek_takes_nothing(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", group("a"), group("b", status=FAILED))
        before = await picture(buffer)
        assert names(await buffer.peek([uids[1], uids[0], uids[1]])) == ["b", "a", "b"]
        assert await buffer.peek([]) == []
        assert await picture(buffer) == before
        async with refused(buffer, UnknownUid, "99"):
            await buffer.peek([uids[0], 99])
        with pytest.raises(KeyError):
            await buffer.peek([0])

    # --- change

    async def test_delete_by_uid_or_query(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", *(group(index, reward=index) for index in range(4)))
        assert await buffer.delete([uids[0], 99, uids[0]]) == 1
        assert await buffer.delete({"reward_mean": {"$gte": 2}}) == 2
        assert [row.uid for row in await buffer.query({})] == [uids[1]]
        assert await bucket(buffer, "deleted") == Amount(3, 15)
        assert await buffer.delete({}) == 1
        assert await buffer.delete([]) == 0

    async def test_priorities_can_change(self, new: New) -> None:
        buffer = await new(sampler="max_heap")
        uids = await put_all(buffer, "t", *(group(name) for name in "abc"))
        assert await buffer.update_priorities({uids[1]: 3, 99: 1.0, uids[0]: 2.0}) == [99]
        async with refused(buffer, InvalidPriority, "priority of"):
            await buffer.update_priorities({uids[2]: 9.0, uids[0]: -1.0})
        assert [row.priority for row in await buffer.query({})] == [2.0, 3.0, 1.0]
        assert names(await buffer.get(3, "t", COMPLETED)) == ["b", "a", "c"]
        assert await buffer.update_priorities({uids[0]: 1.0}) == [uids[0]]

    async def test_patch_adds_late_fields(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(members=2), "t", tags={"x": 1, "y": 1})
        await buffer.patch(uid, reward=[1.0, {"score": 0.0}], ref_logprobs=[[0.1], [0.2]], tags={"y": 2})
        row = await row_of(buffer, uid)
        assert (row.reward_mean, row.reward_std, row.tags) == (0.5, 0.5, {"x": 1, "y": 2})
        (members,) = await buffer.get(1, "t", COMPLETED)
        assert [member.extra_fields["ref_logprobs"] for member in members] == [[0.1], [0.2]]
        assert members[0].reward == 1.0
        async with refused(buffer, UnknownUid):
            await buffer.patch(uid, reward=[1.0, 1.0])

    async def test_patch_puts_names_that_are_no_fields_into_extra_fields(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(), "t")
        await buffer.patch(uid, reward=[5.0], state=[1], from_dict=[2])
        ((patched,),) = await buffer.peek([uid])
        assert (patched.reward, patched.extra_fields) == (5.0, {"state": 1, "from_dict": 2})

    async def test_patch_of_an_expired_group_stays(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=1, reward=0.0), "t")
        await buffer.refresh_staleness(task_stale_thresholds={"t": 1}, current_train_step=9)
        await buffer.patch(uid, reward=[0.5])
        assert (await row_of(buffer, uid)).reward_mean == 0.5
        ((member,),) = await buffer.get(1, "t", EXPIRED)
        assert (member.reward, len(member.response_ids)) == (0.5, 0)

    async def test_patch_of_the_mask_counts_for_expiry(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=[1, 8]), "t")
        await buffer.patch(uid, response_mask=[[1, 0]])
        result = await buffer.refresh_staleness(
            task_stale_thresholds={}, task_token_stale_thresholds={"t": 3}, current_train_step=9
        )
        assert result == {"t": 1}

    # --- ledger, close

    async def test_every_group_is_in_one_bucket(self, new: New) -> None:
        buffer = await new(capacity=3, remover="fifo", rejected_capacity=1)
        groups = {name: group(name, versions=8) for name in "abcd"}
        await put_all(buffer, "t", *groups.values())  # evicts a
        await buffer.get(1, "t", COMPLETED)  # consumes b
        await buffer.put(group("old", versions=1), "t", current_train_step=9, stale_threshold=4)  # wiped
        await buffer.put(group("f1", status=FAILED), "t")
        await buffer.put(group("f2", status=FILTERED), "t")  # f1 leaves the ring
        await buffer.put(group("p", status=ABORTED), "t")
        await buffer.get(1, "t", ABORTED)  # out
        await buffer.delete([3])
        books = (await buffer.ledger())["t"]
        assert closes(books)
        assert {name: amount for name, amount in books.items() if any(amount)} == {
            "put": Amount(8, 40, 1, 5),
            "resident": Amount(3, 13),
            "out": Amount(1, 5),
            "consumed": Amount(1, 5, 1, 5),
            "expired": Amount(0, 2),
            "evicted": Amount(1, 5),
            "failed": Amount(1, 5),
            "deleted": Amount(1, 5),
        }

    @pytest.mark.parametrize("verb", EVERY_VERB.values(), ids=EVERY_VERB)
    async def test_a_closed_buffer_does_nothing(
        self, new: New, verb: Callable[[Any], Awaitable[Any]]
    ) -> None:
        buffer = await new()
        await buffer.put(group(), "t")
        await buffer.close()
        with pytest.raises(Closed):
            await verb(buffer)
        await buffer.close()

    # --- late fields of many groups

    async def test_patch_many_patches_in_one_step_and_reports_groups_that_are_gone(self, new: New) -> None:
        buffer = await new()
        first, second = await put_all(buffer, "t", group("a", members=2), group("b"))
        patches = {
            first: {"reward": [1.0, 0.0], "tags": {"level": 2}},
            999: {"reward": [1.0]},
            second: {"judge": ["ok"]},
        }
        assert await buffer.patch_many(patches) == [999]
        (row,) = await buffer.query({"tags.level": 2})
        assert (row.uid, row.reward_mean) == (first, 0.5)
        ((judged,),) = await buffer.peek([second])
        assert judged.extra_fields == {"judge": "ok"}
        assert await buffer.patch_many({}) == []

    @pytest.mark.parametrize(
        "patches",
        [
            {1: {"reward": [1.0]}, 2: {"reward": [1.0, 2.0]}},
            {1: {"reward": [1.0]}, 2: {"status": ["failed"]}},
            {1: {"reward": [1.0]}, 2: {"reward": ["x"]}},
            {1: {"reward": [1.0]}, 2: {"tags": {"level": [1]}}},
            {1: {"reward": [1.0]}, 2: 5},
            {1: {"reward": [1.0]}, "2": {}},
            [1, 2],
        ],
    )
    async def test_patch_many_changes_nothing_if_one_patch_is_wrong(self, new: New, patches: Any) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("a"), group("b"))
        async with refused(buffer, InvalidArgument):
            await buffer.patch_many(patches)
        assert [rollout.reward for (rollout,) in await buffer.peek([1, 2])] == [None, None]

    async def test_patch_many_keeps_newer_values_if_asked(self, new: New) -> None:
        buffer = await new()
        (uid,) = await put_all(buffer, "t", group())
        for step, reward, expected in ((5, 0.5, 0.5), (4, 0.4, 0.5), (5, 0.9, 0.5), (6, 0.6, 0.6)):
            assert await buffer.patch_many({uid: {"reward": [reward]}}, only_if_newer=step) == []
            assert (await row_of(buffer, uid)).reward_mean == expected
        await buffer.patch_many({uid: {"reward": [0.1]}})
        assert (await row_of(buffer, uid)).reward_mean == 0.1
        async with refused(buffer, InvalidArgument):
            await buffer.patch_many({uid: {"reward": [0.2]}}, only_if_newer=-1)
