"""The commands. What goes wrong by the user's hand is one line and exit code 2, never a traceback."""

from pathlib import Path
from typing import Annotated

import typer

from reroll import InvalidArgument, __version__
from reroll.cli import files, inspecting, serving, showing, watching
from reroll.cli.config_check import config_app
from reroll.cli.ending import fail

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


@app.command()
def demo(
    modes: Annotated[
        str, typer.Option(help="Which modes, separated by commas: on-policy,async,... Default: all.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each mode.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One seed.")] = False,
    crash: Annotated[
        bool, typer.Option("--crash", help="Kill trainer, producer and buffer in mid-run, and go on.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("demo-report"),
) -> None:
    """Train a small language model with GRPO through reroll, in several modes, and write a report.

    Example: reroll demo --quick --modes on-policy,replay-uniform
    """
    try:
        from reroll.demo.command import demo as run_demo  # noqa: PLC0415
    except ImportError as error:
        fail(f"the demo needs {error.name}: pip install 'reroll[demo]'")
    try:
        chosen = [mode for mode in modes.split(",") if mode]
        report = run_demo(modes=chosen, seeds=1 if quick else seeds, out=out, crash=crash)
    except InvalidArgument as error:
        fail(str(error))
    if not report.is_whole:
        raise typer.Exit(130)  # interrupted
    if not report.holds:
        raise typer.Exit(1)


for _command in (
    *(inspecting.inspect, showing.show, watching.dashboard, files.export, files.verify),
    *(serving.serve, serving.ping, serving.keygen),
):
    app.command()(_command)
app.add_typer(config_app, name="config")
