"""The commands. What goes wrong by the user's hand is one line and exit code 2, never a traceback."""

from typing import Annotated

import typer

from reroll import __version__
from reroll.cli import files, inspecting, serving, showing, watching
from reroll.cli.config_check import config_app

app = typer.Typer(name="reroll", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def reroll(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A replay buffer for reinforcement learning of language models."""


for _command in (
    *(inspecting.inspect, showing.show, watching.dashboard, files.export, files.verify),
    *(serving.serve, serving.ping, serving.keygen),
):
    app.command()(_command)
app.add_typer(config_app, name="config")
