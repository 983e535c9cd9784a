"""How long and how good the responses of a group are, as whoever counts what passes adds them up."""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple


class Measure(NamedTuple):
    """The responses of one group."""

    tokens: int
    bits: bytes
    """The bits of each response's length, a byte each: those of a batch are joined and counted at once."""
    scored: int
    """Rollouts with a reward that is finite; what follows is about them."""
    score: float
    """The sum."""
    solved: int
    """Rewards above 0."""
    is_compared: bool
    """Whether there are at least two."""
    is_uniform: bool
    """Whether there are at least two, and all are the same."""


def measure(lengths: Sequence[int], scores: Sequence[float | None]) -> Measure:
    """Return the measure of responses of these lengths and scores."""
    finite = [score for score in scores if score is not None]
    total = sum(finite)
    if not isfinite(total):  # hardly ever; a finite sum has finite parts
        finite = [score for score in finite if isfinite(score)]
        total = sum(finite)
    count = len(finite)
    return Measure(
        sum(lengths),
        bytes([length.bit_length() for length in lengths]),
        count,
        float(total),
        len([score for score in finite if score > 0]),
        count > 1,
        count > 1 and finite.count(finite[0]) == count,
    )
