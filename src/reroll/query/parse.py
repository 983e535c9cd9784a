"""A dict becomes nodes, or a QueryError that names the path inside the query and says what to write instead."""

from collections.abc import Mapping

from reroll.errors import QueryError
from reroll.query.explain import at_index, at_key, instead, shown
from reroll.query.fields import FIELDS, TAG_PREFIX, Kind, kind_of
from reroll.query.nodes import Not, Or, Query, all_of, height, size
from reroll.query.operands import OPERATORS, condition

# Far above what anyone writes, far below what recursion can bear; also ends dicts that contain themselves.
MAX_DEPTH = 64

MAX_CONDITIONS = 256
"""Each is a pass over the rows; $in takes any number of values in one."""

LOGIC = ("$and", "$or", "$not")


def parse_query(where: Mapping[str, object] | Query) -> Query:
    """Return the parsed query; one that is parsed already, also inside the dict, is taken as it is.

    Raises QueryError (a ValueError) for whatever is not in the language, also if no row would ever be looked at.
    """
    return where if isinstance(where, Query) else _query(where, "where", 0, _Budget())


class _Budget:
    """How many conditions a query may still have."""

    def __init__(self) -> None:
        self._left = MAX_CONDITIONS

    def spend(self, path: str, conditions: int = 1) -> None:
        self._left -= conditions
        if self._left < 0:
            raise QueryError(
                f"{path}: the query has more than {MAX_CONDITIONS} conditions; compare a field with many values by $in"
            )


def _query(where: object, path: str, depth: int, budget: _Budget) -> Query:
    if isinstance(where, Query):
        depth += height(where)
    if depth > MAX_DEPTH:
        raise QueryError(f"{path}: nested more than {MAX_DEPTH} deep; flatten the $and, $or and $not")
    if isinstance(where, Query):
        budget.spend(path, size(where))
        return where
    if not isinstance(where, Mapping):
        raise QueryError(f'{path}: a query is a dict such as {{"status": "completed"}}, got {shown(where)}')
    budget.spend(path, 0 if where else 1)
    return all_of(tuple(_entry(key, value, path, depth, budget) for key, value in where.items()))


def _entry(key: object, value: object, path: str, depth: int, budget: _Budget) -> Query:
    if not isinstance(key, str):
        raise QueryError(f"{path}: keys are field names, $and, $or or $not, got {shown(key)}")
    here = at_key(path, key)
    match key:
        case "$and":
            return all_of(_queries(key, value, here, depth + 1, budget))
        case "$or":
            return Or(_queries(key, value, here, depth + 1, budget))
        case "$not":
            return Not(_query(value, here, depth + 1, budget))
    kind = kind_of(key)
    if kind is None:
        raise _unknown(key, here)
    budget.spend(here, len(value) if isinstance(value, Mapping) else 1)
    if not isinstance(value, Mapping):
        return condition(key, kind, "$eq", value, here)
    return _field(key, kind, value, here)


def _queries(key: str, value: object, path: str, depth: int, budget: _Budget) -> tuple[Query, ...]:
    if not isinstance(value, (list, tuple)):
        raise QueryError(f"{path}: {key} takes a list of queries, got {shown(value)}")
    budget.spend(path, 0 if value else 1)
    return tuple(_query(part, at_index(path, i), depth, budget) for i, part in enumerate(value))


def _field(field: str, kind: Kind, operations: Mapping[object, object], path: str) -> Query:
    if not operations:
        raise QueryError(
            f'{path}: an operator is needed, such as {{"$eq": ...}}; to match all, leave the field out'
        )
    parts = []
    for operator, operand in operations.items():
        if not isinstance(operator, str):
            raise QueryError(f"{path}: operators are {', '.join(OPERATORS)}, got {shown(operator)}")
        parts.append(condition(field, kind, operator, operand, at_key(path, operator)))
    return all_of(tuple(parts))


def _unknown(key: str, path: str) -> QueryError:
    if key in OPERATORS:
        return QueryError(f'{path}: {key} compares a field; write {{field: {{"{key}": ...}}}}')
    if key.startswith("$"):
        return QueryError(f"{path}: unknown operator; use one of: {', '.join(LOGIC)}")
    if key in ("tags", TAG_PREFIX):
        return QueryError(f'{path}: name one tag, as in "tags.difficulty"')
    return QueryError(f"{path}: unknown field; {instead(key, (*FIELDS, 'tags.<name>', *LOGIC))}")
