"""Where every group and every token is, or how it left: `put` equals the sum of all other buckets, always."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PUT: Final = "put"
BUCKETS: Final = (
    "resident",  # in a pool
    "out",  # taken by a producer that rolls it again
    "leased",  # handed to a trainer that has not acknowledged it
    "uncommitted",  # consumed after the trainer's last checkpoint
    "consumed",  # by its last use
    "expired",  # dropped as too stale, or wiped to be rolled again
    "evicted",  # by the remover
    "filtered",
    "failed",
    "deleted",
    "lost",  # with a shard that could not be recovered
)


class Amount(NamedTuple):
    """Groups and tokens, and how much of them was trained at least once."""

    groups: int = 0
    tokens: int = 0
    trained_groups: int = 0
    trained_tokens: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(self[0] + other[0], self[1] + other[1], self[2] + other[2], self[3] + other[3])

    def minus(self, other: "Amount") -> "Amount":
        return Amount(self[0] - other[0], self[1] - other[1], self[2] - other[2], self[3] - other[3])


class Dropped(NamedTuple):
    """A group that left the buffer before it was trained."""

    uid: int
    task_name: str
    group_id: Any
    reason: str
    """The ledger bucket that the group moved to: expired, evicted, deleted, failed, filtered or lost."""


class Ledger:
    """One task's books. Every verb keeps them closed."""

    def __init__(self) -> None:
        self._amounts = dict.fromkeys((PUT, *BUCKETS), Amount())

    def put(self, amount: Amount, bucket: str = "resident") -> None:
        """Enter something new, which is in a bucket now."""
        for name in (PUT, bucket):
            self._amounts[name] = self._amounts[name].plus(amount)

    def move(self, source: str, target: str, amount: Amount) -> None:
        """Move between buckets."""
        self._amounts[source] = self._amounts[source].minus(amount)
        self._amounts[target] = self._amounts[target].plus(amount)

    def amounts(self) -> dict[str, Amount]:
        """Return all buckets, `put` first."""
        return dict(self._amounts)

    def state(self) -> dict[str, list[int]]:
        return {name: list(amount) for name, amount in self._amounts.items()}

    def restore(self, state: Mapping[str, list[int]]) -> None:
        self._amounts = {name: Amount(*state[name]) for name in (PUT, *BUCKETS)}


def closes(amounts: Mapping[str, Amount]) -> bool:
    """Return whether `put` equals the sum of all buckets, and none is negative."""
    total = Amount()
    for name in BUCKETS:
        total = total.plus(amounts[name])
    return total == amounts[PUT] and min(map(min, amounts.values())) >= 0
