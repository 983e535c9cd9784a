"""The internal state of a buffer, for tests of guarantees that its verbs cannot show."""

from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.buffer.buffer import ReplayBuffer, runtime_of
from reroll.buffer.runtime import Runtime


def probe(buffer: ReplayBuffer | BlockingReplayBuffer) -> Runtime:
    """Return the runtime of a buffer: its engine, groups, leases, reservations, waits and disk."""
    target = buffer._target if isinstance(buffer, BlockingReplayBuffer) else buffer  # noqa: SLF001  (a probe)
    return runtime_of(target)
