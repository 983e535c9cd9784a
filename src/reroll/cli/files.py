"""`reroll export` and `reroll verify`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reroll.cli.options import (
    AsJson,
    Key,
    Modules,
    ServerKey,
    Target,
    Timeout,
    Where,
    fail,
    one_line_errors,
    print_json,
    progress_bar,
    query_of,
    with_view,
)


def export(
    target: Target,
    out: Annotated[Path, typer.Argument(help="The file: .parquet, .jsonl or .csv.")],
    *,
    where: Where = None,
    rows_only: Annotated[
        bool, typer.Option("--rows-only", help="One row per group, without rollouts and tokens.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
    modules: Modules = None,
    key: Key = None,
    server_key: ServerKey = None,
    timeout: Timeout = 60.0,
) -> None:
    """Write groups to a file for other tools: one row per rollout, with its tokens and the columns of its group.

    Example: reroll export ./buffer rollouts.parquet

    Example: reroll export ./buffer rewards.csv --rows-only

    Example: reroll export ./buffer solved.jsonl --where '{"reward_mean": {"$gte": 0.5}}' --rows-only
    """
    from reroll.observe.export import export as write  # noqa: PLC0415  (slow to import)

    query = query_of(where)

    async def read(view: Any) -> int:
        with progress_bar("exporting groups") as progress:
            return await write(
                view, out, where=query, payloads=not rows_only, overwrite=force, progress=progress
            )

    groups = with_view(target, read, key=key, server_key=server_key, timeout=timeout, modules=modules)
    if as_json:
        print_json({"path": str(out), "groups": groups})
    else:
        typer.echo(f"{out}: {groups} groups")


def verify(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Directory of a saved or durable buffer, also one in use.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a saved or durable buffer: every checksum, and that the ledger closes. Exit code 0: whole, 1: damaged.

    Example: reroll verify ./buffer

    Example: reroll verify ./checkpoints/step-100 --json
    """
    from reroll.observe.plain import plain  # noqa: PLC0415  (slow to import)
    from reroll.observe.verify import verify as check  # noqa: PLC0415

    if path.startswith(("tcp://", "ipc://", "ray:")):
        fail(f"cannot verify a running buffer: {path}; name the directory of its store")
    with one_line_errors(), progress_bar("verifying groups") as progress:
        verdict = check(path, progress)
    if as_json:
        print_json({"is_whole": verdict.is_whole, **plain(verdict)})
    else:
        for problem in verdict.problems:
            typer.echo(problem)
        size = f"{verdict.groups} groups, {verdict.payload_bytes} bytes, {verdict.facts} facts"
        typer.echo(f"{verdict.path}: {size}: {'whole' if verdict.is_whole else 'damaged'}")
    if not verdict.is_whole:
        raise typer.Exit(1)
