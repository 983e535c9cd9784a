"""Calls that overlap: waiting, order, cancellation."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from reroll.engine.limits import Queue, StalenessWindow
from reroll.errors import Closed, WaitTimeout
from reroll.testing.buffer.builders import (
    ABORTED,
    COMPLETED,
    EXPIRED,
    New,
    bucket,
    group,
    names,
    put_all,
    row_of,
)
from reroll.testing.buffer.hooks import Hooks


class WaitingSuite(Hooks):
    """Calls that overlap."""

    async def settle(self) -> None:
        """Let every call that was started get as far as it can: until it waits, or ends."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def start(self, call: Awaitable[Any]) -> "asyncio.Future[Any]":
        """Start a call that has to wait."""
        started = asyncio.ensure_future(call)
        await self.settle()
        return started

    async def test_a_taker_waits_for_all_it_wants(self, new: New) -> None:
        buffer = await new()
        taker = await self.start(buffer.take_batch({"t": 2, "u": 1}, wait=True))
        for task, name in (("t", "a"), ("u", "b")):
            await buffer.put(group(name), task)
            await self.settle()
            assert not taker.done()
        assert len(buffer) == 2
        await buffer.put(group("c"), "t")
        groups, counts = await taker
        assert ({task: names(taken) for task, taken in groups.items()}, counts) == (
            {"t": ["a", "c"], "u": ["b"]},
            {"t": 2, "u": 1},
        )
        assert len(buffer) == 0

    async def test_waiters_for_a_version_wake_when_it_serves(self, new: New) -> None:
        buffer = await new()
        first, second = [await self.start(buffer.wait_version(v)) for v in (1, 3)]
        await buffer.put(group(), "t")
        await buffer.advance(1)
        assert await first == 1
        await self.settle()
        assert not second.done()
        cancelled = await self.start(buffer.wait_version(3))
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await buffer.advance(4)
        assert await second == 4
        waiting = await self.start(buffer.wait_version(9))
        await buffer.rewind(2)
        await self.settle()
        assert not waiting.done()
        await buffer.advance(9)
        assert await waiting == 9

    async def test_producers_that_wait_wake_when_their_groups_are_overdue(self, new: New) -> None:
        buffer = await new(rate_limiter=StalenessWindow(1, batch=6, stragglers="resume"))
        uid = await buffer.put(group(status=ABORTED), "t", model_step=0)
        await buffer.get(1, "t", ABORTED)
        old = await buffer.reserve(1, "t")
        await buffer.advance(1)
        new_one = await buffer.reserve(1, "t")
        waiting = [await self.start(buffer.wait_overdue(one)) for one in (old, old, new_one, uid)]
        waiting.pop(0).cancel()
        await buffer.advance(2)
        assert await waiting[0] == "resume"
        await self.settle()
        assert not waiting[1].done()
        assert not waiting[2].done()
        await buffer.advance(3)
        assert [await one for one in waiting[1:]] == ["resume", "resume"]

    async def test_takers_of_one_pool_keep_their_order(self, new: New) -> None:
        buffer = await new()
        large = await self.start(buffer.take_batch({"t": 2}, wait=True))
        small = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "t")
        await self.settle()
        assert not small.done(), "overtook a taker that was there before"
        await put_all(buffer, "t", group("b"), group("c"))
        assert names((await large)[0]["t"]) == ["a", "b"]
        assert names((await small)[0]["t"]) == ["c"]

    async def test_other_tasks_and_statuses_pass(self, new: New) -> None:
        buffer = await new()
        large = await self.start(buffer.take_batch({"t": 1000}, wait=True))
        other_task = await self.start(buffer.take_batch({"u": 1}, wait=True))
        other_status = await self.start(buffer.take_batch({"t": 1}, group_status=ABORTED, wait=True))
        await buffer.put(group("a"), "u")
        await buffer.put(group("b", status=ABORTED), "t")
        await buffer.put(group("c"), "t")
        assert names((await other_task)[0]["u"]) == ["a"]
        assert names((await other_status)[0]["t"]) == ["b"]
        assert not large.done()
        large.cancel()

    async def test_takers_of_several_tasks_do_not_lock_each_other_out(self, new: New) -> None:
        buffer = await new()
        both = await self.start(buffer.take_batch({"t": 1, "u": 1}, wait=True))
        reverse = await self.start(buffer.take_batch({"u": 1, "t": 1}, wait=True))
        single = await self.start(buffer.take_batch({"u": 1}, wait=True))
        await put_all(buffer, "u", group(1), group(2), group(3))
        await self.settle()
        assert not single.done()
        await put_all(buffer, "t", group(4), group(5))
        assert [names((await taker)[0]["u"]) for taker in (both, reverse, single)] == [[1], [2], [3]]

    async def test_a_late_comer_does_not_overtake(self, new: New) -> None:
        buffer = await new()
        large = await self.start(buffer.take_batch({"t": 2}, wait=True))
        await buffer.put(group("a"), "t")
        late = await self.start(buffer.take_batch({"t": 1}, wait=True))
        assert not late.done(), "it could go on, but it is not its turn"
        await put_all(buffer, "t", group("b"), group("c"))
        assert names((await large)[0]["t"]) == ["a", "b"]
        assert names((await late)[0]["t"]) == ["c"]

    async def test_a_taker_is_behind_in_one_of_its_tasks(self, new: New) -> None:
        buffer = await new()
        first = await self.start(buffer.take_batch({"t": 1, "u": 1}, wait=True))
        second = await self.start(buffer.take_batch({"u": 1, "v": 1}, wait=True))
        await buffer.put(group("a"), "u")
        await buffer.put(group("b"), "v")
        await self.settle()
        assert not second.done(), "the first waits for the same group"
        first.cancel()
        assert names((await second)[0]["u"]) == ["a"]

    async def test_a_cancelled_taker_has_taken_nothing_and_lets_the_next_go_on(self, new: New) -> None:
        buffer = await new()
        first = await self.start(buffer.take_batch({"t": 2}, wait=True))
        second = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "t")
        first.cancel()
        assert names((await second)[0]["t"]) == ["a"]
        third = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("b"), "t")  # wakes the third, which is cancelled before it runs
        third.cancel()
        await self.settle()
        taken = names((await third)[0]["t"]) if not third.cancelled() else []
        assert taken + names(await buffer.get(9, "t", COMPLETED)) == ["b"]

    async def test_a_taker_that_times_out_lets_the_next_go_on(self, new: New) -> None:
        buffer = await new()
        first = await self.start(buffer.take_batch({"t": 2}, wait=True, timeout=0.01))
        second = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group("a"), "t")
        with pytest.raises(WaitTimeout):
            await first
        assert names((await second)[0]["t"]) == ["a"]

    async def test_producers_are_held_back_in_order(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group("a"), "t")
        producers = [await self.start(buffer.put(group(name), "t")) for name in "bcd"]
        other = await self.start(buffer.put(group("x"), "u"))
        assert other.done()
        assert await buffer.count("t", COMPLETED) == 1
        producers[1].cancel()
        await self.settle()  # far away, it takes its time
        taken: list[Any] = []
        while len(taken) < 3:
            groups, _ = await buffer.take_batch({"t": 1}, wait=True)
            taken += names(groups["t"])
            assert await buffer.count("t", COMPLETED) <= 1
        assert taken == ["a", "b", "d"]
        assert [await producers[0], await producers[2]] == [3, 4]
        assert (await bucket(buffer, "put")).groups == 3

    async def test_groups_of_other_statuses_pass_a_waiting_producer(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(), "t")
        producer = await self.start(buffer.put(group(), "t"))
        parked = await self.start(buffer.put(group(status=ABORTED), "t"))
        assert parked.done(), "a weight update must always be able to park its groups"
        options = {"current_train_step": 9, "stale_threshold": 1}
        expired = await self.start(buffer.put(group(versions=1), "t", **options))
        assert expired.done()
        assert not producer.done()
        for started in (producer, parked, expired):
            started.cancel()

    async def test_whatever_makes_room_wakes_a_producer(self, new: New) -> None:
        buffer = await new(capacity=1)
        uid = await buffer.put(group(versions=1), "t")
        producer = await self.start(buffer.put(group(versions=8), "t"))
        await buffer.delete([uid])
        uid = await producer
        producer = await self.start(buffer.put(group(versions=9), "t"))
        await buffer.refresh_staleness(task_stale_thresholds={"t": 2}, current_train_step=11)
        await producer
        assert await buffer.count_statuses(["t"], [COMPLETED, EXPIRED]) == {"t": {COMPLETED: 1, EXPIRED: 1}}

    async def test_a_group_that_becomes_stale_while_its_put_waits_expires(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(versions=9), "t")
        options = {"current_train_step": 4, "stale_threshold": 3}
        producer = await self.start(buffer.put(group(versions=3), "t", **options))
        assert not producer.done()
        await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=8)
        row = await row_of(buffer, await producer)
        assert (row.status, row.staleness) == (EXPIRED, 4)

    async def test_a_put_whose_id_is_stored_meanwhile_needs_no_room(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(), "t")
        calls = [await self.start(buffer.put(group("twice"), "t", put_id="x")) for _ in range(2)]
        await buffer.get(1, "t", COMPLETED)
        await self.settle()
        assert calls[0].done()
        assert calls[1].done(), "waits for room for a group that is there"
        assert await calls[0] == await calls[1] == 2
        assert (await bucket(buffer, "put")).groups == 2

    async def test_wait_ready_only_looks(self, new: New) -> None:
        buffer = await new()
        looker = await self.start(buffer.wait_ready({"t": 2}))
        taker = await self.start(buffer.take_batch({"t": 1}, wait=True))
        await buffer.put(group(), "t")
        await taker
        assert not looker.done()
        await put_all(buffer, "t", group(), group())
        assert await looker is None
        assert len(buffer) == 2

    async def test_close_wakes_everybody(self, new: New) -> None:
        buffer = await new(capacity=1)
        await buffer.put(group(), "t")
        waiting = [
            await self.start(call)
            for call in (
                buffer.put(group(), "t"),
                buffer.put(group(), "t"),
                buffer.take_batch({"u": 1}, wait=True),
                buffer.take_batch({"u": 1}, wait=True),
                buffer.wait_ready({"u": 1}),
            )
        ]
        await buffer.close()
        for call in waiting:
            with pytest.raises(Closed):
                await call

    @pytest.mark.parametrize("seed", range(3))
    async def test_producers_and_consumers_lose_and_double_nothing(self, new: New, seed: int) -> None:
        dice = random.Random(seed)
        buffer = await new(capacity=3, tasks={"u": {"rate_limiter": Queue(2)}})
        taken: dict[str, list[Any]] = {"t": [], "u": []}

        async def produce(task: str, first: int) -> None:
            for name in range(first, first + 20):
                status = ABORTED if dice.random() < 0.3 else COMPLETED
                await buffer.put(group(name, status=status), task)

        async def resume(task: str) -> None:
            while True:
                groups, _ = await buffer.take_batch({task: 1}, group_status=ABORTED, wait=True)
                for member in groups[task][0]:
                    member.status = COMPLETED
                await buffer.put(groups[task][0], task)

        async def consume(task: str) -> None:
            while len(taken[task]) < 60:
                wanted = min(dice.randint(1, 2), 60 - len(taken[task]))
                groups, _ = await buffer.take_batch({task: wanted}, wait=dice.random() < 0.5)
                taken[task] += names(groups[task])
                await asyncio.sleep(0)

        producers = [produce("tu"[index % 2], index * 20) for index in range(6)]
        resumers = [asyncio.ensure_future(resume(task)) for task in taken]
        await asyncio.gather(*producers, *map(consume, taken))
        for resumer in resumers:
            resumer.cancel()
        await asyncio.gather(*resumers, return_exceptions=True)
        assert sorted(taken["t"] + taken["u"]) == list(range(120))
        assert len(buffer) == 0
        for task in taken:
            assert (await bucket(buffer, "put", task)) == (await bucket(buffer, "consumed", task))
