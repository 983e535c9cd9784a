"""The five lines that matter, for the README, each with its command."""

from collections.abc import Mapping

from comparison import Row, Table, number

COMMAND = '`make bench-peers ARGS="--only {}"`'


def headlines(tables: Mapping[str, Table]) -> str | None:
    """Return the lines as Markdown; None unless all that they need was measured in whole runs."""
    if not {"a", "d", "e", "g", "i"} <= tables.keys():
        return None
    rows = [
        _cycle(tables["a"]),
        _scan(tables["d"]),
        _memory(tables["g"]),
        _remote(tables["e"]),
        _crash(tables["i"]),
    ]
    lines = [f"| {what} | {said} | {COMMAND.format(letter)} |" for letter, what, said in rows]
    return "\n".join(["| | measured | command |", "|---|---|---|", *lines, ""])


def _row(table: Table, metric: str, setting: str = "") -> Row:
    return next(row for row in table.rows if row.metric.key == metric and setting in row.setting)


def _ratios(table: Table, row: Row, *peers: str) -> str:
    said = [
        f"{number(ratio)}x against {table.name(peer)}"
        for peer in peers
        if (ratio := table.ratio(row, peer)) is not None
    ]
    return ", ".join(said) or "no peer could be measured"


def _cycle(table: Table) -> tuple[str, str, str]:
    row = _row(table, "us", "1,000,000")
    return (
        "a",
        "prioritized sample and update of 256 of 1,000,000 rows",
        _ratios(table, row, "cpprb", "torchrl_sampler"),
    )


def _scan(table: Table) -> tuple[str, str, str]:
    row = _row(table, "take", "100,000")
    return (
        "d",
        "take 64 of 100,000 groups, against designs that scan",
        _ratios(table, row, "records", "frame"),
    )


def _memory(table: Table) -> tuple[str, str, str]:
    row = _row(table, "token")
    figures = ((name, table.median(row, name)) for name in ("reroll_buffer", "lists", "reverb", "cpprb"))
    said = ", ".join(f"{table.name(name)} {number(value)}" for name, value in figures if value is not None)
    return "g", "bytes per token in memory", said


def _remote(table: Table) -> tuple[str, str, str]:
    put, take = _row(table, "put 262144 4"), _row(table, "take 262144 4")
    return (
        "e",
        "256 KB groups, 4 clients of a server",
        f"put {_ratios(table, put, 'reverb')}, take {_ratios(table, take, 'reverb')}",
    )


def _crash(table: Table) -> tuple[str, str, str]:
    lost, put = _row(table, "lost"), _row(table, "acknowledged")
    names = ("reroll_buffer", "reroll_server", "reverb", "transfer_queue", "ray_queue")
    figures = ((name, table.median(lost, name), table.median(put, name)) for name in names)
    said = ", ".join(
        f"{table.name(name)} {gone:.0f} of {of:.0f}" for name, gone, of in figures if gone is not None and of
    )
    return "i", "acknowledged groups lost after kill -9", said
