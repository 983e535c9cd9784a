"""The prioritized selector of reroll, compiled."""

from collections.abc import Iterator

from contenders.rollouts import version
from cycle import selector_case
from worker import Measure

__all__ = ["CANNOT", "cycle", "version"]
CANNOT: dict[str, str] = {}


def cycle(rows: int) -> Iterator[Measure]:
    """Arrays of rows go in and out, as in the peers, but 256 distinct ones; with the extra `fast`. Its tree alone, without payloads."""
    case = selector_case(rows, 5, numba=True)
    case()
    yield lambda: {"us": 1e6 * case()}
