"""Rows as the query language sees them: columns for a search, and one `Row` for each that is found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.engine.columns import NO_VERSION, RESIDENT, BoolArray, IntArray
from reroll.engine.engine import Engine
from reroll.engine.task import STATUSES
from reroll.query import Query, mask, only_pool, tag_of
from reroll.rollout.status import Status

# What the language calls differently from the column.
_COLUMN = {"timestamp_id": "timestamp", "times_sampled": "uses"}


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one group, at one moment; the fields are those of the query language."""

    uid: int
    timestamp_id: int
    task_name: str
    status: Status
    staleness: int
    version: int | None
    priority: float
    times_sampled: int
    attempts: int
    deliveries: int
    num_rollouts: int
    num_tokens: int
    num_bytes: int
    reward_mean: float | None
    reward_std: float | None
    group_id: Any
    tags: Mapping[str, Any]


class RowSource:
    """The columns of some rows, as `reroll.query` reads them: a `ColumnSource`."""

    def __init__(self, engine: Engine, slots: IntArray) -> None:
        self._engine = engine
        self._slots = slots

    def __len__(self) -> int:
        return len(self._slots)

    def numbers(self, field: str) -> tuple[npt.NDArray[Any], BoolArray | None]:
        if field == "staleness":
            return self._engine.staleness(self._slots), None
        column = getattr(self._engine.columns, _COLUMN.get(field, field))[self._slots]
        return column, column == NO_VERSION if field == "version" else None

    def categories(self, field: str) -> tuple[npt.NDArray[Any], Sequence[str]]:
        columns = self._engine.columns
        if field == "status":
            return columns.status[self._slots], [status.value for status in STATUSES]
        return columns.task[self._slots], list(self._engine.tasks)

    def objects(self, field: str) -> Sequence[object]:
        columns, tag = self._engine.columns, tag_of(field)
        if tag is None:
            return [columns.group_id.get(slot) for slot in self._slots.tolist()]
        return [columns.tags.get(slot, {}).get(tag) for slot in self._slots.tolist()]


def find(engine: Engine, query: Query) -> IntArray:
    """Return the slots of the resident rows that satisfy a query, by uid.

    A query by task and status alone is answered from the pools; any other is a pass over all columns that it names.
    """
    pool = only_pool(query)
    if pool is not None:
        return _pool_slots(engine, *pool)
    slots = engine.resident()
    return slots[mask(query, RowSource(engine, slots))]


def still(engine: Engine, slots: IntArray, uids: IntArray, place: int | None = RESIDENT) -> BoolArray:
    """Return which of these slots have the rows that they had, with these uids, and in this place."""
    columns = engine.columns
    if len(slots) and slots.max() >= len(columns.uid):  # the buffer has become another one
        return np.zeros(len(slots), np.bool_)
    same: BoolArray = columns.uid[slots] == uids
    return same if place is None else same & (columns.place[slots] == place)


def in_place(engine: Engine, place: int | None) -> IntArray:
    """Return the slots of the rows in one place, or in all, by uid."""
    slots = engine.columns.alive()
    return slots if place is None else slots[engine.columns.place[slots] == place]


def find_anywhere(engine: Engine, query: Query, place: int | None) -> IntArray:
    """Return the slots of the rows in one place, or in all, that satisfy a query, by uid."""
    if place == RESIDENT:
        return find(engine, query)
    slots = in_place(engine, place)
    return slots[mask(query, RowSource(engine, slots))]


def _pool_slots(engine: Engine, task_name: str | None, status: Status | None) -> IntArray:
    parts = [
        pool.sampler.slots()
        for task in engine.tasks.values()
        for code, pool in enumerate(task.pools)
        if task_name in (None, task.name) and status in (None, STATUSES[code])
    ]
    slots = np.concatenate([np.zeros(0, np.int64), *parts])
    return slots[np.argsort(engine.columns.uid[slots])]


def rows_of(engine: Engine, slots: IntArray) -> list[Row]:
    """Return a Row for each slot."""
    columns, where = engine.columns, slots.tolist()

    def plain(name: str) -> list[Any]:
        values: list[Any] = getattr(columns, name)[slots].tolist()
        return values

    return list(
        map(
            Row,
            plain("uid"),
            plain("timestamp"),
            map(list(engine.tasks).__getitem__, plain("task")),
            map(STATUSES.__getitem__, plain("status")),
            engine.staleness(slots).tolist(),
            (None if version == NO_VERSION else version for version in plain("version")),
            plain("priority"),
            plain("uses"),
            plain("attempts"),
            plain("deliveries"),
            plain("num_rollouts"),
            plain("num_tokens"),
            plain("num_bytes"),
            (None if isnan(reward) else reward for reward in plain("reward_mean")),
            (None if isnan(reward) else reward for reward in plain("reward_std")),
            map(columns.group_id.get, where),
            (dict(columns.tags.get(slot, {})) for slot in where),
        )
    )
