"""What `trainer.v1.sampler.sampler_kwargs` may say."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reroll.config import ReplayBufferConfig
from reroll.engine.selectors.specs import Mixture, Prioritized, Stalest
from reroll.errors import InvalidConfig

_Count = Annotated[int, Field(ge=1)]


class ReplayOptions(BaseModel):
    """Settings of the sampler. With their defaults it draws what verl's own would.

    Attributes:
        fresh_share: which part of a batch was never trained before; the rest is replayed. 1: no replay.
        max_uses: how often a group is trained at most.
        max_staleness: no group is replayed whose staleness is above this; None: no bound. New groups are bound by verl's
            `max_off_policy_threshold` as well.
        capacity: how many groups are kept at most, new ones included; the oldest is evicted. None: no limit.
        priority_signal: what a group is worth when it is replayed, from the rewards of its trajectories: "reward_std", "solve_rate"
            or "mean_abs_advantage"; None: all the same.
        alpha, half_life, reuse_decay: those of `Prioritized`: exponent of the priority, age in training steps at which a group counts
            half, and factor for each use.
        seed: the same seed and the same groups give the same batches.
        filter_groups_metric: that of `algorithm.filter_groups.metric`, which verl does not pass to custom samplers: groups in which all
            values are equal are replaced.
        poll_interval: seconds between two looks at TransferQueue, as in verl.

    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fresh_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_uses: _Count = 1
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    capacity: _Count | None = None
    priority_signal: Literal["reward_std", "solve_rate", "mean_abs_advantage"] | None = None
    alpha: Annotated[float, Field(ge=0)] = 1.0
    half_life: Annotated[float, Field(gt=0)] | None = None
    reuse_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int | None = None
    filter_groups_metric: str | None = None
    poll_interval: Annotated[float, Field(gt=0)] = 2.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "ReplayOptions":
        """Return checked options. Raises InvalidConfig."""
        try:
            found = cls.model_validate(dict(options))
        except ValidationError as error:
            raise InvalidConfig(f"trainer.v1.sampler.sampler_kwargs is invalid: {error}") from None
        if (found.fresh_share < 1) != (found.max_uses > 1):
            raise InvalidConfig(
                f"sampler_kwargs contradict each other: fresh_share is {found.fresh_share:g} and max_uses {found.max_uses}; replay "
                "needs a fresh_share below 1 and max_uses above 1"
            )
        return found

    @property
    def replays(self) -> bool:
        """Whether groups are trained more than once."""
        return self.max_uses > 1

    def buffer_config(self) -> ReplayBufferConfig:
        """Return the configuration of the buffer that decides."""
        replay = Prioritized(alpha=self.alpha, half_life=self.half_life, reuse_decay=self.reuse_decay)
        return ReplayBufferConfig(
            sampler=Mixture(self.fresh_share, replay=replay, fresh=Stalest()) if self.replays else "stalest",
            max_times_sampled=self.max_uses,
            max_staleness=self.max_staleness,
            on_stale="drop",
            capacity=self.capacity,
            remover=None if self.capacity is None else "fifo",
            priority_signal=self.priority_signal,
            seed=self.seed,
        )
