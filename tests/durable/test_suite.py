"""The conformance suite, run by durable buffers: with all rollouts in memory, and with none."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from buffer.test_suite import Called
from reroll import ReplayBufferConfig
from reroll.testing.buffer_suite import BufferSuite, VerbSuite
from reroll.testing.probe import probe


class Stored:
    """Each buffer of a test has a store of its own."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.buffers: list[Any] = []
        self.stores = (tmp_path / str(number) for number in range(1_000))

    def stored(self, config: ReplayBufferConfig) -> ReplayBufferConfig:
        return config.model_copy(update={"store": next(self.stores), **self.options})


class TestDurableBuffer(Stored, BufferSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        self.buffers.append(self.stored(config).build())
        return self.buffers[-1]

    async def settle(self) -> None:
        """Calls get on while the disk writes, which takes another thread's time."""
        for _ in range(3):
            await super().settle()
            for buffer in self.buffers:
                for _ in range(10_000):
                    if probe(buffer).disk._now is None:
                        break
                    await asyncio.sleep(0.0005)
        await super().settle()


class TestDurableBufferOnDisk(TestDurableBuffer):
    """No rollouts stay in memory: what is handed out are copies."""

    options: ClassVar[dict[str, Any]] = {"max_resident_bytes": 0}


@pytest.mark.slow
class TestBlockingDurableBuffer(Stored, VerbSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        return Called(self.stored(config).build_blocking())


class TestBlockingDurableBufferOnDisk(Stored, VerbSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        return Called(self.stored(config).build_blocking())

    options: ClassVar[dict[str, Any]] = {"max_resident_bytes": 0}
