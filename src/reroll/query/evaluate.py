"""A query on one row, in plain Python. This is the meaning of the language: other evaluators must agree with it."""

from collections.abc import Mapping
from typing import Protocol

from reroll.query.fields import tag_of
from reroll.query.nodes import ORDERINGS, And, Compare, Not, OneOf, Or, Query
from reroll.query.values import Scalar, Typed, typed


class Queryable(Protocol):
    """A row: an attribute for each name of FIELDS, and the tags."""

    @property
    def tags(self) -> Mapping[str, Scalar]: ...


def matches(query: Query, row: Queryable) -> bool:
    """Return whether the row satisfies the query."""
    match query:
        case And(parts):
            return all(matches(part, row) for part in parts)
        case Or(parts):
            return any(matches(part, row) for part in parts)
        case Not(part):
            return not matches(part, row)
        case OneOf() | Compare():
            return holds(query, _value(row, query.field))


def holds(condition: OneOf | Compare, value: object) -> bool:
    """Return whether a field of this value satisfies the condition."""
    return holds_typed(condition, typed(value))


def holds_typed(condition: OneOf | Compare, value: Typed) -> bool:
    """Return whether a value with its sort satisfies the condition."""
    sort, plain = value
    if isinstance(condition, OneOf):
        return (sort, plain) in condition.values
    operand_sort, operand = condition.operand
    return sort is operand_sort and bool(ORDERINGS[condition.order](plain, operand))


def _value(row: Queryable, field: str) -> object:
    tag = tag_of(field)
    return getattr(row, field) if tag is None else row.tags.get(tag)
