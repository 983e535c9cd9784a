"""The drop-in ReplayBuffer: the conformance suite, its order, save and resume, and that our verbs see its groups."""

import asyncio
import enum

import numpy as np
import pytest

import reroll
from integrations.states import numbers, state
from reroll import InvalidConfig, NotEmpty, Rollout, open_readonly
from reroll.integrations.xtuner import (
    AsyncReplayBufferConfig,
    FIFOReplayPolicy,
    NaiveStorage,
    PandasStorage,
    ReplayBuffer,
    ReplayPolicy,
    RolloutState,
    StalenessReplayPolicy,
    Status,
    SyncReplayBufferConfig,
)
from reroll.testing import BufferSuite

CONFIGS = [SyncReplayBufferConfig, AsyncReplayBufferConfig]


class TestDropIn(BufferSuite):
    async def make(self, config):
        return ReplayBuffer.from_config(config)


def fifo(**options):
    return ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=NaiveStorage(), **options)


@pytest.mark.parametrize("storage", [NaiveStorage, PandasStorage])
@pytest.mark.parametrize(
    ("policy", "order"), [(FIFOReplayPolicy, [1, 2, 3, 4]), (StalenessReplayPolicy, [2, 1, 3, 4])]
)
async def test_the_policy_is_the_order(policy, order, storage):
    buffer = ReplayBuffer(policy=policy(), storage_backend=storage())
    for number, staleness in enumerate((3, 8, 3, 0), start=1):
        assert await buffer.put([state(number, seq_staleness=staleness)], "math") == number
    assert numbers(await buffer.get(4, "math", Status.COMPLETED)) == order
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("config", "order"), [(SyncReplayBufferConfig, [1, 2, 3]), (AsyncReplayBufferConfig, [2, 3, 1])]
)
async def test_configurations_build_the_drop_in(config, order):
    buffer = config(expire="member").build()
    assert type(buffer) is ReplayBuffer
    assert isinstance(buffer, reroll.ReplayBuffer)
    for number, staleness in enumerate((1, 5, 3), start=1):
        await buffer.put([state(number, seq_staleness=staleness)], "math")
    assert numbers(await buffer.get(3, "math", "completed")) == order
    assert config(sampler="lifo").build() is not None
    with pytest.raises(ValueError, match="nonsense"):
        config(nonsense=1)


async def test_options_are_keywords():
    buffer = fifo(expire="member", capacity=1, tasks={"code": {"capacity": 2}})
    stale, fresh = state(1, response_model_steps=[0, 0]), state(2, response_model_steps=[4, 4])
    await buffer.put([stale, fresh], "math", current_train_step=5, stale_threshold=4)
    ((one, two),) = await buffer.get(1, "math", Status.EXPIRED)
    assert (one.status, one.response_ids) == (Status.EXPIRED, [])
    assert (two.status, two.response_ids) == (Status.COMPLETED, [20, 21])
    await buffer.put([state(3)], "math")
    with pytest.raises(TimeoutError):
        await buffer.put([state(4)], "math", timeout=0.01)
    with pytest.raises(ValueError, match="expire"):
        fifo(expire="never")


async def test_a_loop_of_its_verbs():
    buffer = AsyncReplayBufferConfig().build()
    assert await buffer.put([], "math") is None
    for version in (1, 2, 3):
        made = state(version)
        await buffer.put([made], "math", model_step=version, current_train_step=4)
        assert made.response_model_steps == [version, version]
        assert made.seq_staleness == 3 - version
    await buffer.put([state(4, "failed")], "math")
    assert await buffer.refresh_staleness(task_stale_thresholds={"math": 3}, current_train_step=5) == {
        "math": 1
    }
    assert await buffer.is_ready({"math": 2, "code": 0})
    assert not await buffer.is_ready({"math": 3})
    counts = await buffer.count_statuses(["math", "code"], [Status.COMPLETED, Status.EXPIRED, Status.FAILED])
    assert [list(of_task.values()) for of_task in counts.values()] == [[2, 1, 1], [0, 0, 0]]
    groups, taken = await buffer.take_batch({"math": 5, "code": 0}, train_step=5)
    assert (numbers(groups["math"]), groups["code"], taken) == ([2, 3], [], {"math": 2, "code": 0})
    ((again,),) = await buffer.get(1, "math", Status.EXPIRED)
    assert (again.rollout_id, again.response_ids, again.response, again.reward) == (1, [], "", None)
    assert await buffer.get(0, "math", Status.COMPLETED) == []
    with pytest.raises(ValueError, match="at least 1"):
        await buffer.refresh_staleness(task_stale_thresholds={"math": 0}, current_train_step=6)
    with pytest.raises(ValueError, match="is not a status"):
        await buffer.count("math", "done")


async def test_lists_stay_lists_and_objects_the_same():
    buffer, made = fifo(), state(mm_info={"pixels": np.ones(2)}, response_model_steps=[0])
    before = made.model_copy()
    await buffer.put([made], "math", model_step=3)
    ((back,),) = await buffer.get(1, "math", "completed")
    assert back is made
    assert back.response_ids is before.response_ids
    assert back.response_model_steps == [0, 3]
    assert type(back.response_model_steps) is list


@pytest.mark.parametrize("config", CONFIGS)
async def test_save_and_resume_keep_order_fields_and_lists(config, tmp_path):
    buffer = config().build()
    for number, staleness in enumerate((1, 5, 3), start=1):
        extra = {"nested": [{"deep": (number, None)}], "array": np.arange(number)}
        await buffer.put([state(number, seq_staleness=staleness, extra_fields=extra)], "math")
    await buffer.put([state(4, "aborted")], "math")
    await buffer.save(tmp_path / "deep" / "checkpoint")
    resumed = config().build()
    await resumed.resume(tmp_path / "deep" / "checkpoint")
    assert len(resumed) == 4
    expected = await buffer.get(3, "math", "completed")
    found = await resumed.get(3, "math", "completed")
    assert found == expected
    assert type(found[0][0]) is RolloutState
    assert type(found[0][0].response_ids) is list
    assert await resumed.put([state(5)], "math") == 5  # never a uid again
    with pytest.raises(NotEmpty):
        await resumed.resume(tmp_path / "deep" / "checkpoint")
    other = next(one for one in CONFIGS if one is not config)
    with pytest.raises(InvalidConfig, match=r"fifo.*stalest|stalest.*fifo"):
        await other().build().resume(tmp_path / "deep" / "checkpoint")


async def test_either_storage_resumes_what_the_other_saved(tmp_path):
    buffer = fifo()
    await buffer.put([state(1)], "math")
    await buffer.save(tmp_path)
    resumed = ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=PandasStorage())
    await resumed.resume(tmp_path)
    assert numbers(await resumed.get(1, "math", "completed")) == [1]


async def test_a_store_keeps_it_through_a_crash(tmp_path):
    buffer = fifo(store=tmp_path)
    await buffer.put([state(1)], "math", model_step=2)
    await buffer.close()
    again = fifo(store=tmp_path)
    ((back,),) = await again.get(1, "math", "completed")
    assert (back.response_ids, back.response_model_steps) == ([10, 11], [2, 2])
    await again.close()


async def test_our_verbs_see_its_groups(tmp_path):
    buffer = fifo()
    uid = await buffer.put(
        [state(1), state(2, reward={"score": 0.0})], "math", model_step=3, tags={"source": "a"}
    )
    (row,) = await buffer.query({"tags.source": "a", "reward_std": {"$gt": 0}, "version": 3})
    assert (row.uid, row.num_rollouts, row.num_tokens, row.group_id) == (uid, 2, 8, 1)
    assert numbers(await buffer.peek([uid])) == [1]
    await buffer.patch(uid, reward=[0.5, 0.5])
    async with buffer.lease({"math": 1}) as batch:
        assert [member.reward for member in batch.groups["math"][0]] == [0.5, 0.5]
    assert await buffer.count("math", "completed") == 1  # not acknowledged, so it is back
    await buffer.save(tmp_path)
    with open_readonly(tmp_path) as seen:
        assert numbers(seen.peek([uid])) == [1]
    ours = reroll.SyncReplayBufferConfig().build()
    await ours.resume(tmp_path)  # and the other way round
    assert numbers(await ours.get(1, "math", "completed")) == [1]


async def test_rollouts_of_every_kind_can_be_put():
    buffer = fifo()
    await buffer.put([Rollout(status="completed", response_ids=[1])], "math")
    ((back,),) = await buffer.get(1, "math", "completed")
    assert type(back) is Rollout


class TheirStatus(enum.Enum):
    """As xtuner has it: no text, but of the same values."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"


class TheirState:
    def __init__(self, number, status=TheirStatus.COMPLETED, **fields):
        self.rollout_id, self.status, self.seq_staleness = number, status, 0
        self.response_ids, self.response_model_steps = [number], None
        vars(self).update(fields)


async def test_their_own_rollouts_and_statuses_are_taken():
    storage = NaiveStorage()
    buffer = ReplayBuffer(policy=FIFOReplayPolicy(), storage_backend=storage)
    for version in (1, 2, 3):
        await buffer.put([TheirState(version)], "math", model_step=version)
    await buffer.put([TheirState(4, TheirStatus.ABORTED, response_model_steps=[1])], "math")
    refreshed = await buffer.refresh_staleness(
        task_stale_thresholds={"math": 3}, current_train_step=5, statuses=[TheirStatus.COMPLETED]
    )
    assert refreshed == {"math": 1}
    counts = await buffer.count_statuses(["math"], list(TheirStatus))
    assert counts == {"math": dict(zip(TheirStatus, (2, 1, 1), strict=True))}
    assert await buffer.count("math", group_status=TheirStatus.ABORTED) == 1
    assert await storage.count({"status": {"$in": [TheirStatus.ABORTED, Status.EXPIRED]}}) == 2
    assert await buffer.is_ready({"math": 1}, group_status=TheirStatus.ABORTED)
    await buffer.wait_ready({"math": 2}, group_status=TheirStatus.COMPLETED, timeout=0)
    ((expired,),) = await buffer.get(1, "math", TheirStatus.EXPIRED)
    assert expired.status is TheirStatus.EXPIRED
    async with buffer.lease({"math": 1}, group_status=TheirStatus.ABORTED) as batch:
        assert numbers(batch.groups["math"]) == [4]
    groups, _ = await buffer.take_batch({"math": 2}, group_status=TheirStatus.COMPLETED)
    assert numbers(groups["math"]) == [2, 3]
    with pytest.raises(ValueError, match="is not a status"):
        await buffer.count("math", enum.Enum("Other", {"DONE": "done"}).DONE)


async def test_a_waiting_trainer_is_woken():
    buffer = fifo()
    waiting = asyncio.create_task(buffer.take_batch({"math": 2}, wait=True, timeout=10))
    for number in (1, 2):
        await asyncio.sleep(0)
        await buffer.put([state(number)], "math")
    groups, _ = await waiting
    assert numbers(groups["math"]) == [1, 2]


class TestExtensionPoints:
    @pytest.mark.parametrize("parent", [ReplayPolicy, FIFOReplayPolicy, StalenessReplayPolicy])
    def test_a_policy_of_ones_own(self, parent):
        with pytest.raises(
            TypeError, match=r"Mine: .*sampler.*selector.*CONTRIBUTING\.md.*reroll\.testing\.SelectorSuite"
        ):
            type("Mine", (parent,), {})

    @pytest.mark.parametrize(
        ("policy", "storage"),
        [(object(), NaiveStorage()), ("fifo", NaiveStorage()), (FIFOReplayPolicy(), {})],
    )
    def test_objects_of_other_kinds(self, policy, storage):
        with pytest.raises(
            TypeError, match=r"no (ReplayPolicy|StorageBackend) of this module: .*reroll\.testing"
        ):
            ReplayBuffer(policy=policy, storage_backend=storage)

    def test_the_parents_are_no_policies(self):
        with pytest.raises(TypeError):
            ReplayPolicy()

    def test_two_orders_are_one_too_many(self):
        with pytest.raises(TypeError, match="sampler"):
            fifo(sampler="lifo")
