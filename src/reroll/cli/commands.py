"""The list of commands. An error of the user is one line and exit code 2, never a traceback."""

from typing import Annotated

import typer

from reroll import __version__
from reroll.cli.config import config_app
from reroll.cli.dashboard import dashboard
from reroll.cli.files import export, verify
from reroll.cli.inspect import inspect
from reroll.cli.server import keygen, ping, serve
from reroll.cli.show import show
from reroll.cli.simulate import simulate_app

app = typer.Typer(name="reroll", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def reroll(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A replay buffer for reinforcement learning of language models."""


for _command in (inspect, show, dashboard, export, verify, serve, ping, keygen):
    app.command()(_command)
app.add_typer(config_app, name="config")
app.add_typer(simulate_app, name="simulate")
