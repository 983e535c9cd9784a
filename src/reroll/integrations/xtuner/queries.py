"""Query nodes and `parse_query` of xtuner's storages: conditions on the six fields of a `StorageItem`.

Conditions on metadata are parsed and evaluated by `reroll.query`. Only conditions on `item`, the rollouts themselves, are
evaluated here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeAlias

from reroll.errors import QueryError, shown
from reroll.query import FIELDS, And, Not, Or, Query, matches
from reroll.query.parse import LOGIC, MAX_DEPTH, OPERATORS, at_key, parse_condition, suggest
from reroll.rollout.arrays import same

LogicOperator: TypeAlias = Literal["$and", "$or", "$not"]
"""Operators that join conditions."""
Operators: TypeAlias = Literal["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$not_in", "$between"]
"""Operators that compare a field with a value."""
QueryKey: TypeAlias = str
"""A field of an item, or a LogicOperator."""
QueryDict: TypeAlias = dict[QueryKey, Any]
"""A query as dicts, in which nodes may stand as parts."""

QUERY_KEYS = ["item", "uid", "timestamp_id", "task_name", "status", "staleness"]
"""Fields that a query may name."""


class QueryNode:
    """A parsed query."""


QueryType: TypeAlias = QueryDict | QueryNode
"""A query as a dict or as nodes."""


@dataclass(frozen=True)
class LogicNode(QueryNode):
    """All conditions hold, one holds, or the only one does not hold. Raises QueryError for invalid parts."""

    relation: LogicOperator
    conditions: Sequence[QueryNode]

    def __post_init__(self) -> None:
        if self.relation not in LOGIC:
            raise QueryError(f"{self.relation!r} is no relation; use one of: {', '.join(LOGIC)}")
        wrong = [part for part in self.conditions if not isinstance(part, QueryNode)]
        if wrong:
            raise QueryError(f"{self.relation}: {shown(wrong[0])} is no query node; parse_query makes one")
        if self.relation == "$not" and len(self.conditions) != 1:
            raise QueryError(f"$not takes one query, not {len(self.conditions)}; put them into $and or $or")


class ConditionNode(QueryNode):
    """A condition on one field."""

    field: str
    metadata: Query | None
    """The condition as a query of a buffer; None for a condition on rollouts."""

    def _check(self, operator: str, operand: object) -> None:
        path = at_key(at_key("where", self.field), operator)
        object.__setattr__(self, "metadata", _parse_condition(self.field, operator, operand, path))


@dataclass(frozen=True)
class ScalarNode(ConditionNode):
    """Compares a field with one value. Raises QueryError."""

    field: str
    op: Literal["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]
    value: Any

    def __post_init__(self) -> None:
        self._check(self.op, self.value)


@dataclass(frozen=True)
class SetNode(ConditionNode):
    """Tests whether the value of a field is in a collection, or not in it. Raises QueryError."""

    field: str
    op: Literal["$in", "$not_in"]
    value: Sequence[Any]

    def __post_init__(self) -> None:
        self._check(self.op, self.value)


@dataclass(frozen=True)
class BetweenNode(ConditionNode):
    """Tests whether a field is between two values, both included. Raises QueryError, also if lower > upper."""

    op: ClassVar[str] = "$between"
    field: str
    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        self._check(self.op, [self.lower, self.upper])


def holds(node: QueryNode, item: Any) -> bool:
    """Return whether an item satisfies a query."""
    match node:
        case LogicNode("$and", parts):
            return all(holds(part, item) for part in parts)
        case LogicNode(relation, parts):
            return any(holds(part, item) for part in parts) == (relation == "$or")
        case ConditionNode() if node.metadata is not None:
            return matches(node.metadata, item)
        case SetNode(_, operator, groups):
            return any(same(item.item, group) for group in groups) == (operator == "$in")
        case ScalarNode(_, operator, group):
            return same(item.item, group) == (operator == "$eq")
    raise TypeError(f"{node!r} is no query node of this module")


def metadata_query(node: QueryNode) -> Query | None:
    """Return the query of a buffer that finds the same groups; None if a condition is on rollouts."""
    if not isinstance(node, LogicNode):
        return node.metadata if isinstance(node, ConditionNode) else None
    parts = tuple(query for part in node.conditions if (query := metadata_query(part)) is not None)
    if len(parts) < len(node.conditions):
        return None
    return And(parts) if node.relation == "$and" else Or(parts) if node.relation == "$or" else Not(*parts)


def parse_query(expr: Mapping[str, Any] | QueryNode) -> QueryNode:
    """Return the nodes of a query of dicts and nodes, mixed.

    Args:
        expr: the query.

    Raises:
        QueryError: the query is invalid; the message names the path.

    """
    return _parse(expr, "where", depth=0)


def _parse(expr: object, path: str, depth: int) -> QueryNode:
    if isinstance(expr, QueryNode):
        return expr
    if depth > MAX_DEPTH:
        raise QueryError(f"{path}: nested more than {MAX_DEPTH} deep; flatten the $and, $or and $not")
    if not isinstance(expr, Mapping):
        raise QueryError(f"{path}: a query is a dict or a node, got {shown(expr)}")
    parts = [node for key, value in expr.items() for node in _parse_entry(key, value, path, depth)]
    return parts[0] if len(parts) == 1 else LogicNode("$and", parts)


def _parse_entry(key: object, value: Any, path: str, depth: int) -> list[QueryNode]:
    if not isinstance(key, str):
        raise QueryError(f"{path}: keys are field names, $and, $or or $not, got {shown(key)}")
    here = at_key(path, key)
    match key:
        case "$not":
            return [LogicNode("$not", [_parse(value, here, depth + 1)])]
        case "$and" | "$or" as relation:
            if not isinstance(value, list | tuple):
                raise QueryError(f"{here}: {key} takes a list of queries, got {shown(value)}")
            parts = [_parse(part, f"{here}[{place}]", depth + 1) for place, part in enumerate(value)]
            return [LogicNode(relation, parts)]
    operations = value if isinstance(value, Mapping) else {"$eq": value}
    if not operations:
        raise QueryError(f'{here}: an operator is needed, such as {{"$eq": ...}}')
    return [_node(key, operator, operand, here) for operator, operand in operations.items()]


def _node(name: str, operator: Any, operand: Any, path: str) -> ConditionNode:
    if not isinstance(operator, str):
        raise QueryError(f"{path}: operators are {', '.join(OPERATORS)}, got {shown(operator)}")
    _parse_condition(name, operator, operand, at_key(path, operator))  # its errors name the path
    match operator:
        case "$in" | "$not_in":
            return SetNode(name, operator, operand)
        case "$between":
            return BetweenNode(name, *operand)
    return ScalarNode(name, operator, operand)  # type: ignore[arg-type]  # it was checked


def _parse_condition(name: str, operator: str, operand: object, path: str) -> Query | None:
    """Return a condition as a query of a buffer; None for a condition on rollouts. Raises QueryError."""
    if name == "item":
        if operator not in ("$eq", "$ne", "$in", "$not_in"):
            raise QueryError(f"{path}: rollouts have no order; use $eq, $ne, $in or $not_in")
        if operator in ("$in", "$not_in") and not isinstance(operand, list | tuple):
            raise QueryError(f"{path}: expected a list or tuple of groups, got {shown(operand)}")
        return None
    if name not in QUERY_KEYS:
        raise QueryError(f"{path}: unknown field; {suggest(name, (*QUERY_KEYS, *LOGIC))}")
    if name == "status":
        values = operand if isinstance(operand, list | tuple) else [operand]
        texts = [value.value if isinstance(value, Enum) else value for value in values]
        operand = texts if isinstance(operand, list | tuple) else texts[0]
    return parse_condition(name, FIELDS[name], operator, operand, path)
