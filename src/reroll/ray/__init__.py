"""reroll on a Ray cluster: the buffer in actors, for producers and trainers on any node. Needs the extra `ray`.

replay_buffer  RayReplayBuffer, as users have it
handle      create, connect, and the verbs of ReplayBuffer; blocking: the same for threads; looping: the loop behind it
spreading   what is asked of which shard; handing: what is handed out; drawing: how much by whom; merging: many answers
dividing    a configuration in parts
calling     the way to one shard: deadlines, retries, cancellation; holding: that this process lives

shard       one whole buffer in an actor; calls: each call once; holders: who has leases, and lives
metrics     what a shard tells Ray's metrics
books       what must be known of a shard that is lost
wire        what travels between the two

preparer    PreparerActor: `reroll.prepare` in an actor
"""

from reroll.errors import missing_extra

try:
    import ray  # noqa: F401
except ImportError as error:
    raise missing_extra("reroll.ray", "ray", "ray") from error

from reroll.ray.blocking import BlockingRayReplayBuffer
from reroll.ray.preparer import PreparerActor
from reroll.ray.replay_buffer import RayReplayBuffer

__all__ = ["BlockingRayReplayBuffer", "PreparerActor", "RayReplayBuffer"]
