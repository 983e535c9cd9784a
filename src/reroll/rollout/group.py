"""A group as a whole: its status, and the one record of everything that is known about it beforehand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reroll.errors import InvalidArgument
from reroll.rollout.foreign import RolloutLike, count_tokens, read_seq_staleness
from reroll.rollout.reward import mean_and_std, read_score
from reroll.rollout.size import count_bytes
from reroll.rollout.status import Status, combine_statuses, read_status
from reroll.rollout.tally import VersionTally, tally_versions


@dataclass(frozen=True, slots=True, kw_only=True)
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


def group_status(rollouts: Iterable[RolloutLike]) -> Status:
    """Return COMPLETED if all are, else the first that any has of FAILED, ABORTED, EXPIRED, FILTERED, else INIT."""
    return combine_statuses(read_status(rollout.status) for rollout in rollouts)


def summarize(rollouts: Sequence[RolloutLike], *, model_step: int | None = None) -> GroupSummary:
    """Return the summary of a checked group, with `model_step` as if it were stamped already.

    One pass over the versions of foreign lists, O(runs) for `Rollout`. Raises InvalidArgument, naming the
    rollout, for versions that are no integers.
    """
    tallies = [_tally(position, rollout, model_step) for position, rollout in enumerate(rollouts)]
    version_tokens: dict[int, int] = {}
    for tally in tallies:
        for version, count in tally.counts.items():
            version_tokens[version] = version_tokens.get(version, 0) + count
    scores = [read_score(getattr(rollout, "reward", None)) for rollout in rollouts]
    reward_mean, reward_std = mean_and_std([score for score in scores if score is not None])
    member_tokens = tuple(count_tokens(rollout) for rollout in rollouts)
    group_ids = (getattr(rollout, "group_id", None) for rollout in rollouts)
    return GroupSummary(
        status=group_status(rollouts),
        group_id=next((group_id for group_id in group_ids if group_id is not None), None),
        version=min(version_tokens, default=None),
        newest_version=max(version_tokens, default=None),
        staleness=max(map(read_seq_staleness, rollouts), default=0),
        num_rollouts=len(rollouts),
        num_tokens=sum(member_tokens),
        num_bytes=sum(map(count_bytes, rollouts)),
        reward_mean=reward_mean,
        reward_std=reward_std,
        version_tokens=version_tokens,
        member_versions=tuple(tally.oldest for tally in tallies),
        member_newest_trainable=tuple(tally.newest_trainable for tally in tallies),
        member_tokens=member_tokens,
    )


def _tally(position: int, rollout: RolloutLike, model_step: int | None) -> VersionTally:
    try:
        return tally_versions(rollout, model_step)
    except InvalidArgument as error:
        raise InvalidArgument(f"rollout {position}: {error}") from error
