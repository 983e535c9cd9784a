"""Which queries select by task and status alone, and so need no look at any row."""

from reroll.query.nodes import And, OneOf, Query
from reroll.query.values import Sort
from reroll.rollout.status import Status


def only_pool(query: Query) -> tuple[str | None, Status | None] | None:
    """Return the (task_name, status) that the query asks for, if it asks for nothing else.

    None in the pair: the query leaves that one open. None instead of a pair: the query is no such query, and
    neither is `{}`, which names no pool.
    """
    wanted: dict[str, str] = {}
    for part in query.parts if isinstance(query, And) else (query,):
        if not isinstance(part, OneOf) or part.field not in ("task_name", "status") or part.field in wanted:
            return None
        if len(part.values) != 1:
            return None
        ((sort, value),) = part.values
        if sort is not Sort.TEXT:  # asks for a missing one
            return None
        wanted[part.field] = str(value)
    if not wanted:
        return None
    status = wanted.get("status")
    return wanted.get("task_name"), None if status is None else Status(status)
