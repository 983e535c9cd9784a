"""SampleRollout: a sample of TRL's asynchronous workers as a rollout, with whatever it holds: lists or arrays."""

from dataclasses import dataclass, field
from typing import Any

from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from reroll.codec import register
from reroll.rollout import Status

register(RolloutSample)


@register
@dataclass(slots=True)
class SampleRollout:
    """One sample, and what a buffer has to know of it."""

    sample: Any
    group_id: int
    status: Status
    reward: float | None
    response_ids: Any
    response_model_steps: list[int] = field(default_factory=list)
    seq_staleness: int = 0

    @classmethod
    def of(cls, sample: Any, position: int, status: Status) -> "SampleRollout":
        """Return a sample of the group at this position of the data."""
        reward = sample.metrics.get("reward")
        return cls(sample, position, status, None if reward != reward else reward, sample.input_ids)  # noqa: PLR0124
