"""Where every group and every token is, or how it left: `put` equals the sum of all other buckets, always.

`put` and the exits are stored. The places are counted from the rows: `moves` updates the counts with each change of a
row's status or place, and `recount` derives them from the columns.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add, sub
from typing import Any, Final, NamedTuple

from reroll.display import html_table
from reroll.rollout.status import Status

PUT: Final = "put"
_PLACES: Final = ("resident", "out", "leased", "uncommitted")
EXITS: Final = (
    "consumed",  # by its last use
    "expired",  # dropped as too stale, or emptied to be rolled again
    "evicted",  # by the remover
    "filtered",
    "failed",
    "deleted",
    "lost",  # with a shard that could not be recovered, or damaged
)
BUCKETS: Final = (*_PLACES, *EXITS)


class Amount(NamedTuple):
    """Groups and tokens, and how many of them were trained at least once."""

    groups: int = 0
    tokens: int = 0
    trained_groups: int = 0
    trained_tokens: int = 0

    def plus(self, other: "Amount") -> "Amount":
        """Return the sum, field by field.

        Args:
            other: the amount to add.

        """
        return Amount(*map(add, self, other))

    def minus(self, other: "Amount") -> "Amount":
        """Return the difference, field by field.

        Args:
            other: the amount to subtract.

        """
        return Amount(*map(sub, self, other))


class LedgerReport(dict[str, dict[str, Amount]]):
    """What `ledger()` returns: the buckets of each task, shown in one line, or as a table in a notebook."""

    def __repr__(self) -> str:
        tasks = [
            f"{name}: {buckets[PUT].groups:,} put = "
            + (" + ".join(f"{buckets[b].groups:,} {b}" for b in BUCKETS if buckets[b].groups) or "0")
            for name, buckets in self.items()
        ]
        return f"<Ledger {'; '.join(tasks) or 'without tasks'}>"

    def to_html(self, title: str) -> str:
        """Return a table of the groups in each bucket, by task."""
        rows = ([name, *(buckets[b].groups for b in (PUT, *BUCKETS))] for name, buckets in self.items())
        return html_table(title, ("task", PUT, *BUCKETS), rows, len(self))

    def _repr_html_(self) -> str:
        return self.to_html("Ledger, in groups")


class Measure(NamedTuple):
    """What the ledger counts of some rows."""

    groups: int = 0
    tokens: int = 0
    trained_groups: int = 0
    trained_tokens: int = 0
    num_bytes: int = 0


class Dropped(NamedTuple):
    """A group that left the buffer before it was trained."""

    uid: int
    task_name: str
    group_id: Any
    reason: str
    """The ledger bucket of the group: expired, evicted, deleted, failed, filtered or lost."""


class Spot(NamedTuple):
    """Status and place of a row: index into the statuses, and into the places."""

    status: int
    place: int


class Ledger:
    """The counts of one task: rows by status and place, and exits. Only `moves` and `state` change it."""

    def __init__(self) -> None:
        # Each count is a list with the fields of Measure.
        self._put = _nothing()
        self._exits = {name: _nothing() for name in EXITS}
        self._rows = [[_nothing() for _ in Status] for _ in _PLACES]  # by place, by status

    def groups(self, status: int, place: int) -> int:
        """Return how many groups have this status and place."""
        return self._rows[place][status][0]

    def num_bytes(self, status: int, place: int) -> int:
        """Return the bytes of the groups with this status and place."""
        return self._rows[place][status][4]

    def enter(self, spot: Spot, rows: Measure) -> None:
        """Count new rows."""
        _add(self._put, rows)
        _add(self._rows[spot.place][spot.status], rows)

    def move(self, source: Spot, target: Spot, rows: Measure) -> None:
        """Count rows at another status and place."""
        _add(self._rows[source.place][source.status], rows, -1)
        _add(self._rows[target.place][target.status], rows)

    def leave(self, spot: Spot, bucket: str, rows: Measure) -> None:
        """Count rows as gone."""
        _add(self._rows[spot.place][spot.status], rows, -1)
        _add(self._exits[bucket], rows)

    def change(self, spot: Spot, before: Measure, after: Measure, bucket: str) -> None:
        """Count rows whose columns changed: added tokens were put, removed tokens left to `bucket`."""
        here = self._rows[spot.place][spot.status]
        _add(here, before, -1)
        _add(here, after)
        grows = after.tokens >= before.tokens
        _add(self._put if grows else self._exits[bucket], after, 1 if grows else -1)
        _add(self._put if grows else self._exits[bucket], before, -1 if grows else 1)

    def train(self, spot: Spot, groups: int, tokens: int) -> None:
        """Count rows as trained; negative numbers undo it."""
        trained = Measure(trained_groups=groups, trained_tokens=tokens)
        _add(self._put, trained)
        _add(self._rows[spot.place][spot.status], trained)

    def amounts(self) -> dict[str, Amount]:
        """Return all buckets, `put` first. O(1)."""
        sums = [[sum(counts) for counts in zip(*rows, strict=True)] for rows in self._rows]
        places = {name: Amount(*counts[:4]) for name, counts in zip(_PLACES, sums, strict=True)}
        exits = {name: Amount(*counts[:4]) for name, counts in self._exits.items()}
        return {PUT: Amount(*self._put[:4]), **places, **exits}

    def count_missing(self) -> None:
        """Count groups and tokens that were put, and are neither here nor left, as lost."""
        amounts = self.amounts()
        _add(self._exits["lost"], Measure(*amounts.pop(PUT)))
        for amount in amounts.values():
            _add(self._exits["lost"], Measure(*amount), -1)

    def state(self) -> dict[str, list[int]]:
        return {PUT: self._put[:4], **{name: counts[:4] for name, counts in self._exits.items()}}

    def restore(self, state: Mapping[str, Iterable[int]]) -> None:
        """Restore `put` and the exits."""
        self._put = [*state[PUT], 0]
        self._exits = {name: [*state[name], 0] for name in EXITS}

    def recount(self, rows: Mapping[Spot, Measure]) -> None:
        """Replace the counts of the places."""
        self._rows = [
            [list(rows.get(Spot(status, place), Measure())) for status in range(len(Status))]
            for place in range(len(_PLACES))
        ]


def _nothing() -> list[int]:
    return [0, 0, 0, 0, 0]


def _add(counts: list[int], rows: Measure, sign: int = 1) -> None:
    groups, tokens, trained_groups, trained_tokens, num_bytes = rows
    counts[0] += sign * groups
    counts[1] += sign * tokens
    counts[2] += sign * trained_groups
    counts[3] += sign * trained_tokens
    counts[4] += sign * num_bytes


def closes(amounts: Mapping[str, Amount]) -> bool:
    """Return whether `put` equals the sum of all buckets, and none is negative."""
    total = reduce(Amount.plus, (amounts[name] for name in BUCKETS))
    return total == amounts[PUT] and min(map(min, amounts.values())) >= 0
