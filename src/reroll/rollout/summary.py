"""The one record of everything that is known about a group beforehand."""

from dataclasses import dataclass
from typing import Any

from reroll.rollout.measure import Measure
from reroll.rollout.status import Status


@dataclass(slots=True, kw_only=True)
class GroupSummary:
    """What a buffer needs to know about a group without looking at its rollouts again."""

    status: Status
    group_id: Any
    """The first that a member states."""
    version: int | None
    """The oldest version over all tokens, None without versions."""
    newest_version: int | None
    staleness: int
    """The largest `seq_staleness` that a member states."""
    num_rollouts: int
    num_tokens: int
    num_bytes: int
    """An estimate of the payload, see `count_bytes`."""
    reward_mean: float | None
    """Over the members that have a reward, None if none has."""
    reward_std: float | None
    """Of the population."""
    version_tokens: dict[int, int]
    """How many tokens each version made."""
    member_versions: tuple[int | None, ...]
    """The oldest version of each member."""
    member_newest_trainable: tuple[int | None, ...]
    """The newest version of a trainable token, None for members that token expiry exempts."""
    member_tokens: tuple[int, ...]
    member_staleness: tuple[int, ...]
    """What each member states."""
    measure: Measure
    prompt_tokens: int | None = None
    """Of all members, None if they were not counted."""
