"""A status of somebody else's enum is ours of the same value, so that xtuner's own can go on naming them."""

from collections.abc import Iterable
from enum import Enum
from typing import Any

from reroll.rollout import Status, read_status


def ours(status: Any) -> Any:
    """Return our status for that of another enum, all else as it is. Raises InvalidArgument for an unknown one."""
    if type(status) is Status or not isinstance(status, Enum):  # nearly always
        return status
    return read_status(status)


def all_ours(statuses: Any) -> Any:
    """Return the same for several; what is no collection of them as it is."""
    if isinstance(statuses, str) or not isinstance(statuses, Iterable):
        return statuses
    return [ours(status) for status in statuses]
