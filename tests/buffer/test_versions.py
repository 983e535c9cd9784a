"""Which version of the weights serves, after a restart."""

from reroll import ReplayBufferConfig
from reroll.testing.buffer.builders import group


async def test_the_version_is_saved_and_resumed(tmp_path):
    buffer, other = ReplayBufferConfig().build(), ReplayBufferConfig().build()
    await buffer.put(group(), "t")
    await buffer.advance(7, version=6)
    await buffer.save(tmp_path)
    await other.resume(tmp_path)
    assert await other.version() == 6
    assert await other.wait_version(6, timeout=0) == 6


async def test_a_durable_buffer_reopens_with_its_version(tmp_path):
    config = ReplayBufferConfig(store=tmp_path)
    async with config.build() as buffer:
        await buffer.advance(7)
        await buffer.advance(9)
    async with config.build() as buffer:
        assert await buffer.version() == 9
        await buffer.rewind(8)
    async with config.build() as buffer:
        assert await buffer.version() == 8
