"""Calls that name a task by mistake: which of them raise, and that they leave nothing behind."""

import pytest

from reroll import InvalidArgument, MinSize, Prioritized, ReplayBufferConfig, Rollout

DECLARED = {"tasks": {"math": {"sampler": "prioritized"}, "code": {}}}


def rollouts():
    return [Rollout(response_ids=[1], status="completed")]


@pytest.mark.parametrize(
    "change",
    [
        lambda buffer: buffer.set_sampler("mth", Prioritized(beta=0.5)),
        lambda buffer: buffer.set_rate_limiter("mth", MinSize(2)),
    ],
)
async def test_settings_of_a_misspelt_task_are_refused(change):
    async with ReplayBufferConfig(**DECLARED).build() as buffer:
        with pytest.raises(InvalidArgument, match=r"task 'mth' is unknown; .*did you mean 'math'\?"):
            await change(buffer)
        assert await buffer.ledger() == {}


async def test_settings_of_known_tasks_are_changed():
    async with ReplayBufferConfig(**DECLARED).build() as buffer:
        await buffer.set_sampler("math", Prioritized(beta=0.5))
        await buffer.put(rollouts(), "other")
        await buffer.set_rate_limiter("other", MinSize(1))


async def test_without_configured_tasks_every_name_is_a_task():
    async with ReplayBufferConfig().build() as buffer:
        await buffer.put(rollouts(), "math")
        await buffer.set_sampler("code", "uniform")


async def test_an_empty_put_to_an_undeclared_task_is_refused():
    async with ReplayBufferConfig(declared_tasks_only=True, **DECLARED).build() as buffer:
        with pytest.raises(InvalidArgument, match="did you mean 'math'"):
            await buffer.put([], "mth")
        assert await buffer.put([], "math") is None


async def test_a_smaller_step_or_version_changes_nothing():
    async with ReplayBufferConfig().build() as buffer:
        await buffer.advance(5, version=4)
        for step, version in ((3, None), (5, 2), (4, 1)):
            await buffer.advance(step, version=version)
            assert await buffer.version() == 4
        await buffer.advance(5, version=5)
        assert await buffer.version() == 5
