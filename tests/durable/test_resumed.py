"""A buffer that was resumed: its rollouts are bytes until somebody looks, which nobody can tell."""

import sqlite3

import numpy as np
import pytest

from reroll import ReplayBufferConfig, Rollout
from reroll.store import open_saved

TASK = "math"


def group(number: int) -> list[Rollout]:
    return [
        Rollout(
            prompt_ids=[1, 2, 3],
            response_ids=np.arange(number + 1, dtype=np.int32),
            logprobs=np.full(number + 1, -0.5, np.float32),
            reward=float(member),
            status="completed",
            message=[{"role": "user", "content": str(number)}],
        )
        for member in range(2)
    ]


async def saved(path, **options):
    buffer = ReplayBufferConfig(sampler="fifo", seed=0, **options).build()
    for number in range(6):
        await buffer.put(group(number), TASK, model_step=number, current_train_step=8)
    await buffer.save(path)
    return buffer


async def resumed(path, **options):
    buffer = ReplayBufferConfig(sampler="fifo", seed=0, **options).build()
    await buffer.resume(path)
    return buffer


def payloads(path) -> dict[int, bytes]:
    with open_saved(path) as file:
        return dict(file.all_payloads())


async def test_what_nobody_looked_at_is_saved_as_it_was(tmp_path):
    await saved(tmp_path / "first")
    buffer = await resumed(tmp_path / "first")
    looked_at = await buffer.peek([2])
    assert [len(rollout.response_ids) for rollout in looked_at[0]] == [2, 2]
    await buffer.save(tmp_path / "second")
    assert payloads(tmp_path / "second") == payloads(tmp_path / "first")


async def test_batches_are_those_of_the_buffer_that_was_saved(tmp_path):
    first = await saved(tmp_path / "file")
    second = await resumed(tmp_path / "file")
    while (batch := (await first.take_batch({TASK: 2}, train_step=9))[0]).get(TASK):
        again, _ = await second.take_batch({TASK: 2}, train_step=9)
        assert again == batch
        assert [[rollout.seq_staleness for rollout in one] for one in again[TASK]] == [
            [rollout.seq_staleness for rollout in one] for one in batch[TASK]
        ]


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
async def test_samples_are_the_same_where_the_last_thing_before_was_a_put(tmp_path, sampler):
    config = ReplayBufferConfig(sampler=sampler, max_times_sampled=2, seed=5)
    first = config.build()
    for step in range(1, 7):
        await first.sample(
            2, TASK, train_step=step, allow_short=True
        )  # some leave, and others take their place
        for number in range(3):
            await first.put(group(number), TASK, model_step=step)
    await first.save(tmp_path / "file")
    second = config.build()
    await second.resume(tmp_path / "file")
    for _ in range(4):
        one, other = [await buffer.sample(2, TASK) for buffer in (first, second)]
        assert [info.uid for _, info in one] == [info.uid for _, info in other]


async def test_what_expires_and_what_is_patched(tmp_path):
    pictures = []
    first = await saved(tmp_path / "file")
    for buffer in (first, await resumed(tmp_path / "file")):
        await buffer.refresh_staleness(task_stale_thresholds={TASK: 5}, current_train_step=9)
        await buffer.patch(6, reward=[3.0, 4.0])
        rows = await buffer.query({})
        taken = await buffer.get(9, TASK, "expired")
        left = await buffer.get(9, TASK, "completed")
        pictures.append((rows, taken, left))
    assert pictures[0] == pictures[1]
    assert len(pictures[0][1]) == 4
    assert [rollout.reward for rollout in pictures[0][2][-1]] == [3.0, 4.0]


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
async def test_damage_is_found_when_it_is_resumed(tmp_path, on_corrupt):
    await saved(tmp_path / "file")
    with sqlite3.connect(tmp_path / "file" / "replay_buffer.sqlite") as connection:
        ((blob,),) = connection.execute("SELECT blob FROM payloads WHERE uid = 3")
        altered = blob[:-1] + bytes([blob[-1] ^ 1])
        connection.execute("UPDATE payloads SET blob = ? WHERE uid = 3", (altered,))
    connection.close()
    buffer = ReplayBufferConfig(sampler="fifo", seed=0).build()
    if on_corrupt == "raise":
        with pytest.raises(ValueError, match="group 3"):
            await buffer.resume(tmp_path / "file")
        return
    with pytest.warns(UserWarning, match=r"groups \[3\] in .* are damaged"):
        await buffer.resume(tmp_path / "file", on_corrupt="skip")
    assert [row.uid for row in await buffer.query({})] == [1, 2, 4, 5, 6]
    assert (await buffer.ledger())[TASK]["lost"].groups == 1
