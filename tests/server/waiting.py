"""How tests wait for what nobody tells them."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    """Return when something is so, in another process or in a part that tells nobody."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
