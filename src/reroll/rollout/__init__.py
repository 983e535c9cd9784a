"""Rollouts: fields, status, policy versions, and the rules of staleness, expiry and reset. No clock, no I/O, no lock.

status    `Status` of rollouts and groups; finish reasons
adapters  any object as a rollout; `DictRollout` for dicts
versions  `VersionRuns`, the versions of the tokens; counts and stamps
arrays    token fields as compact arrays
rollout   `Rollout`, the compact record
rules     staleness, expiry, reset, invalid values
summary   `summarize`: check a group, and return its `GroupSummary`
checkout  tokens by which a buffer recognises the group that rollouts continue

Only `stamp`, `expire`, `reset` and `release` change rollouts. The other functions return the result as it would be after
them (`model_step=`), so a put can decide and wait first, and change the caller's objects last. After `summarize` accepted a
group, these four do not fail (a class that validates assignments must allow None and empty lists, which `reset` assigns).
"""

from reroll.rollout.adapters import (
    DictRollout,
    RolloutLike,
    count_tokens,
    derive_num_tokens,
    read_score,
    write_status,
)
from reroll.rollout.rollout import STATE_SLOTS, Rollout
from reroll.rollout.rules import (
    can_expire,
    check_threshold,
    effective_response_mask,
    expire,
    expires,
    group_staleness,
    is_too_stale,
    release,
    reset,
    rollout_staleness,
    version_staleness,
)
from reroll.rollout.status import (
    Status,
    combine_statuses,
    finish_error,
    read_status,
    register_finish_reason,
    status_from_finish_reason,
)
from reroll.rollout.summary import (
    GroupSummary,
    Member,
    check,
    combine,
    count_bytes,
    group_status,
    inspect_members,
    mean_and_std,
    summarize,
)
from reroll.rollout.versions import VersionRuns, VersionTally, stamp, tally_versions

__all__ = [
    "STATE_SLOTS",
    "DictRollout",
    "GroupSummary",
    "Member",
    "Rollout",
    "RolloutLike",
    "Status",
    "VersionRuns",
    "VersionTally",
    "can_expire",
    "check",
    "check_threshold",
    "combine",
    "combine_statuses",
    "count_bytes",
    "count_tokens",
    "derive_num_tokens",
    "effective_response_mask",
    "expire",
    "expires",
    "finish_error",
    "group_staleness",
    "group_status",
    "inspect_members",
    "is_too_stale",
    "mean_and_std",
    "read_score",
    "read_status",
    "register_finish_reason",
    "release",
    "reset",
    "rollout_staleness",
    "stamp",
    "status_from_finish_reason",
    "summarize",
    "tally_versions",
    "version_staleness",
    "write_status",
]
