"""How a command ends by the user's hand: one line, and exit code 2."""

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Say what is wrong, and end."""
    typer.echo(f"reroll: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)
