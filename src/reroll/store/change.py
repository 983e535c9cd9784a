"""What one commit writes, and how several changes become one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
"""Values in the order of `COLUMNS`."""
Blob: TypeAlias = bytes | bytearray | memoryview
Fact: TypeAlias = tuple[str, int | str | bytes, bytes | None]
"""Kind, key, value; without a value the fact is deleted."""

MAX_PAYLOAD_BYTES = 999_999_000
"""SQLite holds records of at most 10^9 bytes."""


@dataclass(slots=True)
class Change:
    """What one commit writes, as a whole or not at all.

    A uid in `gone` is gone afterwards, also if `rows` or `payloads` of the same change name it. What is handed over must
    not be altered until the change is written.
    """

    rows: list[Row] = field(default_factory=list)
    """New or changed rows."""
    gone: list[int] = field(default_factory=list)
    """Uids whose row and payload go."""
    payloads: list[tuple[int, Blob]] = field(default_factory=list)
    """Uid and blob, new or replaced. A blob carries a checksum of its own among its first 64 bytes."""
    facts: list[Fact] = field(default_factory=list)
    state: bytes | None = None
    """Replaces the state; None leaves it as it was."""


@dataclass(slots=True)
class Net:
    """What changes come to, one after another: None for what is gone."""

    rows: dict[int, Row | None] = field(default_factory=dict)
    payloads: dict[int, Blob | None] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    state: bytes | None = None


def net(changes: Iterable[Change]) -> Net:
    """Return what the changes come to. O(what they hold)."""
    result = Net()
    for change in changes:
        for row in change.rows:
            result.rows[row[0]] = row
        result.payloads.update(change.payloads)
        for uid in change.gone:
            result.rows[uid] = None
            result.payloads[uid] = None
        result.facts += change.facts
        if change.state is not None:
            result.state = change.state
    return result
