"""Parse a query: check a dict and turn it into nodes.

Each QueryError names the path inside of the query and says what to write instead.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from reroll.errors import QueryError, shown
from reroll.query.nodes import (
    FIELDS,
    MISSING,
    TAG_PREFIX,
    And,
    Compare,
    Kind,
    Not,
    OneOf,
    Or,
    Query,
    Typed,
    ValueType,
    kind_of,
    typed,
)
from reroll.rollout.status import Status

MAX_DEPTH: Final = 64
"""Limit of nesting: below Python's recursion limit; it also stops at dicts that contain themselves."""
MAX_CONDITIONS: Final = 256
"""Limit of conditions, each of which is a pass over the rows. `$in` with many values is one condition."""

LOGIC: Final = ("$and", "$or", "$not")
OPERATORS: Final = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$not_in", "$between")

_STATUSES: Final = tuple(status.value for status in Status)
_FITTING: Final = {
    Kind.NUMBER: (ValueType.NUMBER,),
    Kind.TEXT: (ValueType.TEXT,),
    Kind.STATUS: (ValueType.TEXT,),
    Kind.SCALAR: (ValueType.BOOLEAN, ValueType.NUMBER, ValueType.TEXT),
}


def parse_query(where: Mapping[str, object] | Query) -> Query:
    """Check a query and return it as nodes. O(size of the query).

    Args:
        where: A dict in the query language (see `reroll.query`), in which parsed queries may stand as parts; or a
            parsed query, which is returned unchanged.

    Returns:
        The parsed query; it is immutable, picklable, and accepted wherever a dict is.

    Raises:
        QueryError: The query is not in the language, nested more than 64 deep, or has more than 256 conditions.

    Example:
        >>> parse_query({"status": "completed", "staleness": {"$lte": 2}})

    """
    return where if isinstance(where, Query) else _Parser().query(where, "where", 0)


class _Parser:
    """Parses one query and counts its conditions."""

    def __init__(self) -> None:
        self._conditions_left = MAX_CONDITIONS

    def query(self, where: object, path: str, depth: int) -> Query:
        height, size = _extent(where) if isinstance(where, Query) else (0, 0)
        if depth + height > MAX_DEPTH:
            raise QueryError(f"{path}: nested more than {MAX_DEPTH} deep; flatten the $and, $or and $not")
        if isinstance(where, Query):
            self._count(path, size)
            return where
        if not isinstance(where, Mapping):
            raise QueryError(
                f'{path}: a query is a dict such as {{"status": "completed"}}, got {shown(where)}'
            )
        self._count(path, 0 if where else 1)
        return _all_of([self._entry(key, value, path, depth) for key, value in where.items()])

    def _entry(self, key: object, value: object, path: str, depth: int) -> Query:
        if not isinstance(key, str):
            raise QueryError(f"{path}: keys are field names, $and, $or or $not, got {shown(key)}")
        path = at_key(path, key)
        if key == "$not":
            return Not(self.query(value, path, depth + 1))
        if key in ("$and", "$or"):
            if not isinstance(value, (list, tuple)):
                raise QueryError(f"{path}: {key} takes a list of queries, got {shown(value)}")
            self._count(path, 0 if value else 1)
            parts = [self.query(part, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)]
            return _all_of(parts) if key == "$and" else Or(tuple(parts))
        return self._field(key, value, path)

    def _field(self, field: str, value: object, path: str) -> Query:
        kind = kind_of(field)
        if kind is None:
            raise _unknown_field(field, path)
        if not isinstance(value, Mapping):
            self._count(path, 1)
            return parse_condition(field, kind, "$eq", value, path)
        self._count(path, len(value))
        if not value:
            raise QueryError(
                f'{path}: an operator is required, such as {{"$eq": ...}}; to match all values, omit the field'
            )
        parts = []
        for operator, operand in value.items():
            if not isinstance(operator, str):
                raise QueryError(f"{path}: operators are {', '.join(OPERATORS)}, got {shown(operator)}")
            parts.append(parse_condition(field, kind, operator, operand, at_key(path, operator)))
        return _all_of(parts)

    def _count(self, path: str, conditions: int) -> None:
        self._conditions_left -= conditions
        if self._conditions_left < 0:
            raise QueryError(
                f"{path}: the query has more than {MAX_CONDITIONS} conditions; compare a field with many values by $in"
            )


def parse_condition(field: str, kind: Kind, operator: str, operand: object, path: str) -> Query:
    """Return the node of `field: {operator: operand}`; raise QueryError if the operand does not fit."""
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
            return Compare(field, operator, _orderable(kind, operand, path))
        case "$between":
            lower, upper = _bounds(kind, operand, path)
            return And((Compare(field, "$gte", lower), Compare(field, "$lte", upper)))
        case "$and" | "$or" | "$not":
            raise QueryError(
                f'{path}: {operator} combines whole queries; write {{"{operator}": ...}} outside of the field'
            )
        case _:
            # Without a suggestion: the closest to "$nin" is "$in", its opposite.
            raise QueryError(f"{path}: unknown operator; use one of: {', '.join(OPERATORS)}")


def at_key(path: str, key: str) -> str:
    """Return the path of an entry: `.key` for names, `["$key"]` for other keys."""
    if all(part.isidentifier() for part in key.split(".")):
        return f"{path}.{key}"
    return f"{path}[{json.dumps(key)}]"


def suggest(word: str, names: Iterable[str]) -> str:
    """Return the remedy for an unknown word: the closest name, or all names."""
    known = list(names)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {json.dumps(close[0])}?" if close else f"use one of: {', '.join(known)}"


_REWARD_NAMES: Final = ("reward", "rewards", "score")
"""Fields of a rollout; a group has their mean and standard deviation."""


def _unknown_field(key: str, path: str) -> QueryError:
    if key in OPERATORS:
        return QueryError(f'{path}: {key} compares a field; write {{field: {{"{key}": ...}}}}')
    if key.startswith("$"):
        return QueryError(f"{path}: unknown operator; use one of: {', '.join(LOGIC)}")
    if key in ("tags", TAG_PREFIX):
        return QueryError(f'{path}: a tag name is missing; write it as in "tags.difficulty"')
    if key in _REWARD_NAMES:
        return QueryError(f'{path}: unknown field; did you mean "reward_mean"?')
    return QueryError(f"{path}: unknown field; {suggest(key, (*FIELDS, 'tags.<name>', *LOGIC))}")


def _value(kind: Kind, operand: object, path: str) -> Typed:
    value_type, value = typed(operand)
    if value_type is ValueType.MISSING:
        if operand is not None:
            raise QueryError(f"{path}: NaN equals nothing; stored NaNs count as missing, so ask for None")
        return MISSING
    if value_type not in _FITTING[kind] or (kind is Kind.STATUS and value not in _STATUSES):
        remedy = ""
        if isinstance(operand, (list, tuple, set, frozenset)):
            remedy = '; to match several values use {"$in": [...]}'
        elif kind is Kind.STATUS:
            remedy = f"; use reroll.Status or one of: {', '.join(_STATUSES)}"
        raise QueryError(f"{path}: expected {kind.value}, got {shown(operand)}{remedy}")
    return value_type, value


def _values(kind: Kind, operand: object, path: str) -> frozenset[Typed]:
    if isinstance(operand, (set, frozenset)):  # unordered: an element has no index to name
        return frozenset(_value(kind, element, path) for element in operand)
    if not isinstance(operand, (list, tuple)):
        raise QueryError(f"{path}: expected a list, tuple or set of values, got {shown(operand)}")
    return frozenset(_value(kind, element, f"{path}[{i}]") for i, element in enumerate(operand))


def _orderable(kind: Kind, operand: object, path: str) -> Typed:
    if kind is Kind.STATUS:
        raise QueryError(f"{path}: statuses have no order; use $eq, $ne, $in or $not_in")
    if operand is None:
        raise QueryError(f"{path}: None has no order; to ask for missing values use $eq or $ne")
    return _value(kind, operand, path)


def _bounds(kind: Kind, operand: object, path: str) -> tuple[Typed, Typed]:
    if not isinstance(operand, (list, tuple)) or len(operand) != 2:
        raise QueryError(f"{path}: expected [lower, upper], got {shown(operand)}")
    lower, upper = (_orderable(kind, bound, f"{path}[{i}]") for i, bound in enumerate(operand))
    if lower[0] is not upper[0] or lower[0] is ValueType.BOOLEAN:
        raise QueryError(f"{path}: both bounds must be numbers, or both strings")
    low: Any = lower[1]
    if low > upper[1]:
        raise QueryError(f"{path}: the lower bound is above the upper bound, so nothing can match; swap them")
    return lower, upper


def _all_of(parts: list[Query]) -> Query:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _extent(query: Query) -> tuple[int, int]:
    """Return the number of nodes on the longest path down, and of conditions (And and Or without parts count as one)."""
    match query:
        case And(parts) | Or(parts):
            extents = list(map(_extent, parts)) or [(0, 1)]
            return 1 + max(height for height, _ in extents), sum(size for _, size in extents)
        case Not(part):
            height, size = _extent(part)
            return 1 + height, size
        case OneOf() | Compare():
            return 1, 1
