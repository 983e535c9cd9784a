"""`reroll inspect`: what is in a buffer."""

from typing import Annotated, Any

import typer

from reroll.cli.target import AsJson, Key, ServerKey, Target, Timeout, Where, looking, print_json, query_of


def inspect(
    target: Target,
    *,
    where: Where = None,
    order_by: Annotated[
        str | None, typer.Option(help="Order of the rows: a field, or -field for the largest first.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many rows are shown.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="How many rows are left out before them.")] = 0,
    as_json: AsJson = False,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show what is in a buffer: tasks and statuses, staleness, sizes, limits, the ledger, warnings, and rows.

    It only looks: nothing is taken, and nothing counts as a use.

    Example: reroll inspect ./buffer

    Example: reroll inspect tcp://127.0.0.1:5555 --where '{"reward_std": {"$gt": 0.2}}' --order-by=-reward_std --limit 20

    Example: reroll inspect ./buffer --json | jq '.stats.warnings'
    """
    query = query_of(where)

    async def look(view: Any) -> tuple[str, str, Any, Any, Any]:
        stats = await view.stats()
        page = await view.rows(query, order_by=order_by, limit=limit, offset=offset)
        return view.title, view.kind, stats, await view.ledger(), page

    title, kind, stats, ledger, page = looking(target, look, key=key, server_key=server_key, timeout=timeout)
    if as_json:
        from reroll.observe.plain import plain  # noqa: PLC0415

        print_json(
            {
                "target": title,
                "kind": kind,
                "stats": plain(stats),
                "ledger": plain(ledger),
                "matching": page.total,
                "rows": page.rows,
            }
        )
        return
    from reroll.cli.tables import show_inspection  # noqa: PLC0415  (rich takes a while to load)

    show_inspection(title, kind, stats, ledger, page)
