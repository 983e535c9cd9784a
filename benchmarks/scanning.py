"""The design of the starting points, in our own words: simple containers, and a pass over all records per call.

ScanningBuffer   counting and taking evaluate a query on every record; taking sorts what was found
ScanningTable    sampling and evicting copy all keys, and build an array of weights over all of them

For comparison only. Neither keeps a ledger, limits rates, or is safe to use from threads.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

import numpy as np


@dataclass
class Record:
    """One group and what is known of it."""

    key: int
    data: Any
    priority: float
    timestamp: int
    task: str = "table"
    status: str = "completed"
    staleness: int = 0


FIELDS = [known.name for known in fields(Record)]


@dataclass
class Compare:
    """A field against a value."""

    field: str
    sign: str
    operand: Any


@dataclass
class OneOf:
    """A field among several values."""

    field: str
    operands: set[Any]


@dataclass
class Every:
    """All of several conditions."""

    parts: list["Query"]


Query = Compare | OneOf | Every


def holds(query: Query, record: Record) -> bool:
    """Walk the tree of a query with one record in hand."""
    if isinstance(query, Every):
        return all(holds(part, record) for part in query.parts)
    if query.field not in FIELDS:
        raise ValueError(f"{query.field!r} is no field; there are: {FIELDS}")
    value = getattr(record, query.field)
    if isinstance(query, OneOf):
        return value in query.operands
    if query.sign == "==":
        return value == query.operand
    if query.sign == "<":
        return value < query.operand
    return value > query.operand


COMPLETED = Every([Compare("task", "==", "table"), Compare("status", "==", "completed")])


class ScanningBuffer:
    """Records in a dict; every question is put to each of them."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._clock = count()

    def insert(self, key: int, data: Any, priority: float = 1.0) -> None:
        self._records[key] = Record(key, data, priority, next(self._clock))

    def count(self, query: Query = COMPLETED) -> int:
        return sum(1 for record in self._records.values() if holds(query, record))

    def take(self, n: int, query: Query = COMPLETED) -> list[Any]:
        found = [record for record in self._records.values() if holds(query, record)]
        found.sort(key=lambda record: record.timestamp)
        for record in found[:n]:
            del self._records[record.key]
        return [record.data for record in found[:n]]

    def delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._records.pop(key, None)


Remover = Callable[[list[int], Mapping[int, Record]], int]
"""Chooses who is evicted: all keys, and their records."""


def oldest(keys: list[int], records: Mapping[int, Record]) -> int:
    return min(keys, key=lambda key: records[key].timestamp)


def lowest_priority(keys: list[int], records: Mapping[int, Record]) -> int:
    return keys[int(np.argmin(np.array([records[key].priority for key in keys])))]


class ScanningTable:
    """Items in a dict; keys and weights are gathered anew for each sample and each eviction."""

    def __init__(self, max_size: int, remover: Remover | None = None, *, alpha: float | None = None) -> None:
        self._max_size, self._remover = max_size, remover
        self._alpha = alpha  # None: uniform
        self._records: dict[int, Record] = {}
        self._clock = count()
        self._rng = np.random.default_rng(0)

    def insert(self, key: int, data: Any, priority: float = 1.0) -> None:
        self._records[key] = Record(key, data, priority, next(self._clock))
        while self._remover is not None and len(self._records) > self._max_size:
            del self._records[self._remover(list(self._records), self._records)]

    def sample(self, n: int) -> list[Any]:
        keys = list(self._records)
        chances = None
        if self._alpha is not None:
            weights = np.array([self._records[key].priority for key in keys]) ** self._alpha
            chances = weights / weights.sum()
        chosen = self._rng.choice(len(keys), size=min(n, len(keys)), replace=False, p=chances)
        return [self._records[keys[index]].data for index in chosen]

    def update_priorities(self, priorities: Mapping[int, float]) -> None:
        for key, priority in priorities.items():
            if key in self._records:
                self._records[key].priority = priority

    def delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._records.pop(key, None)
