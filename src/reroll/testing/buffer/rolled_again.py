"""Groups that producers roll again as copies: they travelled through Ray, pickle or a server."""

import pickle
from typing import Any

import pytest

from reroll.engine.ledger import Amount
from reroll.errors import InvalidArgument, Superseded
from reroll.rollout import DictRollout
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    New,
    bucket,
    group,
    put_all,
    refused,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks


def own(name: Any = "a", members: int = 2, **fields: Any) -> list[DictRollout]:
    """Return an aborted group of a class that has no `group_uid`."""
    return [
        DictRollout(
            {
                "status": "aborted",
                "seq_staleness": 0,
                "group_id": name,
                "rollout_id": f"{name}/{place}",
                "prompt_ids": [1, 2, 3],
                "response_ids": [place],
                "response_model_steps": [1],
                **fields,
            }
        )
        for place in range(members)
    ]


def copied(rollouts: Any) -> list[Any]:
    """Return rollouts as another process gets them."""
    copies: list[Any] = pickle.loads(pickle.dumps(list(rollouts)))  # noqa: S301  (its own bytes)
    return copies


def rolled(rollouts: Any, status: Any = COMPLETED) -> list[Any]:
    """Return copies with one more token each."""
    copies = copied(rollouts)
    for rollout in copies:
        rollout.response_ids = [*rollout.response_ids, 7]
        rollout.response_model_steps = [*rollout.response_model_steps, 2]
        rollout.status = status if isinstance(rollout.status, type(status)) else status.value
    return copies


class RolledAgainSuite(Hooks):
    """Which group a put continues."""

    @pytest.mark.parametrize("fields", [{"extra_fields": {"x": 1}}, {}, {"group_uid": None}], ids=str)
    async def test_copies_of_own_classes_continue_their_group(self, new: New, fields: dict[str, Any]) -> None:
        buffer = await new()
        uid = await buffer.put(own(**fields), "t")
        for attempt in range(5):
            (taken,) = await buffer.get(1, "t", ABORTED)
            assert await buffer.put(rolled(taken, ABORTED if attempt < 4 else COMPLETED), "t") == uid
        assert await bucket(buffer, "out") == Amount()
        assert (await bucket(buffer, "put")).groups == 1
        assert (await row_of(buffer, uid)).attempts == 6
        ((first, _),) = await buffer.get(2, "t", COMPLETED)
        assert list(first.response_ids) == [0, 7, 7, 7, 7, 7]
        assert first.data.get("extra_fields") == fields.get("extra_fields")
        assert "_reroll" not in first.data.get("extra_fields", {})

    async def test_members_may_come_back_in_another_order(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(own(), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        assert await buffer.put(rolled(taken)[::-1], "t") == uid

    @pytest.mark.parametrize(
        "changed",
        [{"group_id": "b"}, {"rollout_id": 9}, {"prompt_ids": [4]}, {"response_ids": [8, 9]}],
        ids=str,
    )
    async def test_rollouts_that_do_not_agree_are_a_new_group(
        self, new: New, changed: dict[str, Any]
    ) -> None:
        buffer = await new()
        uid = await buffer.put(own(), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        others = rolled(taken)
        for name, value in changed.items():
            setattr(others[1], name, value)
        assert await buffer.put(others, "t") != uid
        assert await buffer.put(rolled(taken), "u") != uid, "another task"
        assert (await bucket(buffer, "out")).groups == 1

    async def test_rollouts_that_may_continue_several_groups_need_the_uid(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", own(), own())
        taken = await buffer.get(2, "t", ABORTED)
        async with refused(buffer, InvalidArgument, "uid="):
            await buffer.put(rolled(taken[0]), "t")
        for uid, one in zip(uids, taken, strict=True):
            assert await buffer.put(rolled(one), "t", uid=uid) == uid
        assert await bucket(buffer, "out") == Amount()

    @pytest.mark.parametrize("make", [group, lambda: own(extra_fields={})], ids=["Rollout", "own class"])
    async def test_a_group_of_another_buffer_is_a_new_group(self, new: New, make: Any) -> None:
        here, there = await new(), await new()
        theirs = []
        for buffer in (here, there):
            items = make()
            for item in items:
                item.status = ABORTED
            uid = await buffer.put(items, "t")
            theirs += await buffer.get(1, "t", ABORTED)
        async with refused(there, InvalidArgument, "another"):
            await there.put(copied(theirs[0]), "t", uid=uid)
        assert await there.put(copied(theirs[0]), "t") != uid
        assert (await bucket(there, "out")).groups == 1
        assert await there.put(copied(theirs[1]), "t") == uid
        assert await bucket(there, "out") == Amount()
        assert (await bucket(there, "put")).groups == 2

    @pytest.mark.parametrize("make", [group, lambda: own(extra_fields={})], ids=["Rollout", "own class"])
    async def test_an_older_attempt_is_refused_and_counted(self, new: New, make: Any) -> None:
        buffer = await new()
        items = make()
        for item in items:
            item.status = ABORTED
        uid = await buffer.put(items, "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        late = copied(taken)
        assert await buffer.put(copied(taken), "t") == uid
        async with refused(buffer, Superseded, f"group {uid} is at attempt 2"):  # it waits
            await buffer.put(late, "t")
        (newer,) = await buffer.get(1, "t", ABORTED)
        async with refused(buffer, Superseded, f"group {uid} is at attempt 2"):  # another producer has it
            await buffer.put(late, "t")
        assert (await buffer.stats()).tasks["t"].superseded == 2
        for item in newer:
            item.status = COMPLETED
        assert await buffer.put(copied(newer), "t") == uid
        await buffer.get(1, "t", COMPLETED)
        async with refused(buffer, Superseded, f"group {uid}"):
            await buffer.put(late, "t")


class RolledUnderLeaseSuite(Hooks):
    """Groups that are put again, or expire, while a lease has them."""

    @pytest.mark.parametrize("fields", [{"extra_fields": {}}, {}], ids=["marked", "not marked"])
    @pytest.mark.parametrize("end", ["ack", "nack"])
    async def test_a_put_continues_a_group_under_a_lease(
        self, new: New, fields: dict[str, Any], end: str
    ) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", own("a", **fields), own("b", **fields))
        batch = await buffer.lease({"t": 2}, group_status=ABORTED)
        first, second = batch.groups["t"]
        mine = uids[0] if first[0].group_id == "a" else uids[1]
        assert await buffer.put(rolled(first), "t") == mine
        assert (await row_of(buffer, mine)).status is COMPLETED
        await getattr(batch, end)()
        assert await buffer.count("t", ABORTED) == (end == "nack")
        assert (await bucket(buffer, "out")).groups == (end == "ack")
        if end == "ack" or fields:  # a mark holds also after the group was given back
            await buffer.put(rolled(second), "t")
            assert await bucket(buffer, "out") == Amount()
            assert await buffer.count("t", COMPLETED) == 2
            assert (await bucket(buffer, "put")).groups == 2
        assert await bucket(buffer, "leased") == Amount()

    async def test_an_ack_leaves_a_group_that_expired_meanwhile_to_be_rolled_again(self, new: New) -> None:
        for late in (False, True):
            buffer = await new(max_times_sampled=3)
            uid = await buffer.put(group(versions=1), "t", current_train_step=2)
            batch = await buffer.lease({"t": 1})
            if late:
                await buffer.end_lease(batch.id)
            await buffer.refresh_staleness(task_stale_thresholds={"t": 2}, current_train_step=9)
            assert (await row_of(buffer, uid)).status is EXPIRED
            await batch.ack()
            assert (await row_of(buffer, uid)).status is EXPIRED
            assert (await bucket(buffer, "resident")).trained_groups == 1

    async def test_a_leased_expired_group_is_dropped_if_it_is_not_to_be_rolled_again(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(status=EXPIRED), "t")
        batch = await buffer.lease({"t": 1}, group_status=EXPIRED)
        await buffer.refresh_staleness(
            task_stale_thresholds={"t": 3},
            current_train_step=9,
            expired_groups_retryable_by_task={"t": False},
        )
        await batch.nack()
        assert len(buffer) == 0
        assert (await bucket(buffer, "expired")).groups == 1
