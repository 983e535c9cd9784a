"""The console script `reroll`, and `python -m reroll`: the command line, or the extra that it misses in one line."""

import sys


def main() -> None:
    """Run a command."""
    try:
        from reroll.cli import main as run  # noqa: PLC0415  (needs its extra)
    except ImportError as error:
        sys.exit(f"reroll: {error}")
    run()


if __name__ == "__main__":
    main()
