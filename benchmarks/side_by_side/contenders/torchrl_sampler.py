"""The sampler of torchrl without its buffer."""

from collections.abc import Iterator

import torch

import work
from contenders.torchrl import CYCLE, filled, version
from worker import Measure

__all__ = ["CANNOT", "cycle", "version"]
CANNOT: dict[str, str] = {}


def cycle(rows: int) -> Iterator[Measure]:
    """`PrioritizedSampler.sample` and `update_priority` by themselves: indexes and weights, no rows. Draws with replacement."""
    _, storage, sampler = filled(rows)
    new = torch.as_tensor(work.priorities(CYCLE), dtype=torch.float32)

    def once() -> None:
        index, _ = sampler.sample(storage, CYCLE)
        sampler.update_priority(index, new)

    once()
    yield lambda: {"us": work.cycle_us(once)}
