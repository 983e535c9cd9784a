"""Refresh, room and limits."""

from typing import Any

import pytest

from reroll.config import TaskConfig
from reroll.engine.ledger import Amount
from reroll.engine.limits import Queue
from reroll.errors import InvalidArgument, WaitTimeout
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    FAILED,
    FILTERED,
    INIT,
    New,
    bucket,
    group,
    names,
    put_all,
    refused,
    rollout,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks
from reroll.testing.buffer.wrong_calls import WRONG_REFRESHES


class LimitSuite(Hooks):
    """What expires, and what has to wait."""

    # --- refresh

    @pytest.mark.parametrize(
        ("statuses", "expired"),
        [
            (None, {"t": 2}),
            ([ABORTED], {"t": 1}),
            (["completed"], {"t": 1}),
            ([], {"t": 0}),
        ],
    )
    async def test_refresh_expires_completed_and_aborted(
        self, new: New, statuses: Any, expired: dict[str, int]
    ) -> None:
        buffer = await new()
        for status in (COMPLETED, ABORTED, FAILED, INIT):
            await buffer.put(group(tokens=1, versions=[1], status=status), "t")
        result = await buffer.refresh_staleness(
            task_stale_thresholds={"t": 2}, current_train_step=4, statuses=statuses
        )
        assert result == expired
        assert await buffer.count("t", EXPIRED) == expired["t"]
        still = await buffer.count_statuses(["t"], [COMPLETED, ABORTED, FAILED, INIT])
        assert sum(still["t"].values()) == 4 - expired["t"]

    async def test_refresh_keeps_uids_and_order_and_counts_once(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(
            buffer, "t", *(group(name, versions=v) for name, v in zip("abc", (1, 8, 1), strict=True))
        )
        ticks = [row.timestamp_id for row in await buffer.query({})]
        thresholds = {"t": 3, "unknown": 1}
        first = await buffer.refresh_staleness(task_stale_thresholds=thresholds, current_train_step=9)
        again = await buffer.refresh_staleness(task_stale_thresholds=thresholds, current_train_step=9)
        assert (first, again) == ({"t": 2, "unknown": 0}, {"t": 0, "unknown": 0})
        rows = await buffer.query({})
        assert [(row.uid, row.timestamp_id) for row in rows] == list(zip(uids, ticks, strict=True))
        assert [row.staleness for row in rows] == [7, 0, 7]
        assert await bucket(buffer, "expired") == Amount(0, 4)
        handed = await buffer.get(2, "t", EXPIRED)
        assert names(handed) == ["a", "c"]
        assert [(m.status, m.seq_staleness, len(m.response_ids)) for (m,) in handed] == [(EXPIRED, 7, 0)] * 2

    async def test_refresh_drops_where_nobody_rolls_again(self, new: New) -> None:
        buffer = await new()
        for task in ("t", "u"):
            await put_all(buffer, task, group(versions=1), group(versions=1, status=ABORTED))
        result = await buffer.refresh_staleness(
            task_stale_thresholds={"t": 1, "u": 1},
            current_train_step=9,
            expired_groups_retryable_by_task={"t": False},
        )
        assert result == {"t": 2, "u": 2}
        assert await buffer.count_statuses(["t", "u"], [EXPIRED]) == {"t": {EXPIRED: 0}, "u": {EXPIRED: 2}}
        assert await bucket(buffer, "expired", "t") == Amount(2, 10)
        assert await bucket(buffer, "expired", "u") == Amount(0, 4)

    async def test_refresh_by_token(self, new: New) -> None:
        buffer = await new()
        await put_all(
            buffer, "t", group("mixed", versions=[1, 7]), group("old", versions=[1, 5]), group("none")
        )
        result = await buffer.refresh_staleness(
            task_stale_thresholds={}, task_token_stale_thresholds={"t": 3}, current_train_step=9
        )
        assert result == {"t": 1}
        assert names(await buffer.get(3, "t", EXPIRED)) == ["old"]

    async def test_refresh_by_member_waits_for_the_missing_ones(self, new: New) -> None:
        buffer = await new(expire="member")
        uid = await buffer.put([rollout(versions=1, reward=1.0), rollout(versions=6, reward=0.0)], "t")
        refresh = buffer.refresh_staleness
        assert await refresh(task_stale_thresholds={"t": 5}, current_train_step=9) == {"t": 1}
        row = await row_of(buffer, uid)
        assert (row.status, row.num_tokens, row.reward_mean, row.version) == (EXPIRED, 8, 0.0, 6)
        assert await refresh(task_stale_thresholds={"t": 5}, current_train_step=12) == {"t": 0}
        assert (await row_of(buffer, uid)).num_tokens == 6
        ((first, second),) = await buffer.get(1, "t", EXPIRED)
        assert [first.status, second.status] == [EXPIRED, EXPIRED]
        assert [first.seq_staleness, second.seq_staleness] == [7, 5]

    @pytest.mark.parametrize("expire", ["group", "member"])
    async def test_what_expires_keeps_its_staleness(self, new: New, expire: str) -> None:
        buffer = await new(expire=expire)
        uid = await buffer.put(group(versions=1), "t")
        await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=5)
        assert (await row_of(buffer, uid)).staleness == 3
        assert (await buffer.peek([uid]))[0][0].seq_staleness == 3

    async def test_a_group_that_is_expired_does_not_expire_again(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=1, status=EXPIRED), "t")
        result = await buffer.refresh_staleness(
            task_stale_thresholds={"t": 1},
            current_train_step=9,
            statuses=[EXPIRED],
        )
        assert result == {"t": 0}
        assert (await row_of(buffer, uid)).num_tokens == 5

    @pytest.mark.parametrize(
        ("arguments", "named"), WRONG_REFRESHES, ids=lambda value: value if isinstance(value, str) else ""
    )
    async def test_a_wrong_refresh_changes_nothing(
        self, new: New, arguments: dict[str, Any], named: str
    ) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(versions=1))
        await put_all(buffer, "u", group(versions=1))
        call = {"task_stale_thresholds": {"t": 1}, "current_train_step": 9, **arguments}
        async with refused(buffer, InvalidArgument, named):
            await buffer.refresh_staleness(**call)

    # --- room and limits

    async def test_a_put_waits_for_room(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group("a"), "t")
        async with refused(buffer, WaitTimeout):
            await buffer.put(group("b"), "t", timeout=0, current_train_step=5)
        assert await buffer.put(group("c"), "u", timeout=0) == 2
        assert names(await buffer.get(9, "t", COMPLETED)) == ["a"]
        assert await buffer.put(group("b"), "t", timeout=0) == 3

    async def test_only_completed_groups_wait(self, new: New) -> None:
        buffer = await new(capacity=1, rate_limiter=Queue(1))
        await buffer.put(group(versions=1), "t")
        for status in (ABORTED, EXPIRED, FAILED, FILTERED, INIT):
            assert await buffer.put(group(status=status), "t", timeout=0) is not None
        stale = {"current_train_step": 9, "stale_threshold": 1, "timeout": 0}
        assert await buffer.put(group(versions=1), "t", **stale) is not None
        assert await buffer.put(group(versions=1), "t", expired_groups_retryable=False, **stale) is None

    async def test_a_remover_makes_room(self, new: New) -> None:
        buffer = await new(capacity=2, remover="fifo")
        await buffer.put(group("slow"), "u")
        await put_all(buffer, "t", *(group(name) for name in "abcd"))
        assert [row.group_id for row in await buffer.query({})] == ["slow", "c", "d"]
        assert await bucket(buffer, "evicted") == Amount(2, 10)

    async def test_the_remover_may_choose_the_newcomer(self, new: New) -> None:
        buffer = await new(capacity=1, remover="min_heap")
        await buffer.put(group("a"), "t", priority=2.0)
        assert await buffer.put(group("b"), "t", priority=1.0) is None
        assert await buffer.put(group("c"), "t", priority=3.0) == 3
        assert [row.group_id for row in await buffer.query({})] == ["c"]
        assert (await bucket(buffer, "evicted")).groups == 2

    async def test_a_queue_limiter_is_refunded_what_was_never_taken(self, new: New) -> None:
        buffer = await new(rate_limiter=Queue(2))
        uids = await put_all(buffer, "t", group(versions=1), group(versions=9))
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(versions=9), "t", timeout=0)
        await buffer.refresh_staleness(task_stale_thresholds={"t": 5}, current_train_step=10)
        await buffer.put(group(versions=9), "t", timeout=0)
        await buffer.delete(uids[1:])
        await buffer.put(group(versions=9), "t", timeout=0)
        assert await buffer.take_batch({"t": 2}, wait=True, timeout=0)
        await put_all(buffer, "t", group(), group(), timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(), "t", timeout=0)

    async def test_max_bytes_bounds_the_whole(self, new: New) -> None:
        probe = await new()
        size = (await row_of(probe, await probe.put(group(tokens=100), "t"))).num_bytes
        buffer = await new(max_bytes=2 * size)
        await buffer.put(group(tokens=100), "t", timeout=0)
        await buffer.put(group(tokens=100), "u", timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(tokens=100), "v", timeout=0)
        async with refused(buffer, InvalidArgument, "max_bytes"):
            await buffer.put(group(tokens=300), "v")
        await buffer.get(1, "u", COMPLETED)
        await buffer.put(group(tokens=100), "v", timeout=0)

    async def test_tasks_have_their_own_settings(self, new: New) -> None:
        buffer = await new(capacity=1, tasks={"big": TaskConfig(capacity=3, sampler="lifo")})
        await put_all(buffer, "big", *(group(name) for name in "abc"), timeout=0)
        await buffer.put(group(), "t", timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.put(group(), "t", timeout=0)
        assert names(await buffer.get(3, "big", COMPLETED)) == ["c", "b", "a"]
