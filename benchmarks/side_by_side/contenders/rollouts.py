"""Groups as rollouts, for the contenders of reroll."""

import copy
from collections.abc import Iterable
from importlib.metadata import version as version_of
from typing import Any

from reroll import Rollout
from work import Group

TASK = "math"


def version() -> str:
    return version_of("reroll")


def rollouts_of(group: Group) -> list[Rollout]:
    """Cut a group into rollouts that own what they have."""
    start, made = 0, []
    for length, reward in zip(group.lengths.tolist(), group.rewards.tolist(), strict=True):
        part = slice(start, start + length)
        made.append(
            Rollout(
                prompt_ids=group.prompt_ids,
                response_ids=group.response_ids[part].copy(),
                logprobs=group.logprobs[part].copy(),
                response_mask=group.response_mask[part].copy(),
                reward=reward,
                status="completed",
            )
        )
        start += length
    return made


def copied(groups: Iterable[list[Any]]) -> list[list[Any]]:
    """Return groups of new rollouts that share their arrays: a buffer owns the rollouts that it got."""
    return [list(map(copy.copy, group)) for group in groups]


def tokens_of(groups: Iterable[list[Any]]) -> int:
    """Look at each rollout, as a trainer does."""
    return sum(len(rollout.response_ids) for group in groups for rollout in group)
