"""The table of reroll: keys and payloads, a lock, a rate limiter, use counts and a ledger around the selector."""

from collections.abc import Iterator

from contenders.rollouts import version
from contenders.timing import weighing
from cycle import table_case
from operations import full_heap, prioritized
from worker import Measure

__all__ = ["CANNOT", "cycle", "version", "weigh"]
CANNOT: dict[str, str] = {}


def cycle(rows: int) -> Iterator[Measure]:
    """Keys, payloads and a report of each item come out of `sample_items`; priorities go in by key. 256 distinct items."""
    case = table_case(rows, 1)
    case()
    yield lambda: {"us": 1e6 * case()}


def weigh(groups: int) -> Iterator[Measure]:
    """A `Table` with a prioritized sampler, and one with a heap that evicts the lowest priority."""
    yield weighing(prioritized(groups), full_heap(groups))
