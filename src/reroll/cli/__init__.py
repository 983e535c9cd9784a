"""The command line: `reroll`, or `python -m reroll`.

commands   the list of commands
options    arguments that commands share, and how they report errors
inspect    `reroll inspect`
show       `reroll show`
files      `reroll export` and `reroll verify`
server     `reroll serve`, `ping` and `keygen`
dashboard  `reroll dashboard`
config     `reroll config check`
simulate   `reroll simulate` and `reroll simulate calibrate`

A command imports what it needs when it runs, so that help is fast.
"""

import sys


def main() -> None:
    """Run a command; the console script `reroll`."""
    try:
        import typer  # noqa: F401, PLC0415
    except ImportError:
        sys.exit("reroll: the command line needs typer and rich: pip install 'reroll[cli]'")
    from reroll.cli.commands import app  # noqa: PLC0415

    app(prog_name="reroll")
