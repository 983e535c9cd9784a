"""What a buffer of your own fills in."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from reroll.config import ReplayBufferConfig
from reroll.testing.buffer.builders import New


class Hooks:
    """How the tests get a buffer."""

    async def make(self, config: ReplayBufferConfig) -> Any:
        """Return a new buffer of this configuration."""
        return config.build()

    @pytest.fixture
    async def new(self) -> AsyncIterator[New]:
        made: list[Any] = []

        async def make(**options: Any) -> Any:
            buffer = await self.make(ReplayBufferConfig(**{"sampler": "fifo", "seed": 0, **options}))
            made.append(buffer)
            return buffer

        yield make
        for buffer in made:
            await buffer.close()
