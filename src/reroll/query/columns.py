"""A query on whole columns at once: the same answers as the oracle, at the speed of arrays.

Only numbers have code of their own (`numbers`). Categories and objects ask the oracle, once per distinct name and once
per row, so that the meaning of the language stays in one place.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from reroll.query.evaluate import holds, holds_typed
from reroll.query.fields import Kind, kind_of
from reroll.query.nodes import And, Compare, Not, OneOf, Or, Query
from reroll.query.numbers import Mask, number_mask
from reroll.query.values import Typed, typed

_OBJECT_COST: Final = 256
"""Of a condition on values that are Python objects."""


class ColumnSource(Protocol):
    """Rows as columns. All columns have `len(source)` entries, in the same order, and are only read."""

    def __len__(self) -> int: ...

    def numbers(self, field: str) -> tuple[NDArray[Any], Mask | None]:
        """Return an integer or float array, and where values are missing (NaN is missing as well)."""
        ...

    def categories(self, field: str) -> tuple[NDArray[Any], Sequence[str]]:
        """Return an integer code per row, -1 for missing, and the name of each code: task_name, status."""
        ...

    def objects(self, field: str) -> Sequence[object]:
        """Return a value per row, None for missing: group_id, tags.<name>."""
        ...


def mask(query: Query, source: ColumnSource) -> Mask:
    """Return for each row whether it satisfies the query, in a new array."""
    return _mask(query, source, {})


def cost(query: Query) -> int:
    """Return what a query costs for each row, in comparisons of one number in an array."""
    match query:
        case And(parts) | Or(parts):
            return 1 + sum(map(cost, parts))
        case Not(part):
            return 1 + cost(part)
        case OneOf() | Compare():
            return _OBJECT_COST if kind_of(query.field) is Kind.SCALAR else 1


def _mask(query: Query, source: ColumnSource, seen: dict[str, list[Typed]]) -> Mask:
    match query:
        case And(parts):
            result = np.ones(len(source), dtype=np.bool_)
            for part in parts:
                result &= _mask(part, source, seen)
            return result
        case Or(parts):
            result = np.zeros(len(source), dtype=np.bool_)
            for part in parts:
                result |= _mask(part, source, seen)
            return result
        case Not(part):
            return ~_mask(part, source, seen)
        case OneOf() | Compare():
            return _condition(query, source, seen)


def _condition(condition: OneOf | Compare, source: ColumnSource, seen: dict[str, list[Typed]]) -> Mask:
    field = condition.field
    match kind_of(field):
        case Kind.NUMBER:
            return number_mask(condition, *source.numbers(field))
        case Kind.TEXT | Kind.STATUS:
            codes, names = source.categories(field)
            # One answer per name, and one for missing at the end, where the code -1 finds it.
            answers = np.array([holds(condition, name) for name in (*names, None)], dtype=np.bool_)
            result: Mask = answers[codes]
            return result
        case _:
            if field not in seen:
                seen[field] = list(map(typed, source.objects(field)))
            if isinstance(condition, OneOf):
                return np.fromiter(map(condition.values.__contains__, seen[field]), np.bool_, len(source))
            values = seen[field]
            return np.fromiter((holds_typed(condition, value) for value in values), np.bool_, len(source))
