"""reroll on a Ray cluster: the buffer in actors, for producers and trainers on any node (extra `ray`).

buffer     RayReplayBuffer: create, connect, and the verbs of a buffer; BlockingRayReplayBuffer: the same for threads
actor      BufferActor: a `remote.BufferHost` in an actor, and its gauges
transport  frames through Ray, and groups with Ray references
losses     counts what a shard without a store had when it dies
preparer   PreparerActor: `reroll.prepare` in an actor

Sessions, verbs, messages and shards are those of `reroll.remote`.
"""

from reroll.errors import missing_extra

try:
    import ray  # noqa: F401
except ImportError as error:
    raise missing_extra("reroll.ray", "ray", "ray") from error

from reroll.ray.buffer import BlockingRayReplayBuffer, RayReplayBuffer
from reroll.ray.preparer import PreparerActor

__all__ = ["BlockingRayReplayBuffer", "PreparerActor", "RayReplayBuffer"]
