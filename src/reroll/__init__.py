"""reroll: a replay buffer for reinforcement learning of language models."""

from reroll._version import __version__
from reroll.config import ReplayBufferConfig
from reroll.engine.ledger import Amount
from reroll.engine.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack, Unlimited
from reroll.engine.selectors.specs import (
    Fifo,
    Freshest,
    LeastUsed,
    Lifo,
    MaxHeap,
    MinHeap,
    Mixture,
    Prioritized,
    Stalest,
    Uniform,
)
from reroll.errors import (
    Closed,
    InvalidArgument,
    InvalidConfig,
    InvalidPriority,
    QueryError,
    RerollError,
    WaitTimeout,
    WouldBlock,
)
from reroll.query import Query, parse_query
from reroll.rollout.status import Status
from reroll.sample import Sample, SampleInfo
from reroll.table import Table, TableInfo

__all__ = [
    "Amount",
    "Closed",
    "Fifo",
    "Freshest",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidPriority",
    "LeastUsed",
    "Lifo",
    "Limiter",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Mixture",
    "Prioritized",
    "Query",
    "QueryError",
    "Queue",
    "ReplayBufferConfig",
    "RerollError",
    "Sample",
    "SampleInfo",
    "SampleToInsertRatio",
    "Stack",
    "Stalest",
    "Status",
    "Table",
    "TableInfo",
    "Uniform",
    "Unlimited",
    "WaitTimeout",
    "WouldBlock",
    "__version__",
    "parse_query",
]
