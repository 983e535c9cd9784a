"""`python -m reroll`: the command line."""

from reroll.cli import main

main()
