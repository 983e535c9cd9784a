"""The answers of several shards as one. With one shard each is that shard's answer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from reroll.engine.ledger import Amount
from reroll.engine.query import parse_order, sort_rows

Arguments = Mapping[str, Any]
Merge = Callable[[list[Any], Arguments], Any]


def _by_task(answers: list[dict[str, Any]], _: Arguments) -> dict[str, Any]:
    """Add numbers, or numbers by status, by task."""
    merged: dict[str, Any] = {}
    for answer in answers:
        for task, value in answer.items():
            if isinstance(value, dict):
                before = merged.get(task, {})
                merged[task] = {key: before.get(key, 0) + count for key, count in value.items()}
            else:
                merged[task] = merged.get(task, 0) + value
    return merged


def _ledger(answers: list[dict[str, dict[str, Amount]]], _: Arguments) -> dict[str, dict[str, Amount]]:
    merged: dict[str, dict[str, Amount]] = {}
    for answer in answers:
        for task, amounts in answer.items():
            before = merged.get(task, {})
            merged[task] = {name: before.get(name, Amount()).plus(amount) for name, amount in amounts.items()}
    return merged


def _query(answers: list[list[Any]], arguments: Arguments) -> list[Any]:
    rows = sorted((row for answer in answers for row in answer), key=lambda row: row.uid)
    order = parse_order(arguments.get("order_by"))
    first, limit = arguments.get("offset", 0), arguments.get("limit")
    last = None if limit is None else first + limit
    return (rows if order is None else sort_rows(rows, *order))[first:last]


def _unknown(answers: list[list[int]], _: Arguments) -> list[int]:
    """Return what no shard knows."""
    nowhere = set(answers[0]).intersection(*answers[1:])
    return [uid for uid in answers[0] if uid in nowhere]


def _tables(answers: list[Any], _: Arguments) -> Any:
    import pyarrow as pa  # noqa: PLC0415  (optional)

    return pa.concat_tables(answers, promote_options="default").sort_by("uid")


def _version(answers: list[int | None], _: Arguments) -> int | None:
    """Return the version that serves wherever `advance` has arrived."""
    return min((version for version in answers if version is not None), default=None)


MERGES: Final[Mapping[str, Merge]] = {
    "count": lambda answers, _: sum(answers),
    "count_statuses": _by_task,
    "count_where": lambda answers, _: sum(answers),
    "refresh_staleness": _by_task,
    "delete": lambda answers, _: sum(answers),
    "forget": lambda answers, _: sum(answers),
    "update_priorities": _unknown,
    "commit": lambda answers, _: sum(answers),
    "rewind": lambda answers, _: sum(answers),
    "advance": lambda _answers, _: None,
    "set_sampler": lambda _answers, _: None,
    "version": _version,
    "ledger": _ledger,
    "query": _query,
    "to_arrow": _tables,
}
