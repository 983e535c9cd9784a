"""Buffers at a prompt: their truth, their names, and one line that says what they hold."""

import reroll
from reroll import Rollout, SyncReplayBufferConfig, open_readonly


def rollouts():
    return [Rollout(response_ids=[1], reward=1.0, status="completed")]


async def test_an_empty_buffer_is_true():
    async with SyncReplayBufferConfig().build() as buffer:
        assert len(buffer) == 0
        assert buffer


async def test_a_buffer_says_what_it_holds_in_one_line():
    buffer = SyncReplayBufferConfig().build()
    await buffer.put(rollouts(), "math")
    assert repr(buffer) == "<ReplayBuffer: 1 groups, 1 tasks>"
    await buffer.close()
    assert repr(buffer) == "<ReplayBuffer: 1 groups, 1 tasks, closed>"


def test_blocking_buffers_and_files_do_too(tmp_path):
    with SyncReplayBufferConfig(store=tmp_path).build_blocking() as buffer:
        assert buffer
        assert repr(buffer) == "<BlockingReplayBuffer: 0 groups, 0 tasks>"
    with open_readonly(tmp_path) as saved:
        assert len(saved) == 0
        assert saved


def test_every_public_name_is_listed():
    assert set(reroll.__all__) <= set(dir(reroll))
