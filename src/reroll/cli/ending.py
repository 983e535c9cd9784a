"""How a command ends by the user's hand: one line, and exit code 2."""

from difflib import get_close_matches
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
        if error["type"] == "extra_forbidden":
            message = f"there is no such option{_similar(str(error['loc'][-1]))}"
        told.append(f"{place}: {message}" if place else message)
    return "; ".join(told)


def _similar(name: str) -> str:
    from reroll.config import ReplayBufferConfig  # noqa: PLC0415  (only for those who erred)
    from reroll.prepare import PrepareConfig  # noqa: PLC0415

    if name in PrepareConfig.model_fields:
        return " here; it is one of a preparation (serve --prepare)"
    if name in ReplayBufferConfig.model_fields:
        return f" here; it is one of a whole buffer, in a preparation replay_buffer.{name}"
    known = [*ReplayBufferConfig.model_fields, *PrepareConfig.model_fields]
    found = get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
