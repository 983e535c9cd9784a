"""Which version of the weights serves."""

import pytest

from reroll.engine.limits import StalenessWindow
from reroll.errors import WaitTimeout
from reroll.testing.buffer.builders import New, group
from reroll.testing.buffer.hooks import Hooks


class VersionSuite(Hooks):
    """`version` and `wait_version`, as of `advance` and `rewind`."""

    async def test_the_version_follows_advance_and_rewind(self, new: New) -> None:
        buffer = await new()
        assert await buffer.version() is None
        await buffer.put(group(), "t")
        assert await buffer.version() is None
        await buffer.advance(3)
        assert await buffer.version() == 3
        assert await buffer.wait_version(2) == 3
        await buffer.advance(5, version=4)
        assert await buffer.version() == 4
        await buffer.advance(2)  # late: the version never goes back by it
        assert await buffer.version() == 4
        await buffer.rewind(1)
        assert await buffer.version() == 1
        with pytest.raises(WaitTimeout, match="version 1 serves"):
            await buffer.wait_version(2, timeout=0.001)
        await buffer.rewind(-1)
        assert await buffer.version() == 0

    async def test_the_version_follows_the_window_unless_advance_names_one(self, new: New) -> None:
        buffer = await new(rate_limiter=StalenessWindow(max_staleness=3, batch=3, sync_interval=2))
        await buffer.advance(0)
        assert await buffer.version() == 0
        await buffer.advance(1)
        assert await buffer.version() == 0
        await buffer.advance(3)
        assert await buffer.version() == 2
        await buffer.advance(4, version=3)
        assert await buffer.version() == 3
