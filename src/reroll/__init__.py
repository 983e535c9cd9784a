"""reroll."""
