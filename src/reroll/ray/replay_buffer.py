"""RayReplayBuffer: a buffer in actors of a Ray cluster, as users have it."""

from reroll.ray.blocking import BlockingRayReplayBuffer
from reroll.ray.handle import Handle


class RayReplayBuffer(Handle):
    """A buffer in actors of a Ray cluster: same verbs, arguments, results and errors as ReplayBuffer.

    Made by `create`, found by `connect`; it can be sent to other actors and tasks. All methods but `len()`, `lease()` and
    `blocking()` are coroutines. What is put and taken are copies. A call that cannot reach its shard tries again, and
    raises Unreachable in the end.
    """

    def blocking(self) -> BlockingRayReplayBuffer:
        """Return the same buffer for threads: its verbs are called without `await`."""
        return BlockingRayReplayBuffer(type(self)(self._about))
