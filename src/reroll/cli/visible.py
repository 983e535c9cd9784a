"""Text of others for a terminal: what would steer it is shown instead."""

from unicodedata import category


def visible(text: str) -> str:
    """Return text in which control characters, but for line ends and tabs, are written out; nothing in it is markup."""
    return "".join(
        char if char in "\n\t" or category(char) not in ("Cc", "Cf", "Cs") else ascii(char)[1:-1]
        for char in text
    )
