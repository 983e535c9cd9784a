"""Rows in order of a field of the query language: those without a value last, those with the same in the order they had.

`sort_rows` is the plain meaning, of rows that are there already; `sort_slots` gives the same order from columns, so that only
the rows that somebody wants to see are made.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.engine.columns import IntArray
from reroll.engine.engine import Engine
from reroll.engine.rows import Row, RowSource
from reroll.errors import InvalidArgument, shown
from reroll.query import FIELDS, Kind, typed


def parse_order(order_by: str | None) -> tuple[str, bool] | None:
    """Return the field and whether the largest come first, of `"field"` or `"-field"`. Raises InvalidArgument."""
    if order_by is None:
        return None
    field = order_by.removeprefix("-") if isinstance(order_by, str) else order_by
    if not isinstance(field, str) or field not in FIELDS:
        raise InvalidArgument(
            f"order_by must be one of {', '.join(FIELDS)}, with '-' for descending, not {shown(order_by)}"
        )
    return field, order_by.startswith("-")


def sort_rows(rows: Sequence[Row], field: str, descending: bool) -> list[Row]:
    """Return rows in order of a field."""
    return [rows[place] for place in order_of([getattr(row, field) for row in rows], descending)]


def sort_slots(engine: Engine, slots: IntArray, field: str, descending: bool) -> IntArray:
    """Return slots in order of a field. O(n log n), vectorised but for `group_id`."""
    source, kind = RowSource(engine, slots), FIELDS[field]
    if kind is Kind.SCALAR:
        return slots[np.asarray(order_of(source.objects(field), descending), np.int64)]
    if kind is Kind.NUMBER:
        values, missing = source.numbers(field)
    else:
        codes, names = source.categories(field)
        ranks = np.argsort(np.argsort(np.asarray(names, dtype=np.str_)))
        values, missing = ranks[codes] if len(codes) else codes, None
    if missing is None and values.dtype.kind == "f":
        missing = np.isnan(values)
    return slots[_ranked(values, missing, descending)]


def order_of(values: Iterable[Any], descending: bool) -> list[int]:
    """Return the places of values in their order: each kind of value by itself, missing ones last."""
    found = list(enumerate(values))
    present = [(place, typed(value)) for place, value in found if value is not None]
    present.sort(key=lambda one: (one[1][0].name, one[1][1]), reverse=descending)
    return [place for place, _ in present] + [place for place, value in found if value is None]


def _ranked(
    values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None, descending: bool
) -> npt.NDArray[np.int64]:
    present = np.arange(len(values)) if missing is None else np.flatnonzero(~missing)
    keys = -values[present] if descending else values[present]
    order = present[np.argsort(keys, kind="stable")]
    return order if missing is None else np.concatenate([order, np.flatnonzero(missing)])
