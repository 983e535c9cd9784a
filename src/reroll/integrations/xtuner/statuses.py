"""A status of somebody else's enum is ours of the same value, so that xtuner's own can go on naming them."""

from enum import Enum
from typing import Any

from reroll.rollout import Status, read_status


def ours(value: Any) -> Any:
    """Return what stands for a foreign enum, or a list of them; all else as it is. Raises InvalidArgument."""
    if isinstance(value, Enum):
        return value if isinstance(value, Status) else read_status(value)
    return [ours(part) for part in value] if isinstance(value, list | tuple) else value
