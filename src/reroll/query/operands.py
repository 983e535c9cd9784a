"""One operator and its operand become a node, or a QueryError that says what the operand should be."""

from typing import Any

from reroll.errors import QueryError
from reroll.query.explain import at_index, shown
from reroll.query.fields import Kind
from reroll.query.nodes import And, Compare, Not, OneOf, Order, Query
from reroll.query.values import MISSING, Sort, Typed, typed
from reroll.rollout.status import Status

OPERATORS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$not_in", "$between")
STATUSES = tuple(status.value for status in Status)


def condition(field: str, kind: Kind, operator: str, operand: object, path: str) -> Query:
    """Return the node of `field: {operator: operand}`; raise QueryError, which names the path."""
    match operator:
        case "$eq":
            return OneOf(field, frozenset({_value(kind, operand, path)}))
        case "$ne":
            return Not(OneOf(field, frozenset({_value(kind, operand, path)})))
        case "$in":
            return OneOf(field, _values(kind, operand, path))
        case "$not_in":
            return Not(OneOf(field, _values(kind, operand, path)))
        case "$gt" | "$gte" | "$lt" | "$lte":
            return Compare(field, Order(operator), _orderable(kind, operand, path))
        case "$between":
            lower, upper = _bounds(kind, operand, path)
            return And((Compare(field, Order.GTE, lower), Compare(field, Order.LTE, upper)))
        case "$and" | "$or" | "$not":
            raise QueryError(
                f'{path}: {operator} stands around whole queries; write {{"{operator}": ...}} outside of the field'
            )
        case _:
            # No guess at the nearest: for "$nin" it would be "$in", the opposite.
            raise QueryError(f"{path}: unknown operator; use one of: {', '.join(OPERATORS)}")


def _value(kind: Kind, operand: object, path: str) -> Typed:
    sort, value = typed(operand)
    if sort is Sort.MISSING:
        if operand is not None:
            raise QueryError(f"{path}: NaN equals nothing; a stored NaN counts as missing, so ask for None")
        return MISSING
    match kind:
        case Kind.NUMBER:
            fits = sort is Sort.NUMBER
        case Kind.TEXT:
            fits = sort is Sort.TEXT
        case Kind.STATUS:
            fits = sort is Sort.TEXT and value in STATUSES
        case Kind.SCALAR:
            fits = sort is not Sort.OTHER
    if not fits:
        raise QueryError(f"{path}: expected {kind.value}, got {shown(operand)}{_remedy(kind, operand)}")
    return sort, value


def _remedy(kind: Kind, operand: object) -> str:
    if isinstance(operand, (list, tuple, set, frozenset)):
        return '; to match several values use {"$in": [...]}'
    if kind is Kind.STATUS:
        return f"; use reroll.Status or one of: {', '.join(STATUSES)}"
    return ""


def _values(kind: Kind, operand: object, path: str) -> frozenset[Typed]:
    if isinstance(operand, (set, frozenset)):  # without order, so without an index to name
        return frozenset(_value(kind, element, path) for element in operand)
    if not isinstance(operand, (list, tuple)):
        raise QueryError(f"{path}: expected a list, tuple or set of values, got {shown(operand)}")
    return frozenset(_value(kind, element, at_index(path, i)) for i, element in enumerate(operand))


def _orderable(kind: Kind, operand: object, path: str) -> Typed:
    if kind is Kind.STATUS:
        raise QueryError(f"{path}: statuses have no order; use $eq, $ne, $in or $not_in")
    if operand is None:
        raise QueryError(f"{path}: None has no order; to ask for missing values use $eq or $ne")
    return _value(kind, operand, path)


def _bounds(kind: Kind, operand: object, path: str) -> tuple[Typed, Typed]:
    if not isinstance(operand, (list, tuple)) or len(operand) != 2:
        raise QueryError(f"{path}: expected [lower, upper], got {shown(operand)}")
    lower, upper = (_orderable(kind, bound, at_index(path, i)) for i, bound in enumerate(operand))
    if lower[0] is not upper[0] or lower[0] is Sort.BOOLEAN:
        raise QueryError(f"{path}: both bounds must be numbers, or both strings")
    low: Any = lower[1]
    if low > upper[1]:
        raise QueryError(f"{path}: the lower bound is above the upper one, so nothing can match; swap them")
    return lower, upper
