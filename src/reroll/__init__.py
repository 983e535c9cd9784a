"""reroll: a replay buffer for reinforcement learning of language models."""

import typing as _typing

from reroll._version import __version__
from reroll.buffer.batch import Batch
from reroll.buffer.blocking import BlockingReplayBuffer
from reroll.buffer.buffer import ReplayBuffer
from reroll.buffer.read_only import ReadOnlyBuffer, open_readonly
from reroll.buffer.reservations import Reservation
from reroll.engine.ledger import Amount, Dropped
from reroll.engine.limits import (
    Limiter,
    MinSize,
    Queue,
    SampleToInsertRatio,
    Stack,
    StalenessWindow,
    Unlimited,
)
from reroll.engine.query import Row
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
    CannotRewind,
    Closed,
    CorruptData,
    Deadlock,
    ForkedProcess,
    InvalidArgument,
    InvalidConfig,
    InvalidPriority,
    LeaseExpired,
    LimitReached,
    LoopFailed,
    NotEmpty,
    NotStorable,
    ProtocolMismatch,
    QueryError,
    RerollError,
    SavedNotFound,
    SourceEnded,
    StepGone,
    StoreError,
    StoreFailed,
    StoreLocked,
    Superseded,
    UncommittedWarning,
    UnknownUid,
    Unreachable,
    UnsupportedFormat,
    WaitTimeout,
    WouldBlock,
)
from reroll.group import GroupBatch, RolloutGroup
from reroll.query import Query, parse_query
from reroll.rollout import (
    DictRollout,
    Rollout,
    Status,
    effective_response_mask,
    register_finish_reason,
    status_from_finish_reason,
)
from reroll.sample import Sample, SampleInfo
from reroll.table import Table, TableInfo
from reroll.telemetry.stats import Stats

if _typing.TYPE_CHECKING:
    from reroll.codec.registry import register
    from reroll.config import AsyncReplayBufferConfig, ReplayBufferConfig, SyncReplayBufferConfig, TaskConfig
    from reroll.server import Server, connect, connect_blocking

__all__ = [
    "Amount",
    "AsyncReplayBufferConfig",
    "Batch",
    "BlockingReplayBuffer",
    "CannotRewind",
    "Closed",
    "CorruptData",
    "Deadlock",
    "DictRollout",
    "Dropped",
    "Fifo",
    "ForkedProcess",
    "Freshest",
    "GroupBatch",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidPriority",
    "LeaseExpired",
    "LeastUsed",
    "Lifo",
    "LimitReached",
    "Limiter",
    "LoopFailed",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "Mixture",
    "NotEmpty",
    "NotStorable",
    "Prioritized",
    "ProtocolMismatch",
    "Query",
    "QueryError",
    "Queue",
    "ReadOnlyBuffer",
    "ReplayBuffer",
    "ReplayBufferConfig",
    "RerollError",
    "Reservation",
    "Rollout",
    "RolloutGroup",
    "Row",
    "Sample",
    "SampleInfo",
    "SampleToInsertRatio",
    "SavedNotFound",
    "Server",
    "SourceEnded",
    "Stack",
    "StalenessWindow",
    "Stalest",
    "Stats",
    "Status",
    "StepGone",
    "StoreError",
    "StoreFailed",
    "StoreLocked",
    "Superseded",
    "SyncReplayBufferConfig",
    "Table",
    "TableInfo",
    "TaskConfig",
    "UncommittedWarning",
    "Uniform",
    "UnknownUid",
    "Unlimited",
    "Unreachable",
    "UnsupportedFormat",
    "WaitTimeout",
    "WouldBlock",
    "__version__",
    "connect",
    "connect_blocking",
    "effective_response_mask",
    "open_readonly",
    "parse_query",
    "register",
    "register_finish_reason",
    "status_from_finish_reason",
]


def __getattr__(name: str) -> _typing.Any:
    # Configurations are loaded when they are first asked for: pydantic takes a third of the time to import all of it.
    if name in ("AsyncReplayBufferConfig", "ReplayBufferConfig", "SyncReplayBufferConfig", "TaskConfig"):
        from reroll import config  # noqa: PLC0415

        return getattr(config, name)
    if name == "register":  # a buffer in memory does not need the codec
        from reroll.codec.registry import register  # noqa: PLC0415

        return register
    if name in ("Server", "connect", "connect_blocking"):  # with the extra `server`
        from reroll import server  # noqa: PLC0415

        return getattr(server, name)
    raise AttributeError(f"module 'reroll' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
