"""Cases of the other benchmarks as cells: the same operations, by the same names, for every design."""

from collections.abc import Mapping
from time import perf_counter

from group_operations import COUNT, PUT_VERSIONS, REFRESH, TAKE, Size, Subject
from groups import LONG, SHORT
from measure import Case
from worker import Measure

SCANNED = {COUNT: "count", TAKE: "take", REFRESH: "refresh", PUT_VERSIONS: "put"}
WEIGHED = {"sample 64, prioritized": "sample", "overflow, prioritized + min_heap": "evict"}
BLOCK_S = 0.002
MOST_LONG = 10_000


def size_of(groups: int) -> Size:
    """Return so many groups of usual length, or short ones where the others would not fit."""
    return Size(groups, LONG if groups <= MOST_LONG else SHORT)


def microseconds(case: Case) -> float:
    """Run a case until some milliseconds have passed, or once, and return the microseconds of a call."""
    taken, start = [case()], perf_counter()
    while perf_counter() - start < BLOCK_S:
        taken.append(case())
    return 1e6 * sorted(taken)[len(taken) // 2]


def scanning(subject: Subject) -> Measure:
    """Return what measures the calls of a filled buffer."""
    return _all({name: subject.cases()[case] for case, name in SCANNED.items()})


def weighing(*cases: Mapping[str, Case]) -> Measure:
    """Return what measures the calls of filled tables."""
    found = {name: case for some in cases for name, case in some.items()}
    return _all({name: found[case] for case, name in WEIGHED.items()})


def _all(cases: Mapping[str, Case]) -> Measure:
    for case in cases.values():
        case()  # warm
    return lambda: {name: microseconds(case) for name, case in cases.items()}
