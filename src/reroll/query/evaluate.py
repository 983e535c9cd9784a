"""Evaluate a parsed query: on one row (`matches`), or on columns (`mask`).

`matches` defines the meaning of the language; `mask` must agree with it. `mask` has its own code for numbers only: it
calls the row's code once per category name, and once per object.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reroll.query.nodes import (
    MISSING,
    ORDERINGS,
    And,
    Compare,
    Kind,
    Not,
    OneOf,
    Or,
    Query,
    Scalar,
    Typed,
    ValueType,
    kind_of,
    tag_of,
    typed,
)
from reroll.rollout.status import Status

Mask: TypeAlias = NDArray[np.bool_]

_OBJECT_COST: Final = 256
"""Cost of a condition on a column of Python objects, per row, in comparisons of array entries."""


class Queryable(Protocol):
    """A row: it has an attribute for each name of FIELDS, and tags."""

    @property
    def tags(self) -> Mapping[str, Scalar]: ...


class ColumnSource(Protocol):
    """Rows as columns, which are only read. Each has `len(source)` entries, in the same order."""

    def __len__(self) -> int: ...

    def numbers(self, field: str) -> tuple[NDArray[Any], Mask | None]:
        """Return an array of integers or floats, and where values are missing (NaN is missing as well)."""
        ...

    def categories(self, field: str) -> tuple[NDArray[Any], Sequence[str]]:
        """Return an integer code per row, -1 for missing, and the name of each code: task_name, status."""
        ...

    def objects(self, field: str) -> Sequence[object]:
        """Return a value per row, None for missing: group_id, tags.<name>."""
        ...


def matches(query: Query, row: Queryable) -> bool:
    """Return whether a row satisfies a query. O(conditions)."""
    match query:
        case And(parts):
            return all(matches(part, row) for part in parts)
        case Or(parts):
            return any(matches(part, row) for part in parts)
        case Not(part):
            return not matches(part, row)
        case OneOf() | Compare():
            tag = tag_of(query.field)
            return _holds(query, typed(getattr(row, query.field) if tag is None else row.tags.get(tag)))


def mask(query: Query, source: ColumnSource) -> Mask:
    """Return whether each row satisfies a query, as a new array. O(rows x `cost(query)`)."""
    return _mask(query, source, {})


def cost(query: Query) -> int:
    """Return the cost of `mask` per row, in comparisons of array entries."""
    match query:
        case And(parts) | Or(parts):
            return 1 + sum(map(cost, parts))
        case Not(part):
            return 1 + cost(part)
        case OneOf() | Compare():
            return _OBJECT_COST if kind_of(query.field) is Kind.SCALAR else 1


def only_pool(query: Query) -> tuple[str | None, Status | None] | None:
    """Return the (task_name, status) of a query that selects by these alone and so needs no search.

    None in the pair means any task, or any status. None in place of the pair: the query has other conditions, or none.
    """
    wanted: dict[str, str] = {}
    for part in query.parts if isinstance(query, And) else (query,):
        if not isinstance(part, OneOf) or part.field not in ("task_name", "status") or part.field in wanted:
            return None
        values = list(part.values)
        if len(values) != 1 or values[0][0] is not ValueType.TEXT:  # several values, or a missing one
            return None
        wanted[part.field] = str(values[0][1])
    if not wanted:
        return None
    status = wanted.get("status")
    return wanted.get("task_name"), None if status is None else Status(status)


def _holds(condition: OneOf | Compare, value: Typed) -> bool:
    if isinstance(condition, OneOf):
        return value in condition.values
    operand_type, operand = condition.operand
    return value[0] is operand_type and bool(ORDERINGS[condition.order](value[1], operand))


def _mask(query: Query, source: ColumnSource, objects: dict[str, list[Typed]]) -> Mask:
    """Evaluate a query; `objects` caches the typed values of columns of objects."""
    match query:
        case And(parts):
            result = np.ones(len(source), dtype=np.bool_)
            for part in parts:
                result &= _mask(part, source, objects)
            return result
        case Or(parts):
            result = np.zeros(len(source), dtype=np.bool_)
            for part in parts:
                result |= _mask(part, source, objects)
            return result
        case Not(part):
            return ~_mask(part, source, objects)
        case OneOf() | Compare():
            return _condition_mask(query, source, objects)


def _condition_mask(
    condition: OneOf | Compare, source: ColumnSource, objects: dict[str, list[Typed]]
) -> Mask:
    field = condition.field
    match kind_of(field):
        case Kind.NUMBER:
            return _number_mask(condition, *source.numbers(field))
        case Kind.TEXT | Kind.STATUS:
            codes, names = source.categories(field)
            # The answer for missing values comes last, where the code -1 finds it.
            answers = [_holds(condition, typed(name)) for name in (*names, None)]
            result: Mask = np.array(answers, dtype=np.bool_)[codes]
            return result
        case _:
            if field not in objects:
                objects[field] = list(map(typed, source.objects(field)))
            values = objects[field]
            if isinstance(condition, OneOf):
                return np.fromiter(map(condition.values.__contains__, values), np.bool_, len(values))
            return np.fromiter((_holds(condition, value) for value in values), np.bool_, len(values))


# The ordering that is equivalent after the operand was rounded up, or down, to a number of the column's type.
_ROUNDED_UP: Final = {"$gt": "$gte", "$gte": "$gte", "$lt": "$lt", "$lte": "$lt"}
_ROUNDED_DOWN: Final = {"$gt": "$gt", "$gte": "$gt", "$lt": "$lte", "$lte": "$lte"}


def _number_mask(condition: OneOf | Compare, values: NDArray[Any], missing: Mask | None) -> Mask:
    """Evaluate a condition on numbers exactly as Python compares single values.

    Python compares 2**53 + 1 with 2.0**53 exactly; numpy converts one side first, which rounds or overflows. So the
    operand is first rounded to a number of the column's type, and the condition is adjusted to it.
    """
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
    absent: Mask = values != values  # noqa: PLR0124  (NaN differs from itself; integers never do)
    if missing is not None:
        absent |= missing
    result: Mask
    if isinstance(condition, Compare):
        operand: Any = condition.operand[1]
        near = _nearest(operand, values.dtype)
        order = condition.order
        if near != operand:
            order = (_ROUNDED_UP if near > operand else _ROUNDED_DOWN)[order]
        result = ORDERINGS[order](values, values.dtype.type(near))
        return result & ~absent
    numbers: list[Any] = [number for value_type, number in condition.values if value_type is ValueType.NUMBER]
    # Rows cannot hold a number that rounding changed.
    wanted = [near for number in numbers if (near := _nearest(number, values.dtype)) == number]
    if len(wanted) == 1:  # the usual case, and many times faster than isin
        result = values == values.dtype.type(wanted[0])
    else:
        result = np.isin(values, np.array(wanted, dtype=values.dtype))
    result &= ~absent
    return result | absent if MISSING in condition.values else result


def _nearest(number: float, dtype: np.dtype[Any]) -> int | float:
    """Return a number of this dtype such that no other number of the dtype lies between the two."""
    if dtype.kind == "f":
        try:
            return float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf
    limits = np.iinfo(dtype)
    if number >= limits.max:
        return int(limits.max)
    if number <= limits.min:
        return int(limits.min)
    return math.floor(number)
