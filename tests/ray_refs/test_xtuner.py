"""References in the fields of RolloutState: they survive save and resume, and are let go of, once, on reset and drop.

Ray frees an object with the last reference to it. So what is looked at is how many this process still holds.
"""

import gc

import numpy as np
import pytest
import ray

from reroll.integrations.xtuner import (
    AsyncReplayBufferConfig,
    RolloutState,
    Status,
    SyncReplayBufferConfig,
    reset_rollout_response,
)

CONFIGS = pytest.mark.parametrize("config", [SyncReplayBufferConfig(), AsyncReplayBufferConfig()])


def state(version=1, **fields):
    return RolloutState(status="completed", response_ids=[1], response_model_steps=[version], **fields)


def held(*names: bytes) -> list[int]:
    """Return how many references to objects this process holds."""
    gc.collect()
    counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    return [counts.get(name, {"local": 0})["local"] for name in names]


def name_of(ref) -> bytes:
    return ref.hex().encode()


class Objects:
    """A rollout with a reference in each of the three fields, and the names of their objects."""

    def __init__(self, version=1):
        experts, pixels, inner = ray.put(np.arange(4)), ray.put(np.ones(3)), ray.put({"tokens": [1, 2]})
        self.names = [name_of(ref) for ref in (experts, pixels, inner)]
        self.rollout = state(
            version,
            routed_experts=[experts],
            mm_info={"pixel_values": pixels},
            extra_fields={"outer": {"inner": [inner]}},
        )


@CONFIGS
async def test_they_survive_save_and_resume(config, tmp_path):
    buffer, shared = config.build(), ray.put("shared")
    await buffer.put([Objects().rollout, state(routed_experts=shared, mm_info=shared)], "math")
    await buffer.save(tmp_path)
    resumed = config.build()
    await resumed.resume(tmp_path)
    ((one, two),) = await resumed.get(1, "math", Status.COMPLETED)
    assert [ray.get(ref).tolist() for ref in one.routed_experts] == [[0, 1, 2, 3]]
    assert ray.get(one.mm_info["pixel_values"]).tolist() == [1, 1, 1]
    assert ray.get(one.extra_fields["outer"]["inner"][0]) == {"tokens": [1, 2]}
    assert two.routed_experts == two.mm_info != shared
    assert ray.get(two.mm_info) == "shared"


@CONFIGS
async def test_reset_lets_go_of_the_response_only(config):
    buffer, made = config.build(), Objects()
    await buffer.put([made.rollout], "math")
    assert held(*made.names) == [1, 1, 1]
    await buffer.refresh_staleness(task_stale_thresholds={"math": 3}, current_train_step=9)
    ((back,),) = await buffer.get(1, "math", Status.EXPIRED)
    assert back.routed_experts is None
    assert held(*made.names) == [0, 1, 1]
    assert ray.get(back.mm_info["pixel_values"]).tolist() == [1, 1, 1]
    reset_rollout_response(back)
    assert held(*made.names) == [0, 1, 1]


@CONFIGS
async def test_a_drop_at_put_lets_go_of_all(config):
    buffer, made = config.build(), Objects()
    options = {"current_train_step": 9, "stale_threshold": 3, "expired_groups_retryable": False}
    assert await buffer.put([made.rollout], "math", **options) is None
    assert held(*made.names) == [0, 0, 0]  # although the test still has the rollout
    assert (made.rollout.mm_info, made.rollout.extra_fields) == (None, {})


@CONFIGS
async def test_what_others_share_stays_until_the_last_goes(config):
    buffer, old, shared = config.build(), Objects(), ray.put("pixels")
    name = name_of(shared)
    old.rollout.mm_info = {"pixel_values": shared}
    await buffer.put([old.rollout], "math")
    await buffer.put([state(5, mm_info={"pixel_values": shared})], "math")
    del shared
    options = {"task_stale_thresholds": {"math": 3}, "expired_groups_retryable_by_task": {"math": False}}
    await buffer.refresh_staleness(current_train_step=7, **options)
    assert held(*old.names, name) == [0, 0, 0, 1]
    ((kept,),) = await buffer.peek([2])
    assert ray.get(kept.mm_info["pixel_values"]) == "pixels"
    del kept
    await buffer.refresh_staleness(current_train_step=20, **options)
    assert held(name) == [0]
    assert len(buffer) == 0


def test_a_reset_rollout_holds_nothing_of_its_response():
    made = Objects()
    assert reset_rollout_response(reset_rollout_response(made.rollout)) is made.rollout
    assert held(*made.names) == [0, 1, 1]
