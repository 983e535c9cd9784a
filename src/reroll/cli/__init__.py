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

from reroll.errors import missing_extra

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:
    raise missing_extra("the command line", error.name, "cli") from error


def main() -> None:
    """Run a command."""
    from reroll.cli.commands import app  # noqa: PLC0415

    app(prog_name="reroll")
