"""BlockingRayReplayBuffer: the verbs of RayReplayBuffer for threads, each made of its twin."""

from typing import Any

from reroll.buffer.blocking import BlockingVerbs
from reroll.buffer.plain_calls import blocking
from reroll.config import ReplayBufferConfig
from reroll.ray.handle import Handle
from reroll.ray.looping import run


class BlockingRayReplayBuffer(BlockingVerbs):
    """Thread-safe; same verbs, arguments, results and errors as RayReplayBuffer, without `await`."""

    def __init__(self, target: Handle) -> None:
        self._target: Handle = target
        self._run = run

    close = blocking(Handle.close)
    shard_stats = blocking(Handle.shard_stats)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._target,)

    def __repr__(self) -> str:
        return f"{self._target!r}.blocking()"

    def __len__(self) -> int:
        return len(self._target)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    @property
    def config(self) -> ReplayBufferConfig:
        """What the buffer was made from."""
        return self._target.config
