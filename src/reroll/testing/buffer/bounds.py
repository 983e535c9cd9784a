"""The staleness bound: `max_staleness` and `on_stale`."""

from typing import Any

import pytest

from reroll.config import TaskConfig
from reroll.engine.ledger import Amount
from reroll.testing.buffer.builders import (
    COMPLETED,
    EXPIRED,
    New,
    bucket,
    group,
    names,
    put_all,
    rollout,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks


async def _versions(buffer: Any, *versions: int, **options: Any) -> list[Any]:
    return await put_all(buffer, "t", *(group(v, versions=v) for v in versions), **options)


async def _hand_out(buffer: Any, how: str, n: int, **options: Any) -> list[Any]:
    """Return up to n groups, whichever verb gives them."""
    match how:
        case "get":
            return list(await buffer.get(n, "t", COMPLETED, **options))
        case "take_batch":
            groups, _ = await buffer.take_batch({"t": n}, **options)
            return list(groups["t"])
        case _:
            return [sample.group for sample in await buffer.sample(n, "t", allow_short=True, **options)]


async def _grow(buffer: Any, how: str, step: int) -> None:
    """Let a task learn a training step, in one of the ways that there are."""
    match how:
        case "put":
            await buffer.put(group("new", versions=step - 1), "t", current_train_step=step)
        case "refresh":
            await buffer.refresh_staleness(task_stale_thresholds={"t": 99}, current_train_step=step)
        case "advance":
            await buffer.advance(step)
        case "take":
            await buffer.take_batch({"t": 0}, train_step=step)


class BoundSuite(Hooks):
    """No verb hands out a COMPLETED group whose staleness is above `max_staleness`."""

    @pytest.mark.parametrize("how", ["get", "take_batch", "sample"])
    async def test_a_group_that_is_put_after_the_step_is_bound_by_it(self, new: New, how: str) -> None:
        buffer = await new(max_staleness=2)
        await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=9)
        await _versions(buffer, *range(9))
        given = await _hand_out(buffer, how, 9)
        assert sorted(names(given)) == [6, 7, 8]
        assert sorted(member.seq_staleness for (member,) in given) == [0, 1, 2]
        assert await buffer.count("t", EXPIRED) == 6

    @pytest.mark.parametrize("how", ["get", "take_batch", "sample"])
    async def test_the_step_of_a_hand_out_binds_it(self, new: New, how: str) -> None:
        buffer = await new(max_staleness=2)
        await _versions(buffer, *range(9))
        assert sorted(names(await _hand_out(buffer, how, 9, train_step=9))) == [6, 7, 8]

    @pytest.mark.parametrize("on_stale", ["reroll", "drop"])
    @pytest.mark.parametrize("how", ["put", "refresh", "advance", "take"])
    async def test_the_bound_holds_whenever_the_step_grows(self, new: New, how: str, on_stale: str) -> None:
        buffer = await new(max_staleness=2, on_stale=on_stale)
        await _versions(buffer, *range(9))
        await _grow(buffer, how, 9)
        left = 4 if how == "put" else 3
        assert await buffer.count("t", COMPLETED) == left
        assert await buffer.count("t", EXPIRED) == (6 if on_stale == "reroll" else 0)
        assert await buffer.is_ready({"t": left})
        assert not await buffer.is_ready({"t": left + 1})
        stats = (await buffer.stats()).tasks["t"]
        assert (stats.statuses["completed"], stats.stale) == (left, 6)
        assert stats.staleness.max == 2
        assert await bucket(buffer, "expired") == (Amount(0, 12) if on_stale == "reroll" else Amount(6, 30))
        await buffer.advance(10)
        assert await buffer.count("t", COMPLETED) == left - 1

    @pytest.mark.parametrize("on_stale", ["reroll", "drop"])
    async def test_a_put_beyond_the_bound_expires_or_is_dropped(self, new: New, on_stale: str) -> None:
        buffer = await new(max_staleness=1, on_stale=on_stale)
        await buffer.advance(5)
        uid = await buffer.put(group(versions=2), "t")
        assert (uid is None) == (on_stale == "drop")
        assert await buffer.put(group(versions=2), "t", expired_groups_retryable=False) is None
        assert await buffer.put(group(versions=3), "t") is not None
        assert await buffer.put(group("old", versions=3), "t", current_train_step=9) != 0
        assert await buffer.count("t", COMPLETED) == 0
        assert (await buffer.stats()).tasks["t"].stale == 4

    async def test_what_passed_the_bound_is_rolled_again(self, new: New) -> None:
        buffer = await new(max_staleness=1)
        (uid,) = await _versions(buffer, 0)
        await buffer.advance(5)
        (((item,),),) = [await buffer.get(1, "t", EXPIRED)]
        assert (item.status, item.seq_staleness, len(item.response_ids)) == (EXPIRED, 4, 0)
        again = [rollout(versions=5, group_uid=uid)]
        assert await buffer.put(again, "t", current_train_step=6) == uid
        row = await row_of(buffer, uid)
        assert (row.status, row.staleness, row.attempts) == (COMPLETED, 0, 2)

    async def test_a_group_that_was_trained_is_dropped(self, new: New) -> None:
        buffer = await new(max_staleness=1, max_times_sampled=3)
        await _versions(buffer, 0)
        await buffer.sample(1, "t", train_step=1)
        await buffer.advance(5)
        assert len(await buffer.query({})) == 0
        assert (await bucket(buffer, "expired"))[:3] == (1, 5, 1)

    async def test_stale_members_expire_alone_where_members_do(self, new: New) -> None:
        buffer = await new(max_staleness=2, expire="member")
        await buffer.advance(9)
        for versions in ((1, 8), (6, 8)):
            await buffer.put([rollout(versions=version) for version in versions], "t")
        assert await buffer.count("t", COMPLETED) == 1
        await buffer.advance(10)
        assert await buffer.count("t", COMPLETED) == 0
        expired = await buffer.get(2, "t", EXPIRED)
        assert [[len(member.response_ids) for member in members] for members in expired] == [[0, 2], [0, 2]]

    async def test_groups_without_versions_follow_their_put_value(self, new: New) -> None:
        buffer = await new(max_staleness=2)
        await buffer.put(group("stale", seq_staleness=3), "t")
        await buffer.put(group("fresh", seq_staleness=2), "t")
        await buffer.advance(50)
        assert names(await buffer.get(9, "t", COMPLETED)) == ["fresh"]
        assert names(await buffer.get(9, "t", EXPIRED)) == ["stale"]

    async def test_groups_that_come_back_by_rewind_are_checked(self, new: New) -> None:
        buffer = await new(max_staleness=2, max_uncommitted_steps=8)
        await _versions(buffer, 2)
        assert names(await buffer.get(1, "t", COMPLETED, train_step=3)) == [2]
        await _versions(buffer, 8, 9, current_train_step=10)
        assert await buffer.rewind(2) == 1
        # Staleness at step 3: 0 of version 2; the distance of the others is 6 and 7.
        assert names(await buffer.get(9, "t", COMPLETED)) == [2]
        assert await buffer.count("t", EXPIRED) == 2

    async def test_a_put_threshold_uses_the_step_that_the_task_knows(self, new: New) -> None:
        buffer = await new()
        await buffer.advance(9)
        uid = await buffer.put(group(versions=5), "t", stale_threshold=3)
        row = await row_of(buffer, uid)
        assert (row.status, row.staleness) == (EXPIRED, 3)
        assert (
            await buffer.put(group(versions=5), "t", stale_threshold=3, expired_groups_retryable=False)
            is None
        )
        fresh = await buffer.put(group(versions=6, seq_staleness=50), "t", stale_threshold=3)
        assert (await row_of(buffer, fresh)).status is COMPLETED

    async def test_tasks_have_bounds_of_their_own(self, new: New) -> None:
        buffer = await new(max_staleness=2, tasks={"free": TaskConfig(max_staleness=None)})
        for task in ("t", "free"):
            await put_all(buffer, task, group(versions=0), group(versions=8))
        await buffer.advance(9)
        counts = await buffer.count_statuses(["t", "free"], [COMPLETED])
        assert counts == {"t": {COMPLETED: 1}, "free": {COMPLETED: 2}}

    async def test_expired_groups_that_no_producer_takes_are_a_warning(self, new: New) -> None:
        buffer = await new(max_staleness=0)
        await _versions(buffer, *[0] * 20)
        await buffer.advance(5)
        found = {warning.kind: warning for warning in (await buffer.stats()).warnings}
        assert "20 EXPIRED groups" in found["unclaimed"].found
        await buffer.get(1, "t", EXPIRED)
        assert "unclaimed" not in {warning.kind for warning in (await buffer.stats()).warnings}


class LeaseBoundSuite(Hooks):
    """The same of leases."""

    async def test_a_lease_gives_nothing_beyond_the_bound(self, new: New) -> None:
        buffer = await new(max_staleness=2)
        await _versions(buffer, *range(9))
        async with buffer.lease({"t": 0}, train_step=8):
            assert await buffer.count("t", COMPLETED) == 4
        async with buffer.lease({"t": 9}, train_step=9) as batch:
            assert sorted(names(batch.groups["t"])) == [6, 7, 8]

    @pytest.mark.parametrize("how", ["nack", "trim", "end"])
    async def test_groups_that_come_back_from_a_lease_are_checked(self, new: New, how: str) -> None:
        buffer = await new(max_staleness=2)
        await _versions(buffer, 1, 8)
        batch = await buffer.lease({"t": 2}, wait=True)
        await buffer.advance(9)
        match how:
            case "trim":
                await buffer.trim_lease(batch.id, [])
            case "end":
                await buffer.end_lease(batch.id)
            case _:
                await batch.nack()
        counts = await buffer.count_statuses(["t"], [COMPLETED, EXPIRED])
        assert counts == {"t": {COMPLETED: 1, EXPIRED: 1}}
