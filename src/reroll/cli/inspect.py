"""`reroll inspect`: the contents of a buffer, as tables."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reroll.cli.options import (
    AsJson,
    Key,
    ServerKey,
    Target,
    Timeout,
    Where,
    print_json,
    query_of,
    visible,
    with_view,
)

if TYPE_CHECKING:
    from reroll.engine.ledger import Amount
    from reroll.observe import Page
    from reroll.telemetry.stats import Stats, TaskStats

_ROW = {
    "uid": "uid",
    "id": "group_id",
    "task": "task_name",
    "status": "status",
    "stale": "staleness",
    "ver": "version",
    "n": "num_rollouts",
    "tokens": "num_tokens",
    "uses": "times_sampled",
    "tries": "attempts",
    "prio": "priority",
    "reward": "reward_mean",
    "std": "reward_std",
    "tags": "tags",
}
"""Short column names, so that a row fits a terminal."""


def inspect(
    target: Target,
    *,
    where: Where = None,
    order_by: Annotated[
        str | None, typer.Option(help="Order of the rows: a field, or -field for descending order.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows to show.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="Rows to skip.")] = 0,
    as_json: AsJson = False,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show the contents of a buffer: tasks and statuses, staleness, sizes, limits, the ledger, warnings, and rows.

    It only reads: it takes nothing, and does not count as a use.

    Example: reroll inspect ./buffer

    Example: reroll inspect tcp://127.0.0.1:5555 --where '{"reward_std": {"$gt": 0.2}}' --order-by=-reward_std --limit 20

    Example: reroll inspect ./buffer --json | jq '.stats.warnings'
    """
    query = query_of(where)

    async def read(view: Any) -> tuple[str, str, Any, Any, Any]:
        stats = await view.stats()
        page = await view.rows(query, order_by=order_by, limit=limit, offset=offset)
        return view.title, view.kind, stats, await view.ledger(), page

    title, kind, stats, ledger, page = with_view(
        target, read, key=key, server_key=server_key, timeout=timeout
    )
    if as_json:
        from reroll.observe.plain import plain  # noqa: PLC0415  (slow to import)

        parts = {"stats": plain(stats), "ledger": plain(ledger), "matching": page.total, "rows": page.rows}
        print_json({"target": title, "kind": kind, **parts})
    else:
        _print(title, kind, stats, ledger, page)


def _print(
    title: str, kind: str, stats: "Stats", ledger: Mapping[str, Mapping[str, "Amount"]], page: "Page"
) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # cut nothing off in files and pipes
    total = stats.total
    console.print(
        Text.assemble(
            (visible(title), "bold"),
            f"  {kind}, {_number(total.num_groups)} groups, {_number(total.num_tokens)} tokens, ",
            f"{_bytes(stats.num_bytes)}{_on_disk(stats)}, {stats.leases} leases, {stats.out} out",
        )
    )
    if not stats.tasks:
        console.print("Nothing was put yet.")
        return
    console.print(_tasks(stats))
    console.print(_sizes(stats))
    if kind != "file":  # a file has no configuration
        console.print(_limits(stats))
    console.print(_ledger(ledger))
    for warning in stats.warnings:
        console.print(Text(f"! {visible(str(warning))}", "yellow"))
    console.print(_rows(page))


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=column != "limiter")
    return table


def _with_total(stats: "Stats") -> "dict[str, TaskStats]":
    return {**stats.tasks, "all": stats.total} if len(stats.tasks) > 1 else stats.tasks


def _tasks(stats: "Stats") -> Table:
    statuses = [status for status, count in stats.total.statuses.items() if count] or ["completed"]
    table = _table(
        "Groups", ["task", *statuses, "tokens", "bytes", "leased", "out", "put", "trained", "step"]
    )
    for name, task in _with_total(stats).items():
        counts = [task.statuses[status] for status in statuses]
        size = [_number(task.num_tokens), _bytes(task.num_bytes)]
        flow = [task.leased, task.out, task.put.groups, task.trained.groups, task.step]
        table.add_row(visible(name), *map(_number, counts), *size, *map(_number, flow))
    return table


def _sizes(stats: "Stats") -> Table:
    table = _table(
        "COMPLETED groups (mean, largest), responses (mean, p90)",
        ["task", "staleness", "uses", "produced length", "trained length"],
    )
    for name, task in _with_total(stats).items():
        table.add_row(
            visible(name),
            _pair(task.staleness.mean, task.staleness.max),
            _pair(task.uses.mean, task.uses.max),
            _pair(task.produced.lengths.mean, task.produced.lengths.p90),
            _pair(task.trained.lengths.mean, task.trained.lengths.p90),
        )
    return table


def _limits(stats: "Stats") -> Table:
    columns = (
        "task",
        "capacity",
        "occupied",
        "may be put",
        "may be taken",
        "may start",
        "waiting",
        "limiter",
    )
    table = _table("Limits", columns)
    for name, task in stats.tasks.items():
        limits = task.limits
        waiting = [f"{w.count} {verb} {w.longest_s:.0f} s" for verb, w in task.waiting.items() if w.count]
        table.add_row(
            visible(name),
            "any" if limits.capacity is None else _number(limits.capacity),
            _number(limits.occupied),
            "any" if limits.inserts_left is None else _number(limits.inserts_left),
            _number(limits.samples_left),
            "any" if limits.starts_left is None else _number(limits.starts_left),
            ", ".join(waiting) or "-",
            visible(limits.limiter),
        )
    return table


def _ledger(ledger: Mapping[str, Mapping[str, "Amount"]]) -> Table:
    names = next(iter(ledger.values()))
    buckets = [name for name in names if any(amounts[name][:2] != (0, 0) for amounts in ledger.values())]
    table = _table("Ledger: groups / tokens (of which trained)", ["task", *buckets])
    for name, amounts in ledger.items():
        table.add_row(visible(name), *(_amount(amounts[bucket]) for bucket in buckets))
    return table


def _amount(amount: "Amount") -> str:
    trained = f"\n({_number(amount.trained_groups)} / {_number(amount.trained_tokens)})"
    return f"{_number(amount.groups)} / {_number(amount.tokens)}{trained if amount.trained_tokens else ''}"


def _rows(page: "Page") -> Table:
    first = page.offset + 1 if page.rows else 0
    shown = f"{_number(first)} to {_number(page.offset + len(page.rows))} of {_number(page.total)}"
    known = {
        short: name
        for short, name in _ROW.items()
        if name == "uid" or any(row[name] not in (None, {}) for row in page.rows)
    }
    table = _table(f"Rows {shown}", known)
    for row in page.rows:
        table.add_row(*(_cell(row[name]) for name in known.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return visible(", ".join(f"{name}={part}" for name, part in value.items()))
    return _number(value) if value is None or isinstance(value, int | float) else visible(str(value))


def _pair(mean: float | None, other: float | None) -> str:
    return "-" if mean is None else f"{_number(mean)} ({_number(other)})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    )


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _on_disk(stats: "Stats") -> str:
    return "" if stats.disk is None else f" ({_bytes(stats.disk.file_bytes + stats.disk.log_bytes)} on disk)"
