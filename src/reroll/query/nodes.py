"""A parsed query: three nodes of logic and two of conditions, frozen, picklable and comparable.

The operators of the language are more than the nodes, on purpose: `$ne` is Not($eq), `$between` is And($gte, $lte),
so an evaluator has only five cases and the negations are exact by construction. `parse_query` makes nodes and
checks them; evaluators trust what they are given.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

from reroll.query.values import Typed


class Order(StrEnum):
    """The four orderings, named as in the language."""

    GT = "$gt"
    GTE = "$gte"
    LT = "$lt"
    LTE = "$lte"


# Any, because the same functions serve single values and whole arrays.
ORDERINGS: Mapping[Order, Callable[[Any, Any], Any]] = MappingProxyType(
    {Order.GT: operator.gt, Order.GTE: operator.ge, Order.LT: operator.lt, Order.LTE: operator.le}
)


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold; without parts: true."""

    parts: "tuple[Query, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part holds; without parts: false."""

    parts: "tuple[Query, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: "Query"


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field's value is one of these, of which MISSING may be one."""

    field: str
    values: frozenset[Typed]


@dataclass(frozen=True, slots=True)
class Compare:
    """The field's value has the sort of the operand and lies on this side of it."""

    field: str
    order: Order
    operand: Typed


Query: TypeAlias = And | Or | Not | OneOf | Compare


def all_of(parts: tuple[Query, ...]) -> Query:
    """Return the query that all parts hold; one part alone stands for itself."""
    return parts[0] if len(parts) == 1 else And(parts)


def height(query: Query) -> int:
    """Return how many nodes lie on the longest way down."""
    match query:
        case And(parts) | Or(parts):
            return 1 + max(map(height, parts), default=0)
        case Not(part):
            return 1 + height(part)
        case OneOf() | Compare():
            return 1


def size(query: Query) -> int:
    """Return how many conditions a query has; logic without parts counts as one."""
    match query:
        case And(parts) | Or(parts):
            return sum(map(size, parts)) or 1
        case Not(part):
            return size(part)
        case OneOf() | Compare():
            return 1
