"""How a command ends: by the user's hand, with one line and exit code 2; or when a signal says so."""

import asyncio
import signal
from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Say what is wrong, and end."""
    typer.echo(f"reroll: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)


def on_signal() -> asyncio.Event:
    """Return what is set by SIGTERM and SIGINT from now on; they do nothing else any more."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
