"""Sampling: parameters that change at run time, initial priorities, epochs, and mixes of tasks."""

from collections import Counter
from typing import Any

import pytest

from reroll.engine.selectors.specs import Fifo, LeastUsed, Mixture, Prioritized
from reroll.errors import InvalidArgument, InvalidConfig, WaitTimeout
from reroll.testing.buffer.builders import New, bucket, group, put_all, refused, row_of
from reroll.testing.buffer.hooks import Hooks


class SamplerSuite(Hooks):
    """How a sampler is tuned, and what it draws."""

    async def _weights(self, buffer: Any) -> dict[int, float]:
        """Return the importance weights of all groups of a task, by uid."""
        drawn = await buffer.sample(await buffer.count("t", "completed"), "t", timeout=0)
        return {sample.info.uid: round(sample.info.weight, 6) for sample in drawn}

    async def test_set_sampler_changes_beta_and_alpha_of_what_is_there(self, new: New) -> None:
        buffer = await new(sampler=Prioritized(beta=1.0), max_times_sampled=None)
        low = await buffer.put(group(), "t", priority=1.0)
        high = await buffer.put(group(), "t", priority=4.0)
        assert await self._weights(buffer) == {low: 1.0, high: 0.25}
        await buffer.set_sampler("t", Prioritized(beta=0.5))
        assert await self._weights(buffer) == {low: 1.0, high: 0.5}
        await buffer.set_sampler("t", {"type": "prioritized", "alpha": 0.5, "beta": 1.0})
        assert await self._weights(buffer) == {low: 1.0, high: 0.5}
        await buffer.update_priorities({low: 16.0})
        assert await self._weights(buffer) == {low: 0.5, high: 1.0}

    @pytest.mark.parametrize(
        ("sampler", "match"),
        [
            (Fifo(), "sampler of kind prioritized, not fifo"),
            ("uniform", "not uniform"),
            ({"type": "prioritized", "alpha": -1}, "alpha must be a number of at least 0"),
            ({"type": "prioritized", "gamma": 1}, "reuse_decay, not gamma"),
        ],
    )
    async def test_set_sampler_refuses_another_kind_and_wrong_parameters(
        self, new: New, sampler: Any, match: str
    ) -> None:
        buffer = await new(sampler=Prioritized(), max_times_sampled=None)
        await buffer.put(group(), "t")
        async with refused(buffer, InvalidConfig, match):
            await buffer.set_sampler("t", sampler)

    async def test_set_sampler_changes_the_share_of_a_mixture(self, new: New) -> None:
        def mixture(share: float) -> Mixture:
            return Mixture(share, replay=Prioritized(beta=share), fresh=Fifo())

        buffer = await new(sampler=mixture(1.0), max_times_sampled=None)
        await put_all(buffer, "t", *(group() for _ in range(6)))
        await buffer.sample(3, "t", timeout=0)
        await buffer.set_sampler("t", mixture(0.0))
        assert {sample.info.times_sampled for sample in await buffer.sample(2, "t", timeout=0)} == {2}

    async def test_initial_priority_is_what_a_put_without_one_gets(self, new: New) -> None:
        buffer = await new(sampler=Prioritized(), initial_priority=3.0, max_times_sampled=None)
        first, second = await buffer.put(group(), "t"), await buffer.put(group(), "t", priority=0.5)
        assert [(await row_of(buffer, uid)).priority for uid in (first, second)] == [3.0, 0.5]

    async def test_initial_priority_max_follows_the_largest_that_is_there(self, new: New) -> None:
        buffer = await new(sampler=Prioritized(), initial_priority="max", max_times_sampled=None)

        async def entered() -> float:
            priority: float = (await row_of(buffer, await buffer.put(group(), "t"))).priority
            return priority

        assert await entered() == 1.0
        high = await buffer.put(group(), "t", priority=8.0)
        assert await entered() == 8.0
        rows = await buffer.query({"priority": 8.0})
        await buffer.update_priorities({row.uid: 2.0 for row in rows})
        assert await entered() == 2.0
        await buffer.delete([row.uid for row in rows if row.uid != high] + [high])
        await buffer.delete({"priority": 2.0})
        assert await entered() == 1.0
        await buffer.update_priorities({row.uid: 0.0 for row in await buffer.query({})})
        assert await entered() == 1.0

    async def test_shuffled_epochs_repeat_nothing_and_change_their_order(self, new: New) -> None:
        buffer = await new(sampler=LeastUsed(shuffle=True), max_times_sampled=None)
        uids = await put_all(buffer, "t", *(group() for _ in range(12)))
        epochs = []
        for _ in range(3):
            drawn = [await buffer.sample(4, "t", timeout=0) for _ in range(3)]
            epochs.append([sample.info.uid for part in drawn for sample in part])
        assert all(sorted(epoch) == sorted(uids) for epoch in epochs)
        assert len({tuple(epoch) for epoch in [*epochs, uids]}) == 4

    async def test_a_mix_gives_each_task_its_share_in_one_step(self, new: New) -> None:
        buffer = await new(max_times_sampled=None, sampler="uniform")
        for task, n in (("math", 9), ("code", 9), ("chat", 9)):
            await put_all(buffer, task, *(group(task) for _ in range(n)))
        drawn = await buffer.sample(8, {"math": 3, "code": 1, "chat": 0}, timeout=0)
        assert [sample.info.task_name for sample in drawn] == ["math"] * 6 + ["code"] * 2
        assert [sample.group[0].group_id for sample in drawn] == ["math"] * 6 + ["code"] * 2
        assert len({sample.info.uid for sample in drawn}) == 8
        assert (await bucket(buffer, "resident", "math")).trained_groups == 6

    async def test_shares_that_are_no_whole_numbers_hold_on_average(self, new: New) -> None:
        buffer = await new(max_times_sampled=None, sampler="uniform")
        for task in ("math", "code"):
            await put_all(buffer, task, *(group() for _ in range(3)))
        counts = Counter[str]()
        for _ in range(60):
            (sample,) = await buffer.sample(1, {"math": 0.75, "code": 0.25}, timeout=0)
            counts[sample.info.task_name] += 1
        assert 33 <= counts["math"] <= 56  # 45 expected; beyond this with a chance below 1 in 2,000
        for _ in range(5):
            drawn = await buffer.sample(3, {"math": 1, "code": 1}, timeout=0)
            assert {1, 2} == set(Counter(sample.info.task_name for sample in drawn).values())

    async def test_a_mix_is_all_or_nothing_unless_fewer_are_enough(self, new: New) -> None:
        buffer = await new(max_times_sampled=None, sampler="uniform")
        await put_all(buffer, "math", group(), group())
        await put_all(buffer, "code", group())
        mix = {"math": 1, "code": 1}
        async with refused(buffer, WaitTimeout):
            await buffer.sample(4, mix, timeout=0)
        assert len(await buffer.sample(4, mix, allow_short=True)) == 3
        assert len(await buffer.sample(2, mix, timeout=0, replace=True)) == 2

    @pytest.mark.parametrize(
        "mix", [{}, {"t": 0}, {"t": -1, "u": 2}, {"t": float("nan")}, {"t": "x"}, {"": 1}, {"t": None}]
    )
    async def test_a_mix_that_cannot_be_is_refused(self, new: New, mix: Any) -> None:
        buffer = await new(max_times_sampled=None, sampler="uniform")
        await buffer.put(group(), "t")
        async with refused(buffer, InvalidArgument):
            await buffer.sample(1, mix, timeout=0)
