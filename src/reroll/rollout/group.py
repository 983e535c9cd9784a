"""A group as a whole: its status, and its summary."""

from collections.abc import Iterable, Sequence
from typing import Any

from reroll.errors import InvalidArgument
from reroll.rollout.at_once import summarize_at_once
from reroll.rollout.checking import check_writable
from reroll.rollout.foreign import RolloutLike, read_integer
from reroll.rollout.measure import measure
from reroll.rollout.member import Member, look_at
from reroll.rollout.model import Rollout
from reroll.rollout.reward import mean_and_std
from reroll.rollout.status import Status, combine_statuses, read_status
from reroll.rollout.summary import GroupSummary


def group_status(rollouts: Iterable[RolloutLike]) -> Status:
    """Return COMPLETED if all are, else the first that any has of FAILED, ABORTED, EXPIRED, FILTERED, else INIT."""
    return combine_statuses(read_status(rollout.status) for rollout in rollouts)


def check(rollouts: Sequence[Any], *, model_step: int | None = None) -> None:
    """Raise InvalidArgument, naming rollout and field, unless every rollout can be stamped, expired and stored.

    With `model_step`, tokens at the end may lack a version. Nothing is changed.
    """
    summarize(rollouts, model_step=model_step)


def look_at_all(rollouts: Sequence[Any], model_step: int | None) -> list[Member]:
    """Check a group and return what is known of each rollout; one pass over the versions of foreign lists."""
    members: list[Member] = []
    writable: type = Rollout
    for position, rollout in enumerate(rollouts):
        try:
            members.append(look_at(rollout, model_step))
            if type(rollout) is not writable:
                check_writable(rollout)
                writable = type(rollout)
        except InvalidArgument as error:
            raise InvalidArgument(f"rollout {position}: {error}") from error
    return members


def summarize(rollouts: Sequence[RolloutLike], *, model_step: int | None = None) -> GroupSummary:
    """Check a group and return its summary, with `model_step` as if it were stamped already; see `check`."""
    if model_step is not None:
        model_step = read_integer("model_step", model_step)
    found = summarize_at_once(rollouts, model_step)
    return combine(look_at_all(rollouts, model_step), find_group_id(rollouts)) if found is None else found


def combine(members: Sequence[Member], group_id: Any) -> GroupSummary:
    """Return the summary of a group whose rollouts were looked at."""
    columns = zip(*members, strict=True) if members else [()] * len(Member._fields)
    statuses, staleness, scores, tokens, num_bytes, counts, trainable, lengths = columns
    version_tokens: dict[int, int] = {}
    oldest: list[int | None] = []
    for found in counts:
        version = None
        for version, count in found.items():
            version_tokens[version] = version_tokens.get(version, 0) + count
        oldest.append(min(found) if len(found) > 1 else version)
    versions = sorted(version_tokens)
    member_versions = tuple(oldest)
    if trainable == member_versions:  # one version made each member, as mostly: keep one of two equal records
        trainable = member_versions
    reward_mean, reward_std = mean_and_std([score for score in scores if score is not None])
    return GroupSummary(
        status=combine_statuses(statuses),
        group_id=group_id,
        version=versions[0] if versions else None,
        newest_version=versions[-1] if versions else None,
        staleness=max(staleness, default=0),
        num_rollouts=len(members),
        num_tokens=sum(tokens),
        num_bytes=sum(num_bytes),
        reward_mean=reward_mean,
        reward_std=reward_std,
        version_tokens=version_tokens,
        member_versions=member_versions,
        member_newest_trainable=trainable,
        member_tokens=tokens,
        member_staleness=staleness,
        measure=measure(lengths, scores),
    )


def find_group_id(rollouts: Sequence[Any]) -> Any:
    """Return the first group_id that a rollout states."""
    for rollout in rollouts:
        group_id = getattr(rollout, "group_id", None)
        if group_id is not None:
            return group_id
    return None
