"""Which version of the weights serves."""

from typing import Any

import pytest

from reroll.engine.limits import StalenessWindow
from reroll.errors import WaitTimeout
from reroll.testing.buffer.builders import ABORTED, New, group
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

    async def test_a_running_group_is_overdue_when_it_has_passed_the_window(self, new: New) -> None:
        buffer = await new(rate_limiter=StalenessWindow(max_staleness=1, batch=6))
        await buffer.advance(0)
        reservation = await buffer.reserve(1, "t")
        with pytest.raises(WaitTimeout, match="in time until step 2"):
            await buffer.wait_overdue(reservation, timeout=0.001)
        await buffer.advance(1)
        with pytest.raises(WaitTimeout, match="in time until step 2"):
            await buffer.wait_overdue(reservation, timeout=0.001)
        later = await buffer.reserve(1, "t")
        await buffer.advance(2)
        assert await buffer.wait_overdue(reservation) == "cancel"
        await buffer.release(reservation)
        assert await buffer.wait_overdue(reservation) is None
        await buffer.put(group(), "t", reservation=later, model_step=1)
        assert await buffer.wait_overdue(later) is None

    @pytest.mark.parametrize("stragglers", ["expire", "resume"])
    async def test_a_group_that_is_continued_counts_from_its_oldest_token_or_from_the_call(
        self, new: New, stragglers: Any
    ) -> None:
        buffer = await new(rate_limiter=StalenessWindow(max_staleness=1, batch=6, stragglers=stragglers))
        uid = await buffer.put(group(status=ABORTED), "t", model_step=0)
        await buffer.advance(2)
        await buffer.get(1, "t", ABORTED)
        if stragglers == "expire":
            assert await buffer.wait_overdue(uid) == "cancel"
        else:
            with pytest.raises(WaitTimeout, match="in time until step 4"):
                await buffer.wait_overdue(uid, timeout=0.001)
        await buffer.forget([uid])
        assert await buffer.wait_overdue(uid) is None
