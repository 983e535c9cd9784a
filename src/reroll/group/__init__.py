"""Groups of rollouts as columns: one head and one body, the same bytes in memory, on disk and on the wire.

layout   head and body: how they are written, read and checked
build    groups made of rollouts, of an engine's output, of packed columns
engines  responses of vLLM and SGLang as the arguments of `RolloutGroup.pack`
group    `RolloutGroup`, a sequence of Rollouts
batch    `GroupBatch`, what sampling and leases give

No clock, no I/O, no lock.
"""

from reroll.group.batch import GroupBatch
from reroll.group.group import RolloutGroup
from reroll.group.layout import RECORD, read_records

__all__ = ["RECORD", "GroupBatch", "RolloutGroup", "read_records"]
