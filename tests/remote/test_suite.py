"""The conformance suite, run across a boundary that carries bytes only: in memory, on disk, and with nothing in memory."""

from typing import Any, ClassVar

import pytest

from durable.test_suite import TestDurableBuffer as DurableSuite
from remote.across import Across
from reroll import ReplayBufferConfig
from reroll.testing.buffer_suite import BufferSuite


class TestAcross(BufferSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        return Across(config.build())


@pytest.mark.slow
class TestAcrossOntoDisk(DurableSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        return Across(await super().make(config))


@pytest.mark.slow
class TestAcrossNothingInMemory(TestAcrossOntoDisk):
    options: ClassVar[dict[str, Any]] = {"max_resident_bytes": 0}
