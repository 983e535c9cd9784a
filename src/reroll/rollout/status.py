"""The status of a rollout and of a group, and how both are found."""

from collections.abc import Iterable
from enum import Enum, StrEnum

from reroll.errors import InvalidArgument, shown


class Status(StrEnum):
    """Where a rollout, or a group of them, stands; the values are the lower-case names."""

    INIT = "init"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"
    FILTERED = "filtered"
    ARCHIVED = "archived"

    @classmethod
    def of(cls, value: object) -> "Status":
        """Return the status that an enum member or its string names; anything else is an InvalidArgument."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value in _BY_TEXT:
            return _BY_TEXT[value]
        names = ", ".join(status.value for status in cls)
        raise InvalidArgument(f"{shown(value)} is not a status; use reroll.Status or one of: {names}")


_BY_TEXT = {status.value: status for status in Status}

# What a group with unfinished members counts as: the first of these that any member has.
_UNFINISHED_FIRST = (Status.FAILED, Status.ABORTED, Status.EXPIRED, Status.FILTERED)

_COMPLETED_ONLY = {Status.COMPLETED}
_COMPLETE_REASONS = frozenset({"stop", "length", "tool_calls"})


def read_status(value: object) -> Status:
    """Return the status that a rollout's attribute holds; raises InvalidArgument.

    Wider than `Status.of`: trainers bring their own enum, which counts by its value.
    """
    if type(value) is Status:
        return value
    if type(value) is str and value in _BY_TEXT:
        return _BY_TEXT[value]
    return Status.of(value.value if isinstance(value, Enum) else value)


def combine_statuses(statuses: Iterable[Status]) -> Status:
    """Return a group's status: COMPLETED only if every member is, else the worst that any member has."""
    present = set(statuses)
    if present == _COMPLETED_ONLY:
        return Status.COMPLETED
    return next((status for status in _UNFINISHED_FIRST if status in present), Status.INIT)


def status_from_finish_reason(finish_reason: object) -> Status:
    """Return the status of a response that ended so; a reason that is missing or unknown means FAILED."""
    if finish_reason == "abort":
        return Status.ABORTED
    if isinstance(finish_reason, str) and finish_reason in _COMPLETE_REASONS:
        return Status.COMPLETED
    return Status.FAILED
