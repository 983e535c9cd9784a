"""A durable buffer that is left behind by a crash: what was in nobody's hands any more is settled once."""

import shutil

import pytest

from reroll import ReplayBufferConfig, Rollout
from reroll.engine.ledger import closes


def group(number):
    return [Rollout(prompt_ids=[number], response_ids=[number], reward=0.0, status="completed")]


@pytest.mark.parametrize("reopenings", [1, 3])
async def test_what_was_consumed_for_no_step_is_counted_once(tmp_path, reopenings):
    config = ReplayBufferConfig(store=tmp_path / "live", sampler="fifo")
    buffer = config.build()
    for number in range(4):
        await buffer.put(group(number), "math")
    await buffer.get(1, "math", "completed")
    # As after a crash right then: the row that was consumed is still in the file.
    shutil.copytree(tmp_path / "live", tmp_path / "copy", ignore=shutil.ignore_patterns("*lock*"))
    for _ in range(reopenings):
        copy = ReplayBufferConfig(store=tmp_path / "copy", sampler="fifo").build()
        ledger = (await copy.ledger())["math"]
        assert closes(ledger)
        assert (ledger["consumed"].groups, ledger["uncommitted"].groups) == (1, 0)
        await copy.put(group(9), "math")
        await copy.close()
    await buffer.close()
