"""The command line: `reroll`. Each command imports what it needs when it runs, so that help is quick."""

import sys


def main() -> None:
    """Run a command; the console script `reroll`."""
    try:
        import typer  # noqa: F401, PLC0415
    except ImportError:
        sys.exit("reroll: the command line needs typer and rich: pip install 'reroll[cli]'")
    from reroll.cli.commands import app  # noqa: PLC0415

    app()
