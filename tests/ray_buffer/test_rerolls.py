"""Groups that actors roll again: they come back as copies, by another handle, and after their shard was killed."""

from copy import copy

import pytest
import ray

from ray_buffer.actors import kill, total
from ray_buffer.pool import buffer_of, own_buffer
from reroll import ReplayBufferConfig
from reroll.engine.ledger import closes
from reroll.integrations.xtuner import RolloutState, SyncReplayBufferConfig
from reroll.testing.buffer.builders import group
from reroll.testing.buffer.rolled_again import own, rolled

pytestmark = pytest.mark.usefixtures("ray_cluster")


@ray.remote(num_cpus=0)
class AgentLoop:
    """Continues states in a process of its own, and knows nothing of buffers."""

    def roll(self, states, status):
        for state in states:
            state.group_uid = None  # as a class that has no such field
            state.response_ids.append(6)
            state.response_model_steps.append(2)
            state.status = status
        return states


async def test_states_that_an_actor_continues_stay_one_group(tmp_path):
    buffer, loop = SyncReplayBufferConfig().build(), AgentLoop.remote()
    states = [
        RolloutState(
            rollout_id=number,
            group_id=1,
            prompt_ids=[1, 2],
            response_ids=[5],
            response_model_steps=[1],
            status="aborted",
        )
        for number in range(4)
    ]
    uid = await buffer.put(states, "t")
    for _ in range(5):
        (taken,) = await buffer.get(1, "t", "aborted")
        assert await buffer.put(await loop.roll.remote(taken, "aborted"), "t") == uid
    assert total(await buffer.ledger(), "out") == 0
    (taken,) = await buffer.get(1, "t", "aborted")
    done = await loop.roll.remote(taken, "completed")
    await buffer.save(tmp_path)
    resumed = SyncReplayBufferConfig().build()
    await resumed.resume(tmp_path)
    assert await resumed.put(done, "t") == uid
    assert len(resumed) == 1
    ray.kill(loop)


async def test_a_group_comes_back_by_another_handle_to_its_own_shard():
    with buffer_of(ReplayBufferConfig(sampler="fifo"), num_shards=3) as buffer:
        kinds = [
            own("marked", extra_fields={}),
            own("compared"),
            group("rollouts", status="aborted", versions=1),
        ]
        uids = {items[0].group_id: await buffer.put(items, "t") for items in kinds}
        for taken in await copy(buffer).get(3, "t", "aborted"):
            assert await copy(buffer).put(rolled(taken), "t") == uids[taken[0].group_id]
        books = (await buffer.ledger())["t"]
        assert closes(books)
        assert (books["out"].groups, books["put"].groups) == (0, 3)


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_group_comes_back_after_its_shard_was_killed(tmp_path, is_durable):
    config = ReplayBufferConfig(sampler="fifo", store=tmp_path / "buffer" if is_durable else None)
    with own_buffer(config, num_shards=2) as buffer:
        uids = [await buffer.put(own(name, extra_fields={}), "t") for name in range(2)]
        taken = await buffer.get(2, "t", "aborted")
        for shard in range(2):
            kill(buffer, shard)
        again = [await buffer.put(rolled(each), "t") for each in taken]
        books = (await buffer.ledger())["t"]
        assert closes(books)
        if is_durable:
            assert sorted(again) == sorted(uids)
            assert (books["put"].groups, books["resident"].groups) == (2, 2)
        else:
            assert not set(again) & set(uids), "a group of a buffer that was lost is a new one"
            assert (books["put"].groups, books["lost"].groups, books["resident"].groups) == (4, 2, 2)
