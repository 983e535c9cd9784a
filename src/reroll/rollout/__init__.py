"""What a rollout is: its fields, its status, its policy versions, and the rules of staleness, expiry and reset.

model      `Rollout`, the compact record; arrays, fields, lengths, sameness serve it
foreign    any other object as a rollout, and `DictRollout` for dicts
status     `Status`, and the status of a group
versions   `VersionRuns`, the versions of the tokens
tally      what the versions say, in one pass: the base of every decision below
stamping   versions for tokens that have none
staleness  how far behind the policy, by rollout, by group, by token
expiry     who is too stale
resetting  what remains of an expired rollout
checking   whether a rollout can be put
member     one rollout, looked at once
measure    how long and how good the responses of a group are
at_once    a group of Rollouts, looked at field by field
summary    `GroupSummary`, the record that a buffer keeps of a group
group      `summarize`, of any group
checkout   which group a rollout continues

Everything is pure but `stamp`, `expire`, `reset` and `release`. The others say beforehand what those would
give (`model_step=`), so that a put can decide and wait first, and change the caller's objects last. After
`check` and `summarize` accepted a group, the four do not fail (a class that validates assignments must allow
None and empty lists where `reset` writes them). No clock, no I/O, no lock.
"""

from reroll.rollout.expiry import can_expire, expire, expires, is_too_stale
from reroll.rollout.foreign import DictRollout, RolloutLike, count_tokens, derive_num_tokens, write_status
from reroll.rollout.group import check, combine, group_status, look_at_all, summarize
from reroll.rollout.member import Member
from reroll.rollout.model import Rollout
from reroll.rollout.resetting import release, reset
from reroll.rollout.reward import read_score
from reroll.rollout.size import count_bytes
from reroll.rollout.staleness import (
    check_threshold,
    effective_response_mask,
    group_staleness,
    rollout_staleness,
    version_staleness,
)
from reroll.rollout.stamping import stamp
from reroll.rollout.status import (
    Status,
    combine_statuses,
    finish_error,
    read_status,
    register_finish_reason,
    status_from_finish_reason,
)
from reroll.rollout.summary import GroupSummary
from reroll.rollout.tally import VersionTally, tally_versions
from reroll.rollout.versions import VersionRuns

__all__ = [
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
    "is_too_stale",
    "look_at_all",
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
