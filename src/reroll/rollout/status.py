"""Status of rollouts and groups: from an attribute, from the members, from a finish reason."""

import warnings
from collections.abc import Iterable
from enum import Enum, StrEnum

from reroll.errors import InvalidArgument, shown


class Status(StrEnum):
    """Status of a rollout or group; the values are the lower-case names."""

    INIT = "init"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"
    FILTERED = "filtered"
    ARCHIVED = "archived"

    @classmethod
    def of(cls, value: object) -> "Status":
        """Return the status of a `Status`, its string, or a member of another enum with that value.

        Args:
            value: a status in any of these forms.

        Raises:
            InvalidArgument: the value names no status.

        """
        if isinstance(value, cls):
            return value
        text = value.value if isinstance(value, Enum) else value
        if isinstance(text, str) and text in _BY_TEXT:
            return _BY_TEXT[text]
        names = ", ".join(status.value for status in cls)
        raise InvalidArgument(f"{shown(value)} is not a status; use reroll.Status or one of: {names}")


_BY_TEXT = {status.value: status for status in Status}

# The status of a group with unfinished members is the first of these that any member has.
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
    """Return the status of a rollout's attribute, which may be a member of another enum. Raises InvalidArgument."""
    if type(value) is Status:
        return value
    if type(value) is str and value in _BY_TEXT:
        return _BY_TEXT[value]
    return Status.of(value)


def combine_statuses(statuses: Iterable[Status]) -> Status:
    """Return a group's status: COMPLETED if every member is, else the first that any has of FAILED, ABORTED, EXPIRED, FILTERED."""
    present = set(statuses)
    if present == _COMPLETED_ONLY:
        return Status.COMPLETED
    return next((status for status in _UNFINISHED_FIRST if status in present), Status.INIT)


def status_from_finish_reason(finish_reason: object) -> Status:
    """Return the status of a response with this finish reason; FAILED if it is missing or unknown.

    An unknown reason warns once. `register_finish_reason` adds it; `finish_error` returns the `error_msg`.

    Args:
        finish_reason: of an engine, in upper or lower case.

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
    """Define the status of responses with a finish reason, for this process; see `status_from_finish_reason`.

    Args:
        finish_reason: A reason of the engine, such as "repetition"; upper and lower case are the same.
        status: COMPLETED, ABORTED or FAILED.

    Raises:
        InvalidArgument: The status is another one, or the reason is not a non-empty string.

    """
    known = Status.of(status)
    if not isinstance(finish_reason, str) or not finish_reason:
        raise InvalidArgument(f"finish_reason must be a non-empty string, not {shown(finish_reason)}")
    if known not in (Status.COMPLETED, Status.ABORTED, Status.FAILED):
        raise InvalidArgument(f"status must be completed, aborted or failed, not {known.value}")
    _BY_REASON[finish_reason.lower()] = known


def finish_error(finish_reason: object) -> str:
    """Return the `error_msg` of a response that failed with this finish reason."""
    return (
        "finish_reason is missing" if finish_reason in (None, "") else f"finish_reason {shown(finish_reason)}"
    )
