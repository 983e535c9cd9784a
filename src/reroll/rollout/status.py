"""The status of a rollout and of a group, and how both are found."""

import warnings
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
_BY_REASON = {
    **dict.fromkeys(("stop", "length", "tool_calls", "tool_use", "eos", "eos_token"), Status.COMPLETED),
    **dict.fromkeys(("end_turn", "stop_sequence", "max_tokens"), Status.COMPLETED),
    **dict.fromkeys(("abort", "aborted", "cancelled"), Status.ABORTED),
    "error": Status.FAILED,
}
_WARNED: set[str] = set()
_MOST_WARNINGS = 100


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
    """Return the status of a response that ended so, in any case; a missing or unknown reason means FAILED.

    An unknown reason warns once; `register_finish_reason` makes it known. `finish_error` gives the `error_msg`.
    """
    if not isinstance(finish_reason, str) or not finish_reason:
        return Status.FAILED
    status = _BY_REASON.get(finish_reason.lower())
    if status is not None:
        return status
    if finish_reason not in _WARNED and len(_WARNED) < _MOST_WARNINGS:
        _WARNED.add(finish_reason)
        warnings.warn(
            f"finish_reason {shown(finish_reason)} is unknown: its rollouts count as FAILED; call "
            f"reroll.register_finish_reason({shown(finish_reason)}, status) if they are completed or aborted",
            UserWarning,
            stacklevel=2,
        )
    return Status.FAILED


def register_finish_reason(finish_reason: str, status: Status | str) -> None:
    """Let responses that end with this reason, in any case, have a status in this process; see `status_from_finish_reason`.

    Args:
        finish_reason: what the engine says, such as "repetition".
        status: COMPLETED, ABORTED or FAILED.

    Raises InvalidArgument for another status, or a reason that is no text.

    """
    known = Status.of(status)
    if not isinstance(finish_reason, str) or not finish_reason:
        raise InvalidArgument(f"finish_reason must be a text that is not empty, not {shown(finish_reason)}")
    if known not in (Status.COMPLETED, Status.ABORTED, Status.FAILED):
        raise InvalidArgument(f"a response ends completed, aborted or failed, not {known.value}")
    _BY_REASON[finish_reason.lower()] = known


def finish_error(finish_reason: object) -> str:
    """Return the `error_msg` of a response that failed because it ended so."""
    return (
        "finish_reason is missing" if finish_reason in (None, "") else f"finish_reason {shown(finish_reason)}"
    )
