"""Groups are handed out, and come back to be rolled again."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from reroll.engine.ledger import Amount
from reroll.engine.limits import MinSize, Queue, SampleToInsertRatio
from reroll.errors import InvalidArgument, UnknownUid, WaitTimeout
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
    row_of,
)
from reroll.testing.buffer.hooks import Hooks
from reroll.testing.buffer.wrong_calls import UNKNOWN_STATUS, WRONG_ARGUMENTS


class HandOutSuite(Hooks):
    """What get and take_batch give."""

    # --- hand out

    @pytest.mark.parametrize(
        ("sampler", "order"),
        [
            ("fifo", "abcd"),
            ("lifo", "dcba"),
            ("stalest", "bacd"),
            ("freshest", "acdb"),
            ("min_heap", "dbca"),
            ("max_heap", "abcd"),
            ("least_used", "abcd"),
        ],
    )
    async def test_the_order_of_samplers(self, new: New, sampler: str, order: str) -> None:
        buffer = await new(sampler=sampler)
        for name, staleness, priority in zip("abcd", (3, 8, 3, 3), (3.0, 2.0, 2.0, 0.5), strict=True):
            await buffer.put(group(name, seq_staleness=staleness), "t", priority=priority)
        assert await buffer.is_ready({"t": 4})
        assert "".join(names(await buffer.get(3, "t", COMPLETED))) == order[:3]
        assert names(await buffer.get(3, "t", COMPLETED)) == [order[3]]

    async def test_stalest_first_mixes_derived_and_told_staleness(self, new: New) -> None:
        buffer = await new(sampler="stalest")
        await put_all(
            buffer, "t", group("v3", versions=3), group("told", seq_staleness=2), group("v1", versions=1)
        )
        assert names(await buffer.get(1, "t", COMPLETED, train_step=5)) == ["v1"]
        assert names(await buffer.get(2, "t", COMPLETED)) == ["told", "v3"]

    async def test_other_statuses_come_in_order_of_arrival(self, new: New) -> None:
        buffer = await new(sampler="lifo", rate_limiter=MinSize(5))
        for status in (ABORTED, EXPIRED, FAILED, FILTERED, INIT):
            await put_all(buffer, "t", *(group(index, status=status) for index in range(3)))
            assert names(await buffer.get(2, "t", status)) == [0, 1]
            assert names(await buffer.get(2, "t", status.value)) == [2]

    async def test_get_of_nothing(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(), "t")
        assert await buffer.get(0, "t", COMPLETED) == []
        assert await buffer.get(-3, "t", COMPLETED) == []
        assert await buffer.get(3, "unknown", COMPLETED) == []
        assert len(buffer) == 1

    async def test_take_batch_gives_what_is_there(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("a"), group("b"))
        await put_all(buffer, "u", group("c"))
        groups, counts = await buffer.take_batch({"u": 5, "t": 1, "v": 2, "w": 0, "x": -1})
        assert {task: names(taken) for task, taken in groups.items()} == {
            "u": ["c"],
            "t": ["a"],
            "v": [],
            "w": [],
            "x": [],
        }
        assert counts == {"u": 1, "t": 1, "v": 0, "w": 0, "x": 0}
        assert await buffer.take_batch({}) == ({}, {})

    async def test_waiting_is_all_or_nothing(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group("a"), group("b"))
        await put_all(buffer, "u", group("c"))
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 2, "u": 2}, wait=True, timeout=0, train_step=5)
        groups, _ = await buffer.take_batch({"t": 2, "u": 1, "v": 0}, wait=True, timeout=0)
        assert {task: names(taken) for task, taken in groups.items()} == {
            "t": ["a", "b"],
            "u": ["c"],
            "v": [],
        }
        with pytest.raises(TimeoutError):
            await buffer.wait_ready({"t": 1}, timeout=0.001)

    @pytest.mark.parametrize("verb", ["take_batch", "sample", "wait_ready"])
    async def test_a_wait_for_an_unknown_task_names_the_likely_one(self, new: New, verb: str) -> None:
        buffer = await new(tasks={"code": {}})
        await buffer.put(group(), "math")
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "take_batch": lambda: buffer.take_batch({"mth": 1}, wait=True, timeout=0.01),
            "sample": lambda: buffer.sample(1, "mth", timeout=0.01),
            "wait_ready": lambda: buffer.wait_ready({"mth": 1}, timeout=0.01),
        }
        with pytest.raises(WaitTimeout, match=r"'mth' is unknown.*'code', 'math'; did you mean 'math'"):
            await calls[verb]()
        assert "mth" not in await buffer.ledger()
        assert await buffer.count("mth", COMPLETED) == 0
        assert await buffer.is_ready({"mth": 0}, group_status=COMPLETED)
        assert list((await buffer.stats()).tasks) == ["math"]
        assert await buffer.get(1, "math", COMPLETED)

    async def test_a_task_that_was_waited_for_has_its_groups_and_its_step(self, new: New) -> None:
        buffer = await new()
        assert await buffer.get(1, "t", COMPLETED, train_step=7) == []
        await buffer.put(group("a", versions=3), "t")
        ((taken,),) = await buffer.get(1, "t", COMPLETED)
        assert (taken.group_id, taken.seq_staleness) == ("a", 3)

    async def test_only_declared_tasks_are_accepted(self, new: New) -> None:
        buffer = await new(tasks={"math": {}, "code": {}}, declared_tasks_only=True)
        uid = await buffer.put(group(), "math")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: buffer.put(group(), "mth"),
            lambda: buffer.get(1, "mth", COMPLETED),
            lambda: buffer.take_batch({"math": 1, "mth": 1}),
            lambda: buffer.sample(1, "mth", timeout=0),
            lambda: buffer.reserve(1, "mth"),
            lambda: buffer.count("mth", COMPLETED),
            lambda: buffer.is_ready({"mth": 1}),
            lambda: buffer.refresh_staleness(
                task_stale_thresholds={"math": 1, "mth": 1}, current_train_step=9
            ),
        ]
        for call in calls:
            async with refused(buffer, InvalidArgument, "'mth'.*'code', 'math'; did you mean 'math'"):
                await call()
        assert (await row_of(buffer, uid)).task_name == "math"

    async def test_a_timeout_does_not_deny_what_its_step_expired(self, new: New) -> None:
        buffer = await new(max_staleness=1)
        await put_all(buffer, "t", group(versions=1), group(versions=1))
        with pytest.raises(WaitTimeout) as timeout:
            await buffer.take_batch({"t": 2}, wait=True, timeout=0.01, train_step=50)
        assert await buffer.count("t", COMPLETED) == 0
        assert "changed" not in str(timeout.value)
        assert "no group was delivered" in str(timeout.value)

    async def test_a_closed_limiter_looks_empty(self, new: New) -> None:
        buffer = await new(min_size=2)
        await buffer.put(group("a"), "t")
        assert await buffer.get(1, "t", COMPLETED) == []
        assert not await buffer.is_ready({"t": 1})
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 1}, wait=True, timeout=0)
        await buffer.put(group("b"), "t")
        assert names(await buffer.get(1, "t", COMPLETED)) == ["a"]
        assert await buffer.get(1, "t", COMPLETED) == []

    async def test_what_can_never_be_met_is_refused_at_once(self, new: New) -> None:
        buffer = await new(capacity=3, rejected_capacity=2, tasks={"q": {"rate_limiter": Queue(2)}})
        async with refused(buffer, InvalidArgument, "capacity is 3"):
            await buffer.take_batch({"u": 1, "t": 4}, wait=True)
        async with refused(buffer, InvalidArgument, "capacity is 3"):
            await buffer.wait_ready({"t": 4})
        async with refused(buffer, InvalidArgument, "Queue"):
            await buffer.take_batch({"q": 3}, wait=True)
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 3}, wait=True, timeout=0)
        async with refused(buffer, WaitTimeout):
            await buffer.take_batch({"t": 4}, group_status=ABORTED, wait=True, timeout=0)
        assert await buffer.take_batch({"t": 4}) == ({"t": []}, {"t": 0})

    async def test_more_rejected_groups_than_are_kept_can_never_be_met(self, new: New) -> None:
        buffer = await new(rejected_capacity=2)
        async with refused(buffer, InvalidArgument, "rejected_capacity"):
            await buffer.take_batch({"t": 3}, group_status=FAILED, wait=True, timeout=0.1)

    async def test_a_request_is_not_refused_that_can_be_met(self, new: New) -> None:
        # Groups leave at their first use, so two samples per insert are never reached, and what is allowed piles up.
        buffer = await new(rate_limiter=SampleToInsertRatio(2.0, 5, 2.0))
        for n in (2, 4):
            while await buffer.count("t", COMPLETED) < 5:
                await buffer.put(group(), "t", timeout=0)
            _, counts = await buffer.take_batch({"t": n}, wait=True, timeout=0)
            assert counts == {"t": n}
        while await buffer.count("t", COMPLETED) < 5:
            await buffer.put(group(), "t", timeout=0)
        assert await buffer.is_ready({"t": 5})
        _, counts = await buffer.take_batch({"t": 5}, wait=True, timeout=0)
        assert counts == {"t": 5}

    @pytest.mark.parametrize("call", UNKNOWN_STATUS.values(), ids=UNKNOWN_STATUS)
    async def test_an_unknown_status_is_an_error(
        self, new: New, call: Callable[[Any], Awaitable[Any]]
    ) -> None:
        buffer = await new()
        await buffer.put(group(versions=1), "t")
        async with refused(buffer, InvalidArgument):
            await call(buffer)

    @pytest.mark.parametrize(
        ("call", "named"), WRONG_ARGUMENTS, ids=lambda value: value if isinstance(value, str) else ""
    )
    async def test_a_wrong_argument_changes_nothing(
        self, new: New, call: Callable[[Any], Awaitable[Any]], named: str
    ) -> None:
        buffer = await new()
        await buffer.put(group(versions=1), "t")
        async with refused(buffer, InvalidArgument, named):
            await call(buffer)

    # --- rolled again

    async def test_an_aborted_group_is_out_until_it_is_put_again(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", group("a", versions=1, status=ABORTED), group("b", status=ABORTED))
        (taken,) = await buffer.get(1, "t", ABORTED)
        assert len(buffer) == 1
        assert await buffer.count("t", ABORTED) == 1
        assert [row.uid for row in await buffer.query({})] == uids[1:]
        assert await bucket(buffer, "out") == Amount(1, 5)
        taken[0].response_ids = [0, 1, 2, 3]
        assert await buffer.put(taken, "t", model_step=4) == uids[0]
        row = await row_of(buffer, uids[0])
        assert (row.attempts, row.num_tokens, row.version) == (2, 7, 1)
        assert await bucket(buffer, "out") == Amount()
        assert await bucket(buffer, "put") == Amount(2, 12)
        assert names(await buffer.get(2, "t", ABORTED)) == ["b", "a"], "it comes back at the end of the line"

    async def test_old_tokens_keep_their_versions(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(status=ABORTED), "t", model_step=1, current_train_step=2)
        for step in (2, 3):
            (taken,) = await buffer.get(1, "t", ABORTED)
            taken[0].response_ids = [*taken[0].response_ids, 7]
            taken[0].status = ABORTED if step == 2 else COMPLETED
            await buffer.put(taken, "t", model_step=step, current_train_step=step + 1)
        ((done,),) = await buffer.get(1, "t", COMPLETED)
        assert list(done.response_model_steps) == [1, 1, 2, 3]
        assert done.seq_staleness == 2

    async def test_a_group_is_continued_by_uid(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group("a", status=ABORTED), "t", tags={"x": 1})
        async with refused(buffer, InvalidArgument, "not checked out"):
            await buffer.put(group(), "t", uid=uid)
        await buffer.get(1, "t", ABORTED)
        async with refused(buffer, InvalidArgument, "'u'"):
            await buffer.put(group(), "u", uid=uid)
        assert await buffer.put(group("b"), "t", uid=uid) == uid
        row = await row_of(buffer, uid)
        assert (row.attempts, row.status, row.tags, row.group_id) == (2, COMPLETED, {"x": 1}, "b")

    async def test_the_same_prompt_is_another_group(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group("prompt", status=ABORTED), "t")
        await buffer.get(1, "t", ABORTED)
        other = await buffer.put(group("prompt"), "t")
        assert other != uid
        assert (await row_of(buffer, other)).attempts == 1

    async def test_members_of_several_groups_do_not_come_back_as_one(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(status=ABORTED), group(status=ABORTED))
        first, second = await buffer.get(2, "t", ABORTED)
        async with refused(buffer, InvalidArgument, "several (checked-out )?groups"):
            await buffer.put([*first, *second], "t")
        assert await buffer.put(first, "t") == 1
        assert await buffer.put(second, "t") == 2

    async def test_an_expired_group_is_rolled_again(self, new: New) -> None:
        buffer = await new()
        uid = await buffer.put(group(versions=1, tokens=4), "t", current_train_step=9, stale_threshold=2)
        assert await bucket(buffer, "expired") == Amount(0, 4)
        (taken,) = await buffer.get(1, "t", EXPIRED)
        taken[0].response_ids, taken[0].status = [5, 6], COMPLETED
        options = {"model_step": 8, "current_train_step": 9, "stale_threshold": 2}
        assert await buffer.put(taken, "t", **options) == uid
        row = await row_of(buffer, uid)
        assert (row.status, row.staleness, row.attempts, row.version) == (COMPLETED, 0, 2, 8)
        assert await bucket(buffer, "put") == Amount(1, 9)

    async def test_too_many_attempts_fail_but_never_what_is_completed(self, new: New) -> None:
        buffer = await new(max_attempts=2)
        uids = await put_all(buffer, "t", *(group(name, status=ABORTED) for name in "abc"))
        for _ in range(2):
            for taken in await buffer.get(3, "t", ABORTED):
                await buffer.put(taken, "t")
        assert await buffer.count_statuses(["t"], [ABORTED, FAILED]) == {"t": {ABORTED: 0, FAILED: 3}}
        assert [row.attempts for row in await buffer.query({})] == [3, 3, 3]
        assert {member.status for members in await buffer.peek(uids) for member in members} == {FAILED}

    async def test_a_completed_group_may_have_any_number_of_attempts(self, new: New) -> None:
        buffer = await new(max_attempts=1)
        uid = await buffer.put(group(status=ABORTED), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        taken[0].status = COMPLETED
        assert await buffer.put(taken, "t") == uid
        assert (await row_of(buffer, uid)).status is COMPLETED

    async def test_fewer_tokens_than_before_count_as_deleted(self, new: New) -> None:
        buffer = await new()
        await buffer.put(group(tokens=6, status=ABORTED), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        taken[0].response_ids = [1]
        await buffer.put(taken, "t")
        assert await bucket(buffer, "put") == Amount(1, 9)
        assert await bucket(buffer, "deleted") == Amount(0, 5)
        assert await bucket(buffer, "resident") == Amount(1, 4)

    async def test_a_forgotten_group_is_deleted_and_new_when_it_comes_back(self, new: New) -> None:
        buffer = await new()
        uids = await put_all(buffer, "t", group(status=ABORTED), group(status=ABORTED))
        (taken,) = await buffer.get(1, "t", ABORTED)
        assert await buffer.forget([*uids, 99, uids[0]]) == 1
        assert await bucket(buffer, "deleted") == Amount(1, 5)
        assert await bucket(buffer, "out") == Amount()
        assert len(buffer) == 1
        assert await buffer.put(taken, "t") == 3

    async def test_a_group_that_comes_back_and_is_evicted_at_once_leaves_the_others_alone(
        self, new: New
    ) -> None:
        buffer = await new(capacity=1, remover="lifo")
        returning = await buffer.put(group("a", status=ABORTED), "t")
        (taken,) = await buffer.get(1, "t", ABORTED)
        staying = await buffer.put(group("b"), "t")
        taken[0].status = COMPLETED
        assert await buffer.put(taken, "t") is None
        assert len(buffer) == 1
        assert names(await buffer.peek([staying])) == ["b"]
        with pytest.raises(UnknownUid):
            await buffer.peek([returning])
        assert await bucket(buffer, "evicted") == Amount(1, 5)
        assert names(await buffer.get(1, "t", COMPLETED)) == ["b"]
