"""Rows as the query language sees them: search, sort, and one `Row` for each result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.engine.engine import Engine
from reroll.engine.rows import NO_VERSION, RESIDENT, BoolArray, IntArray
from reroll.engine.task import STATUSES
from reroll.errors import InvalidArgument, shown
from reroll.query import FIELDS, Kind, Query, mask, only_pool, tag_of, typed
from reroll.rollout.status import Status

# Fields of the language whose column has another name.
_COLUMN = {"timestamp_id": "timestamp", "times_sampled": "uses"}


@dataclass(frozen=True, slots=True)
class Row:
    """The metadata of one group at one moment; its fields are those of the query language."""

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
    """The columns of some rows, as a `ColumnSource` of `reroll.query`."""

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


def find(engine: Engine, query: Query, place: int | None = RESIDENT) -> IntArray:
    """Return the slots of the rows at a place, or at any (None), that satisfy a query, by uid.

    A query by task and status alone reads the pools; any other is one pass over the columns that it names.
    """
    pool = only_pool(query) if place == RESIDENT else None
    if pool is None:
        slots = rows_at(engine, place)
        return slots[mask(query, RowSource(engine, slots))]
    task_name, status = pool
    parts = [
        pool.sampler.slots()
        for task in engine.tasks.values()
        for code, pool in enumerate(task.pools)
        if task_name in (None, task.name) and status in (None, STATUSES[code])
    ]
    slots = np.concatenate([np.zeros(0, np.int64), *parts])
    return slots[np.argsort(engine.columns.uid[slots])]


def rows_at(engine: Engine, place: int | None) -> IntArray:
    """Return the slots of the rows at a place, or at any (None), by uid."""
    slots = engine.columns.alive()
    return slots if place is None else slots[engine.columns.place[slots] == place]


def still_at(engine: Engine, slots: IntArray, uids: IntArray, place: int | None = RESIDENT) -> BoolArray:
    """Return which slots still have the rows with these uids, at this place or at any (None)."""
    columns = engine.columns
    if len(slots) and slots.max() >= len(columns.uid):  # the engine was restored meanwhile
        return np.zeros(len(slots), np.bool_)
    same: BoolArray = columns.uid[slots] == uids
    return same if place is None else same & (columns.place[slots] == place)


def rows_of(engine: Engine, slots: IntArray) -> list[Row]:
    """Return a Row for each slot."""
    columns, where = engine.columns, slots.tolist()
    special: dict[str, Iterable[Any]] = {
        "task_name": map(list(engine.tasks).__getitem__, columns.task[slots].tolist()),
        "status": map(STATUSES.__getitem__, columns.status[slots].tolist()),
        "staleness": engine.staleness(slots).tolist(),
        "version": (None if v == NO_VERSION else v for v in columns.version[slots].tolist()),
        "reward_mean": (None if isnan(r) else r for r in columns.reward_mean[slots].tolist()),
        "reward_std": (None if isnan(r) else r for r in columns.reward_std[slots].tolist()),
        "group_id": map(columns.group_id.get, where),
        "tags": (dict(columns.tags.get(slot, {})) for slot in where),
    }
    values = (
        special[name] if name in special else getattr(columns, _COLUMN.get(name, name))[slots].tolist()
        for name in Row.__slots__
    )
    return list(map(Row, *values))


def parse_order(order_by: str | None) -> tuple[str, bool] | None:
    """Return the field, and whether the order is descending, of `"field"` or `"-field"`. Raises InvalidArgument."""
    if order_by is None:
        return None
    field = order_by.removeprefix("-") if isinstance(order_by, str) else order_by
    if not isinstance(field, str) or field not in FIELDS:
        raise InvalidArgument(
            f"order_by must be one of {', '.join(FIELDS)}, with '-' for descending, not {shown(order_by)}"
        )
    return field, order_by.startswith("-")


def sort_rows(rows: Sequence[Row], field: str, descending: bool) -> list[Row]:
    """Return rows in order of a field: rows without a value last, equal rows in the given order."""
    return [rows[place] for place in order_of([getattr(row, field) for row in rows], descending)]


def sort_slots(engine: Engine, slots: IntArray, field: str, descending: bool) -> IntArray:
    """Return slots in the order of `sort_rows`, from columns. O(n log n), vectorised except for `group_id`."""
    source, kind = RowSource(engine, slots), FIELDS[field]
    if kind is Kind.SCALAR:
        return slots[np.asarray(order_of(source.objects(field), descending), np.int64)]
    if kind is Kind.NUMBER:
        values, missing = source.numbers(field)
    else:
        codes, names = source.categories(field)
        ranks = np.argsort(np.argsort(np.asarray(names, dtype=np.str_)))
        values, missing = ranks[codes] if len(codes) else codes, None
    if missing is None:
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
    present = np.flatnonzero(~missing)
    keys = -values[present] if descending else values[present]
    order: IntArray = np.concatenate([present[np.argsort(keys, kind="stable")], np.flatnonzero(missing)])
    return slots[order]


def order_of(values: Iterable[Any], descending: bool) -> list[int]:
    """Return the positions of values in their order: values of one type together, missing values last."""
    found = list(enumerate(values))
    present = [(place, typed(value)) for place, value in found if value is not None]
    present.sort(key=lambda one: (one[1][0].name, one[1][1]), reverse=descending)
    return [place for place, _ in present] + [place for place, value in found if value is None]
