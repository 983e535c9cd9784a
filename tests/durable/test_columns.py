"""A durable buffer reads only the columns that a receiver asks for."""

import sqlite3

import numpy as np
import pytest

from reroll import CorruptData, ReplayBufferConfig, RolloutGroup, open_readonly
from reroll.store import FILE_NAME

TOKENS = 1000


def group() -> RolloutGroup:
    rng = np.random.default_rng(0)
    return RolloutGroup.pack(
        [1, 2],
        [np.arange(TOKENS)] * 2,
        logprobs=[rng.random(TOKENS, np.float32)] * 2,
        model_step=0,
        columns={
            "experts": rng.integers(0, 9, (2 * TOKENS, 40), np.uint8),
            "ref": rng.random(2 * TOKENS, np.float32),
        },
        fields={"mm_info": [{"image": np.arange(9)}] * 2},
    )


def damage(directory, uid):
    """Alter a byte of the column `experts` on disk."""
    head_and_tokens = 2 * TOKENS * 8 + 5000
    with sqlite3.connect(directory / FILE_NAME) as file:
        (blob,) = file.execute("SELECT blob FROM payloads WHERE uid = ?", (uid,)).fetchone()
        altered = bytearray(blob)
        altered[head_and_tokens] ^= 1
        file.execute("UPDATE payloads SET blob = ? WHERE uid = ?", (bytes(altered), uid))
    file.close()


@pytest.fixture
async def closed(tmp_path):
    """The directory of a store with two groups, of which the first has a damaged column."""
    buffer = ReplayBufferConfig(store=tmp_path).build()
    uids = await buffer.put_many([group(), group()], "t")
    await buffer.close()
    damage(tmp_path, uids[0])
    return tmp_path


@pytest.mark.parametrize("resident", [None, 0])
async def test_columns_that_are_not_asked_for_are_not_read(closed, resident):
    buffer = ReplayBufferConfig(store=closed, max_resident_bytes=resident, max_times_sampled=None).build()
    wanted = group()
    for found in (
        *await buffer.peek([1], columns=["ref"]),
        *(sample.group for sample in await buffer.sample(2, "t", columns=["ref"])),
    ):
        assert found.column_names == ["ref"]
        assert np.array_equal(found.column("ref"), wanted.column("ref"))
        assert np.array_equal(found.logprobs, wanted.logprobs)
        assert np.array_equal(found[1].mm_info["image"], np.arange(9))
    assert (await buffer.stats()).memory_bytes == 0, "a part of a group is not kept in memory"
    with pytest.raises(CorruptData):
        await buffer.peek([1])
    (whole,) = await buffer.peek([2])
    assert np.array_equal(whole.column("experts"), wanted.column("experts"))
    await buffer.close()


async def test_a_taken_part_is_the_newest_state_of_the_group(tmp_path):
    config = ReplayBufferConfig(store=tmp_path, max_resident_bytes=0)
    async with config.build() as buffer:
        uid = await buffer.put(group(), "t")
        await buffer.patch(uid, reward=[1.0, 2.0], ref_logprobs=[np.zeros(TOKENS)] * 2)
        await buffer.advance(4)
        groups, _ = await buffer.take_batch({"t": 1}, columns=["ref_logprobs"], train_step=5)
    (taken,) = groups["t"]
    assert taken.column_names == ["ref_logprobs"]
    assert list(taken.rewards) == [1, 2]
    assert taken.staleness == 4
    assert taken.uid == uid


def test_a_file_is_read_by_columns(closed):
    with open_readonly(closed) as file:
        (found,) = file.peek([1], columns=[])
        assert found.column_names == []
        assert len(found.response_ids) == 2 * TOKENS
        with pytest.raises(CorruptData):
            file.peek([1])
