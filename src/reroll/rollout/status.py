"""The status of a rollout and of a group."""

from enum import StrEnum

from reroll.errors import InvalidArgument


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
        if isinstance(value, str):
            try:
                return cls(value)
            except ValueError:
                pass
        names = ", ".join(status.value for status in cls)
        raise InvalidArgument(f"{value!r} is not a status; use reroll.Status or one of: {names}")
