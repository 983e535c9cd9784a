"""The prioritized selector of reroll, as it is without compiled code."""

from collections.abc import Iterator

from contenders.rollouts import version
from cycle import selector_case
from worker import Measure

__all__ = ["CANNOT", "cycle", "version"]
CANNOT: dict[str, str] = {}


def cycle(rows: int) -> Iterator[Measure]:
    """The same as with the extra `fast`, in plain numpy."""
    case = selector_case(rows, 5, numba=False)
    case()
    yield lambda: {"us": 1e6 * case()}
