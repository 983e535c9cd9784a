"""A dict of records, and a query that is asked of each of them for each call."""

from collections.abc import Iterator

from contenders.timing import scanning, size_of
from group_operations import SCANNING, Subject
from worker import Measure

CANNOT: dict[str, str] = {}


def version() -> str:
    return "of this repository"


def scan(groups: int) -> Iterator[Measure]:
    """The rollout buffer that is one of the starting points, written anew with less to do, see benchmarks/scanning_groups.py."""
    yield scanning(Subject(SCANNING, size_of(groups)))
