"""Leases that end together, and leases for steps that were rewound."""

import pytest

from reroll import ReplayBufferConfig
from reroll.testing.buffer.builders import group


@pytest.mark.parametrize("is_killed", [False, True])
async def test_all_uses_are_given_back_before_a_group_expires(tmp_path, is_killed):
    config = ReplayBufferConfig(store=tmp_path / "store", sampler="least_used", max_times_sampled=3)
    buffer = config.build()
    await buffer.put(group("a"), "t", model_step=0)
    await buffer.refresh_staleness(task_stale_thresholds={"t": 3}, current_train_step=1)
    await buffer.lease({"t": 1}, train_step=1)
    trained = await buffer.lease({"t": 1}, train_step=3)
    await trained.ack()
    await buffer.lease({"t": 1}, train_step=5)
    if is_killed:
        config = config.model_copy(update={"store": tmp_path / "copy"})
        (tmp_path / "copy").mkdir()
        for file in (tmp_path / "store").iterdir():
            if "lock" not in file.name:
                (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    else:
        await buffer.close()
    async with config.build() as reopened:
        (row,) = await reopened.query({})
        assert (row.status.value, row.times_sampled) == ("expired", 1)
    await buffer.close()


async def test_a_commit_covers_the_use_of_a_lease_whose_step_was_rewound():
    buffer = ReplayBufferConfig(max_uncommitted_steps=9).build()
    await buffer.put(group("a"), "t", model_step=0)
    batch = await buffer.lease({"t": 1}, train_step=5)
    await buffer.rewind(3)
    await batch.ack()  # the trainer is at step 4
    assert await buffer.commit(4) == 1
    assert await buffer.rewind(4) == 0, "the group is not trained again"
    assert len(buffer) == 0
