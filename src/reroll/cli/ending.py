"""How a command ends by the user's hand: one line, and exit code 2."""

from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from pydantic import ValidationError


def fail(message: str) -> NoReturn:
    """Say what is wrong, and end."""
    typer.echo(f"reroll: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)


def in_words(wrong: "ValidationError") -> str:
    """Return what is wrong with a configuration, by key."""
    told = []
    for error in wrong.errors():
        place = ".".join(map(str, error["loc"]))
        message = error["msg"].removeprefix("Value error, ")
        told.append(f"{place}: {message}" if place else message)
    return "; ".join(told)
