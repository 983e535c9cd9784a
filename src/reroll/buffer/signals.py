"""Priority signals: how much a group is worth training on, computed when it is put.

Each takes the scores of the rollouts that have a finite one. Groups that all failed or all succeeded teach nothing: their signal
is 0.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Literal

from reroll.engine.task import checked_priority
from reroll.rollout import read_score
from reroll.rollout.summary import mean_and_std

SignalName = Literal["reward_std", "solve_rate", "mean_abs_advantage"]
Signal = SignalName | Callable[[Sequence[Any]], float]
"""A name, or a function of the rollouts of a group."""


def reward_std(scores: Sequence[float]) -> float:
    """Return the standard deviation of the scores."""
    return mean_and_std(scores)[1] or 0.0


def solve_rate(scores: Sequence[float]) -> float:
    """Return p(1-p), where p is the share of rollouts with a score above 0."""
    share = sum(score > 0 for score in scores) / len(scores)
    return share * (1 - share)


def mean_abs_advantage(scores: Sequence[float]) -> float:
    """Return the mean distance of the scores from their mean."""
    mean = mean_and_std(scores)[0] or 0.0
    return sum(abs(score - mean) for score in scores) / len(scores)


SIGNALS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "reward_std": reward_std,
    "solve_rate": solve_rate,
    "mean_abs_advantage": mean_abs_advantage,
}


def priority_of(rollouts: Sequence[Any], signal: Signal | None) -> float | None:
    """Return the signal of a group; None where there is no signal, or no score to compute it from.

    Raises InvalidPriority if a function returns none.
    """
    if signal is None:
        return None
    if callable(signal):
        return checked_priority(signal(rollouts), "what the priority signal returned")
    rewards = (read_score(getattr(rollout, "reward", None)) for rollout in rollouts)
    scores = [score for score in rewards if score is not None and isfinite(score)]
    return checked_priority(SIGNALS[signal](scores), f"the signal {signal}") if scores else None
