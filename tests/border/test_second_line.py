"""What passes the checks of arguments and cannot be written all the same fails its own call, never the buffer."""

import pytest

import reroll.buffer.groups
from reroll import NotStorable, ReplayBufferConfig
from reroll.testing.buffer.builders import group, names
from reroll.testing.probe import probe


async def test_a_row_that_cannot_be_written_fails_its_own_put_only(tmp_path, monkeypatch):
    config = ReplayBufferConfig(sampler="fifo", store=tmp_path)
    buffer = config.build()
    await buffer.put(group("before"), "t", tags={"x": 1})
    with monkeypatch.context() as patched:
        patched.setattr(reroll.buffer.groups, "checked_tags", lambda tags: tags)
        for tag in (object(), b"bytes", 10**5000):
            with pytest.raises(NotStorable, match="group"):
                await buffer.put(group("bad"), "t", tags={"x": tag}, put_id="again")
    await buffer.put(group("again"), "t", put_id="again")
    await buffer.close()
    again = config.build()
    assert names(await again.get(9, "t", "completed")) == ["before", "again"]
    await again.close()


async def test_a_state_that_cannot_be_written_fails_no_call(tmp_path):
    config = ReplayBufferConfig(sampler="fifo", store=tmp_path)
    buffer = config.build()
    probe(buffer).engine.task("z\udc80")
    await buffer.put(group("one"), "t")
    probe(buffer).engine.tasks["t"].counters.samples = 2**70
    await buffer.put(group("two"), "t")
    await buffer.close()
    again = config.build()
    assert names(await again.get(9, "t", "completed")) == ["one", "two"]
    await again.close()
