"""The names of xtuner's replay buffer. Change the import; `docs/from-xtuner.md` says what behaves differently.

rollout_state     `RolloutState`, a pydantic model with lists
group_rules       status, versions, staleness, expiry and reset of rollouts, as functions
statuses          statuses of other enums
queries           query nodes and `parse_query`
storage           `NaiveStorage`, `PandasStorage`: items under queries, alone or as the view of a buffer
stored            where a storage's items are: its own, or the groups of a buffer
policy            `FIFOReplayPolicy`, `StalenessReplayPolicy`: which groups come first
extension_points  where those go who had classes of their own
sessions          trace sessions of groups that leave untrained
replay_buffer     `ReplayBuffer` and its two configurations
old_checkpoint    reads what xtuner saved
"""

from reroll.integrations.xtuner.group_rules import (
    calculate_seq_staleness,
    get_group_status,
    maybe_expire_group,
    refresh_seq_staleness,
    reset_rollout_response,
    update_sample_version,
    update_status_from_finish_reason,
)
from reroll.integrations.xtuner.old_checkpoint import convert_checkpoint
from reroll.integrations.xtuner.policy import FIFOReplayPolicy, ReplayPolicy, StalenessReplayPolicy
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
from reroll.integrations.xtuner.replay_buffer import (
    AsyncReplayBufferConfig,
    ReplayBuffer,
    SyncReplayBufferConfig,
)
from reroll.integrations.xtuner.rollout_state import RolloutState
from reroll.integrations.xtuner.storage import NaiveStorage, PandasStorage, StorageBackend
from reroll.integrations.xtuner.stored import StorageItem
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
