"""What the format allows, and how a value is refused before its place is known."""

from typing import Final

MAX_DEPTH: Final = 100
"""Containers inside containers, in both directions: enough for any message, and far from the end of the stack."""

ATOMS: Final = frozenset({type(None), bool, int, float, str})
"""Types that MessagePack holds without loss, but for large integers and broken text."""


class Refusal(Exception):  # noqa: N818  (never leaves the codec)
    """Why a value cannot be written; `encode` finds its path and raises NotStorable.

    The path is looked for only then, so that writing pays nothing for it.
    """
