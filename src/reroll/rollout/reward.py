"""The score of a rollout, and what the scores of a group amount to."""

import math
from collections.abc import Sequence
from typing import Any

from reroll.errors import InvalidArgument, shown


def read_score(reward: Any) -> float | None:
    """Return the number that a reward states: itself, or the `score` of a dict; None if there is none yet.

    Anything that is no number, such as a string or a list, is an InvalidArgument.
    """
    score = reward.get("score") if isinstance(reward, dict) else reward
    if score is None or isinstance(score, float):
        return score
    try:
        # Numbers of numpy and torch convert themselves; float() would parse strings as well.
        return float(score.__float__())
    except Exception:  # noqa: BLE001  (no number, one too large for a float, or a class that fails)
        raise InvalidArgument(
            f"reward must be a number, a dict with `score`, or None, not {shown(reward)}"
        ) from None


def mean_and_std(scores: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the standard deviation of the population, (None, None) without scores.

    Both are NaN where they are no numbers, as of inf and -inf, or too large for one.
    """
    if not scores:
        return None, None
    try:
        mean = math.fsum(scores) / len(scores)
        return mean, math.sqrt(math.fsum([(score - mean) ** 2 for score in scores]) / len(scores))
    except (ValueError, OverflowError):
        return math.nan, math.nan
