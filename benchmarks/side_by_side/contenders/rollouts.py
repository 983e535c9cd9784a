"""Groups as rollouts, and a client that puts and takes them, for the contenders of reroll."""

import asyncio
import copy
from collections.abc import Iterable, Sequence
from importlib.metadata import version as version_of
from typing import Any

from reroll import Rollout
from work import Group

TASK = "math"
TOGETHER = 64
"""Puts that are under way at once."""


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


class BufferClient:
    """Whatever has the verbs of a buffer, in an event loop of its own."""

    def __init__(self, buffer: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.buffer = buffer

    def prepare(self, groups: Sequence[Group]) -> list[list[Rollout]]:
        return [rollouts_of(group) for group in groups]

    def put(self, prepared: Sequence[list[Rollout]]) -> None:
        self.loop.run_until_complete(self._put(prepared))

    async def _put(self, groups: Sequence[list[Rollout]]) -> None:
        for first in range(0, len(groups), TOGETHER):
            some = groups[first : first + TOGETHER]
            await asyncio.gather(*(self.buffer.put(group, TASK, model_step=1) for group in some))

    def take(self, n: int) -> int:
        batch, _ = self.loop.run_until_complete(self.buffer.take_batch({TASK: n}, wait=True))
        return tokens_of(batch[TASK])
