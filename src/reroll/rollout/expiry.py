"""When a rollout is too stale to be trained, and when a group may expire at all."""

from typing import Literal

from reroll.rollout.foreign import RolloutLike, read_seq_staleness, write_status
from reroll.rollout.resetting import reset
from reroll.rollout.staleness import version_staleness
from reroll.rollout.status import Status
from reroll.rollout.tally import tally_versions


def can_expire(group_status: Status, expire: Literal["group", "member"] = "group") -> bool:
    """Return whether groups of this status expire; by member, those that wait for other members do too."""
    waiting = expire == "member" and group_status is Status.EXPIRED
    return waiting or group_status in (Status.COMPLETED, Status.ABORTED)


def is_too_stale(
    oldest: int | None,
    newest_trainable: int | None,
    current_train_step: int,
    *,
    stale_threshold: int | None = None,
    token_stale_threshold: int | None = None,
) -> bool:
    """Return whether a member with these versions expires: as a whole, or since no trainable token is fresh.

    One number decides the token rule: as long as the newest trainable token is fresh, one is left.
    """
    by_whole = (
        stale_threshold is not None and version_staleness(oldest, current_train_step) >= stale_threshold
    )
    by_token = (
        token_stale_threshold is not None
        and newest_trainable is not None
        and version_staleness(newest_trainable, current_train_step) >= token_stale_threshold
    )
    return by_whole or by_token


def expires(
    rollout: RolloutLike,
    current_train_step: int | None,
    *,
    stale_threshold: int | None = None,
    token_stale_threshold: int | None = None,
    model_step: int | None = None,
) -> bool:
    """Return whether a rollout is too stale, with `model_step` as if it were stamped already.

    Without a step the rollout's own `seq_staleness` is trusted, and no token can be judged.
    """
    if current_train_step is None:
        return stale_threshold is not None and read_seq_staleness(rollout) >= stale_threshold
    tally = tally_versions(rollout, model_step)
    return is_too_stale(
        tally.oldest,
        tally.newest_trainable,
        current_train_step,
        stale_threshold=stale_threshold,
        token_stale_threshold=token_stale_threshold,
    )


def expire(rollout: RolloutLike) -> None:
    """Mark a rollout EXPIRED and empty it, to be rolled again."""
    write_status(rollout, Status.EXPIRED)
    reset(rollout)
