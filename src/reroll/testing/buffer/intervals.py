"""Metrics of intervals."""

import pytest

from reroll.errors import InvalidArgument
from reroll.testing.buffer.builders import COMPLETED, New, group, put_all
from reroll.testing.buffer.hooks import Hooks


class IntervalSuite(Hooks):
    """`metrics` since the previous call of the same reader."""

    async def test_metrics_are_those_of_the_interval(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(reward=0.0), group(reward=0.0), model_step=1)
        await buffer.get(2, "t", COMPLETED, train_step=2)
        first = await buffer.metrics()
        assert (first["gen/groups"], first["train/groups"], first["train/reward_mean"]) == (2, 2, 0.0)
        await put_all(buffer, "t", *(group(reward=1.0) for _ in range(4)), model_step=1)
        await buffer.get(3, "t", COMPLETED, train_step=5)
        second = await buffer.metrics()
        assert (second["gen/groups"], second["train/groups"], second["train/reward_mean"]) == (4, 3, 1.0)
        assert second["train/staleness_oldest_mean"] == second["train/staleness_oldest_max"] == 3
        assert (second["total/gen/groups"], second["total/train/groups"]) == (6, 5)
        assert second["buffer/groups"] == 1
        third = await buffer.metrics()
        assert (third["gen/groups"], third["train/groups"], third["buffer/groups"]) == (0, 0, 1)
        assert "train/reward_mean" not in third
        assert third["total/gen/tokens"] == second["total/gen/tokens"] == 6 * 5

    async def test_readers_have_intervals_of_their_own(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(), group())
        assert (await buffer.metrics(reader="wandb"))["gen/groups"] == 2
        await put_all(buffer, "t", group())
        assert (await buffer.metrics(reader="tensorboard"))["gen/groups"] == 3
        assert (await buffer.metrics())["gen/groups"] == 3
        assert (await buffer.metrics(reader="wandb"))["gen/groups"] == 1
        for wrong in ("", 5, "x" * 201):
            with pytest.raises(InvalidArgument, match="reader"):
                await buffer.metrics(reader=wrong)
        assert (await buffer.metrics(reader="tensorboard"))["gen/groups"] == 0

    async def test_a_silent_reader_is_forgotten_for_a_new_one(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group())
        for name in ("oldest", "old"):
            await buffer.metrics(reader=name)
        for number in range(63):
            await buffer.metrics(reader=f"reader {number}")
        assert (await buffer.metrics(reader="old"))["gen/groups"] == 0
        assert (await buffer.metrics(reader="oldest"))["gen/groups"] == 1

    async def test_thirty_metrics_of_one_task_and_all_with_detail(self, new: New) -> None:
        buffer = await new()
        await put_all(buffer, "t", group(reward=1.0, members=2), group(reward=0.0, members=2), model_step=1)
        await buffer.get(1, "t", COMPLETED, train_step=2)
        metrics = await buffer.metrics()
        assert 25 <= len(metrics) <= 30
        assert not [name for name in metrics if "/t/" in name]
        assert metrics["train/reward_mean"] == 1.0
        everything = await buffer.metrics(reader="all", detail=True)
        assert everything["total/gen/t/groups"] == everything["gen/t/groups"] == everything["gen/groups"] == 2
        assert everything["gen/puts/completed"] == 2
        assert everything.keys() > metrics.keys()
        await put_all(buffer, "u", group(reward=1.0))
        metrics = await buffer.metrics()
        assert (metrics["gen/t/groups"], metrics["gen/u/groups"], metrics["gen/groups"]) == (0, 1, 1)
