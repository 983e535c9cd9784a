"""The conformance suite, run by the asyncio buffer and by its blocking twin."""

import inspect
from typing import Any

from reroll import BlockingReplayBuffer, ReplayBuffer, ReplayBufferConfig
from reroll.testing.buffer_suite import BufferSuite, VerbSuite


class TestReplayBuffer(BufferSuite):
    pass


class Called:
    """A blocking buffer whose verbs are awaited: they are done when they are called."""

    def __init__(self, buffer: BlockingReplayBuffer) -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def __getattr__(self, verb: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._buffer, verb)(*args, **kwargs)

        return call


class TestBlockingReplayBuffer(VerbSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        return Called(config.build_blocking())


def test_the_twin_has_the_same_verbs_and_signatures():
    verbs = {name: verb for name, verb in inspect.getmembers(ReplayBuffer) if not name.startswith("_")}
    assert verbs
    for name, verb in verbs.items():
        twin = getattr(BlockingReplayBuffer, name)
        assert not inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(verb)
        assert twin.__doc__ == verb.__doc__
