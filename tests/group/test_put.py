"""A buffer takes a RolloutGroup as it takes a list of Rollouts."""

import pytest

from reroll import ReplayBufferConfig, RolloutGroup, Status


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_group_is_put_and_comes_back(is_durable, tmp_path):
    config = ReplayBufferConfig(sampler="fifo", store=tmp_path if is_durable else None)
    async with config.build() as buffer:
        group = RolloutGroup.pack(
            [1, 2],
            [[3, 4], [5]],
            rewards=[1.0, 0.0],
            finish_reasons=["stop", "length"],
            columns={"ref_logprobs": [[-0.5, -1.0], [0.0]]},
            group_id="g",
        )
        uid = await buffer.put(group, "math", model_step=3, current_train_step=4)
        assert group.uid == uid
        assert (group.version, group.staleness) == (3, 0)
        (taken,) = await buffer.get(1, "math", Status.COMPLETED, train_step=4)
        assert group == list(taken)
        assert taken[0].columns["ref_logprobs"].tolist() == [-0.5, -1.0]


async def test_a_partial_group_is_continued():
    async with ReplayBufferConfig().build() as buffer:
        uid = await buffer.put(
            RolloutGroup.pack([1], [[3, 4]], finish_reasons=["abort"]), "math", model_step=3
        )
        (taken,) = await buffer.get(1, "math", Status.ABORTED)
        whole = RolloutGroup.of(taken).extended([[5]], model_step=4, finish_reasons=["stop"])
        assert await buffer.put(whole, "math") == uid
        (found,) = await buffer.get(1, "math", Status.COMPLETED)
        assert found[0].response_ids.tolist() == [3, 4, 5]
        assert found[0].response_model_steps.tolist() == [3, 3, 4]
