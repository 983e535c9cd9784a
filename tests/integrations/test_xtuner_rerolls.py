"""States that agent loops roll again: they come back as copies, and sessions of groups that leave are released."""

import asyncio
import copy
import sys
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from pydantic import BaseModel, ConfigDict, Field

import reroll
from integrations.states import state
from reroll.integrations.xtuner import (
    AsyncReplayBufferConfig,
    FIFOReplayPolicy,
    NaiveStorage,
    ReplayBuffer,
    Status,
    SyncReplayBufferConfig,
)
from reroll.testing.buffer.rolled_again import copied

CONFIGS = [SyncReplayBufferConfig, AsyncReplayBufferConfig]
TERMINAL = {"current_train_step": 5, "stale_threshold": 3, "expired_groups_retryable": False}
RELEASE = "xtuner.v1.rl.rollout.trace_store.release_existing_sessions"


@reroll.register(name="state without group_uid")
class TheirState(BaseModel):
    """A state as xtuner has it: with lists and extra_fields, without group_uid."""

    model_config = ConfigDict(extra="forbid")

    rollout_id: int
    group_id: int = 1
    session_id: int | None = None
    message: list[dict[str, Any]] = [{"role": "user", "content": "prompt"}]
    prompt_ids: list[int] | None = [1, 2]
    tokens: list[int] | None = None
    response: str | None = ""
    response_ids: list[int] | None = Field(default_factory=lambda: [5])
    logprobs: list[float] | None = Field(default_factory=lambda: [-0.1])
    response_model_steps: list[int] | None = Field(default_factory=lambda: [1])
    seq_staleness: int = 0
    status: Status = Status.ABORTED
    mm_info: dict[str, Any] | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


@reroll.register(name="state without a place for a checkout")
class BareState(TheirState):
    extra_fields: None = None


def continued(states, status=Status.ABORTED):
    """Return what an agent loop in another process makes of states: copies with one more token."""
    copies = copied(states)
    for one in copies:
        one.response_ids.append(6)
        one.logprobs.append(-0.2)
        one.response_model_steps.append(2)
        one.status = status
    return copies


@pytest.fixture
def trace_store(monkeypatch):
    """A module with the name of xtuner's trace store."""
    *parents, _ = parts = ["xtuner", "v1", "rl", "rollout", "trace_store"]
    for depth in range(len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[: depth + 1]), ModuleType(parts[depth]))
    for depth in range(len(parents)):
        parent = sys.modules[".".join(parts[: depth + 1])]
        setattr(parent, parts[depth + 1], sys.modules[".".join(parts[: depth + 2])])
    sys.modules[".".join(parts)].release_existing_sessions = AsyncMock()


@pytest.mark.parametrize("kind", [TheirState, BareState])
@pytest.mark.parametrize("config", CONFIGS)
async def test_states_that_are_continued_as_copies_stay_one_group(config, kind, tmp_path):
    buffer = config().build()
    states = [kind(rollout_id=number) for number in range(4)]
    fields = copy.copy(states[0].extra_fields)
    uid = await buffer.put(states, "math")
    for _ in range(5):
        (taken,) = await buffer.get(1, "math", Status.ABORTED)
        assert taken[0].extra_fields == fields, "the mark is no field of the user's"
        assert await buffer.put(continued(taken), "math") == uid
    books = (await buffer.ledger())["math"]
    assert (books["out"].groups, books["resident"].groups, books["put"].groups) == (0, 1, 1)
    (taken,) = await buffer.get(1, "math", Status.ABORTED)
    away = continued(taken, Status.COMPLETED)
    await buffer.save(tmp_path)
    for _ in range(2):  # it is not the buffer that made the checkout, but goes on from it
        resumed = config().build()
        await resumed.resume(tmp_path)
        assert await resumed.count("math", Status.ABORTED) == 1
        assert await resumed.put(copied(away), "math") == uid
        assert len(resumed) == 1
        ((one, *_),) = await resumed.get(9, "math", Status.COMPLETED)
        assert one.extra_fields == fields
        assert "_reroll" not in (one.extra_fields or {})
        assert one.response_ids == [5, *[6] * 6]


async def test_a_checkout_of_a_lost_future_does_not_replace_a_group(tmp_path):
    buffer = SyncReplayBufferConfig().build()
    await buffer.save(tmp_path)
    await buffer.put([TheirState(rollout_id=1)], "math")
    (lost,) = await buffer.get(1, "math", Status.ABORTED)
    resumed = SyncReplayBufferConfig().build()
    await resumed.resume(tmp_path)
    uid = await resumed.put([TheirState(rollout_id=2)], "math")
    (taken,) = await resumed.get(1, "math", Status.ABORTED)
    assert await resumed.put(continued(lost), "math") != uid
    assert await resumed.put(continued(taken), "math") == uid
    assert (await resumed.ledger())["math"]["out"].groups == 0


@pytest.mark.parametrize("config", CONFIGS)
async def test_a_group_that_is_dropped_at_put_releases_its_sessions(config, trace_store):
    buffer = config().build()
    stale = state(1, session_id=101, response_model_steps=[1, 1], mm_info={"image": 1}, extra_fields={"x": 1})
    arrived = state(2, "expired", session_id=102)
    with patch(RELEASE, new=AsyncMock(return_value={"101"})) as release:
        assert await buffer.put([stale], "math", **TERMINAL) is None
        release.assert_awaited_once_with(["101"])
        assert await buffer.put([arrived], "math", expired_groups_retryable=False) is None
        assert release.await_args.args == (["102"],)
        assert await buffer.put([state(3, session_id=103)], "math", **TERMINAL) is not None
    assert release.await_count == 2
    for one in (stale, arrived):
        assert (one.status, one.prompt_ids, one.tokens, one.mm_info) == (Status.EXPIRED, None, None, None)
        assert one.extra_fields == {}
    assert len(buffer) == 1


@pytest.mark.parametrize("expire", ["group", "member"])
async def test_all_members_of_a_dropped_group_are_expired(expire):
    buffer = SyncReplayBufferConfig(expire=expire).build()
    stale, fresh = state(1, response_model_steps=[0, 0]), state(2, response_model_steps=[4, 4])
    options = {"current_train_step": 5, "stale_threshold": 10, "token_stale_threshold": 4}
    assert await buffer.put([stale, fresh], "math", **options, expired_groups_retryable=False) is None
    assert [one.status for one in (stale, fresh)] == [Status.EXPIRED] * 2
    assert stale.prompt_ids is fresh.prompt_ids is None


@pytest.mark.parametrize("config", CONFIGS)
async def test_a_refresh_releases_the_sessions_of_groups_that_are_not_rolled_again(config, trace_store):
    buffer = config().build()
    steps = [1, 1]
    for task, session in (("dropped", 201), ("kept", 202)):
        await buffer.put([state(1, session_id=session, response_model_steps=steps)], task)
    with patch(RELEASE, new=AsyncMock(return_value={"201"})) as release:
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={"dropped": 2, "kept": 2},
            expired_groups_retryable_by_task={"dropped": False, "kept": True},
            current_train_step=4,
        )
    release.assert_awaited_once_with(["201"])
    assert expired == {"dropped": 1, "kept": 1}
    assert [await buffer.count(task, Status.EXPIRED) for task in ("dropped", "kept")] == [0, 1]


async def test_sessions_are_released_together_while_the_buffer_goes_on():
    started, allowed, released = asyncio.Event(), asyncio.Event(), []

    async def release(sessions):
        released.append(sessions)
        started.set()
        await allowed.wait()

    reports = []
    buffer = ReplayBuffer(
        FIFOReplayPolicy(), NaiveStorage(), release_sessions=release, on_drop=reports.append
    )
    for number in (1, 2):
        await buffer.put([state(number, session_id=300 + number, response_model_steps=[1, 1])], "math")
    refresh = asyncio.ensure_future(
        buffer.refresh_staleness(
            task_stale_thresholds={"math": 2},
            expired_groups_retryable_by_task={"math": False},
            current_train_step=4,
        )
    )
    async with asyncio.timeout(60):
        await started.wait()
        assert await buffer.count("math", Status.COMPLETED) == 0
        assert not refresh.done()
        allowed.set()
        assert await refresh == {"math": 2}
    assert released == [["301", "302"]]
    assert [[each.uid for each in report] for report in reports] == [[1, 2]]


async def test_a_release_that_fails_is_logged(caplog):
    buffer = SyncReplayBufferConfig().build(release_sessions=AsyncMock(side_effect=RuntimeError("away")))
    assert await buffer.put([state(1, session_id=1, response_model_steps=[1, 1])], "math", **TERMINAL) is None
    assert "1 sessions of dropped groups were not released" in caplog.text
