"""A dict of items, and for each sample and each eviction a list of all keys and an array of all weights."""

from collections.abc import Iterator

from contenders.timing import weighing
from operations import scanning_full_heap, scanning_prioritized
from worker import Measure

CANNOT: dict[str, str] = {}


def version() -> str:
    return "of this repository"


def weigh(groups: int) -> Iterator[Measure]:
    """All keys and weights are gathered anew for each call, as in the pull request that is one of the starting points; written anew here, see benchmarks/scanning.py."""
    yield weighing(scanning_prioritized(groups), scanning_full_heap(groups))
