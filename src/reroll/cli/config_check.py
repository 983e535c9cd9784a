"""`reroll config check`: what a configuration will do, before it runs."""

from pathlib import Path
from typing import Annotated

import typer

from reroll.cli.target import AsJson, one_line_errors, print_json

config_app = typer.Typer(no_args_is_help=True, help="Configurations of buffers.")


@config_app.callback()
def config() -> None:
    """Look at configurations of buffers."""


@config_app.command()
def check(
    file: Annotated[
        Path, typer.Argument(help="A .yaml, .toml or .json file of a buffer, or of its preparation.")
    ],
    as_json: AsJson = False,
) -> None:
    """Explain what a configuration will do, and name what waits for ever (exit code 2) or wastes.

    Example: reroll config check buffer.yaml

    Example: reroll config check prepare.yaml --json
    """
    from reroll.cli.explaining import explain  # noqa: PLC0415  (pydantic takes a while to load)
    from reroll.observe.plain import plain  # noqa: PLC0415

    with one_line_errors():
        told = explain(file)
    if as_json:
        print_json(plain(told))
        return
    typer.echo(f"{file}: a {told.kind}")
    for sentence in told.whole:
        typer.echo(f"  {sentence}")
    for name, sentences in told.tasks.items():
        typer.echo(
            f"Task {name!r}:" if name else "Every other task:" if len(told.tasks) > 1 else "Every task:"
        )
        for sentence in sentences:
            typer.echo(f"  {sentence}")
    for text in told.waste:
        typer.echo(f"Waste: {text}")
    typer.echo("Nothing in it waits for ever.")
