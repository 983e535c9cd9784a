"""xtuner's replay buffer over `reroll.ReplayBuffer`: change the import. `docs/from-xtuner.md` lists the differences.

rollouts    `RolloutState`, a pydantic model with lists, and the rules of groups as functions
queries     query nodes and `parse_query`
storage     `NaiveStorage`, `PandasStorage`, and the policies that order their items
buffer      `ReplayBuffer` and its two configurations
checkpoint  conversion of xtuner's checkpoints
"""

from reroll.integrations.xtuner.buffer import (
    AsyncReplayBufferConfig,
    ReplayBuffer,
    SyncReplayBufferConfig,
)
from reroll.integrations.xtuner.checkpoint import convert_checkpoint
from reroll.integrations.xtuner.queries import (
    QUERY_KEYS,
    BetweenNode,
    ConditionNode,
    LogicNode,
    LogicOperator,
    Operators,
    QueryDict,
    QueryKey,
    QueryNode,
    QueryType,
    ScalarNode,
    SetNode,
    parse_query,
)
from reroll.integrations.xtuner.rollouts import (
    RolloutState,
    calculate_seq_staleness,
    get_group_status,
    maybe_expire_group,
    refresh_seq_staleness,
    reset_rollout_response,
    update_sample_version,
    update_status_from_finish_reason,
)
from reroll.integrations.xtuner.storage import (
    FIFOReplayPolicy,
    NaiveStorage,
    PandasStorage,
    ReplayPolicy,
    StalenessReplayPolicy,
    StorageBackend,
    StorageItem,
)
from reroll.rollout import Status

__all__ = [
    "QUERY_KEYS",
    "AsyncReplayBufferConfig",
    "BetweenNode",
    "ConditionNode",
    "FIFOReplayPolicy",
    "LogicNode",
    "LogicOperator",
    "NaiveStorage",
    "Operators",
    "PandasStorage",
    "QueryDict",
    "QueryKey",
    "QueryNode",
    "QueryType",
    "ReplayBuffer",
    "ReplayPolicy",
    "RolloutState",
    "ScalarNode",
    "SetNode",
    "StalenessReplayPolicy",
    "Status",
    "StorageBackend",
    "StorageItem",
    "SyncReplayBufferConfig",
    "calculate_seq_staleness",
    "convert_checkpoint",
    "get_group_status",
    "maybe_expire_group",
    "parse_query",
    "refresh_seq_staleness",
    "reset_rollout_response",
    "update_sample_version",
    "update_status_from_finish_reason",
]
