"""The fields that a query can name, and what each may be compared with."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

TAG_PREFIX = "tags."


class Kind(Enum):
    """What a field holds; it decides which operands are accepted and which column is read."""

    NUMBER = "a number"
    TEXT = "a string"
    STATUS = "a status"
    SCALAR = "a number, a string, a boolean or None"  # the user's own values: each row may hold another sort


FIELDS: Mapping[str, Kind] = MappingProxyType(
    {
        "uid": Kind.NUMBER,
        "timestamp_id": Kind.NUMBER,
        "task_name": Kind.TEXT,
        "status": Kind.STATUS,
        "staleness": Kind.NUMBER,
        "version": Kind.NUMBER,
        "priority": Kind.NUMBER,
        "times_sampled": Kind.NUMBER,
        "attempts": Kind.NUMBER,
        "deliveries": Kind.NUMBER,
        "num_rollouts": Kind.NUMBER,
        "num_tokens": Kind.NUMBER,
        "num_bytes": Kind.NUMBER,
        "reward_mean": Kind.NUMBER,
        "reward_std": Kind.NUMBER,
        "group_id": Kind.SCALAR,
    }
)
"""Every field but the tags, which are named `tags.<name>`."""


def kind_of(field: str) -> Kind | None:
    """Return what the field holds, or None where there is no such field."""
    return Kind.SCALAR if tag_of(field) else FIELDS.get(field)


def tag_of(field: str) -> str | None:
    """Return the tag's name for `tags.<name>`, None for other fields."""
    return field.removeprefix(TAG_PREFIX) if field.startswith(TAG_PREFIX) else None
