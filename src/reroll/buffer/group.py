"""One group: its rollouts, and what is known of each member without looking at it again."""

from collections.abc import Mapping
from typing import Any

from reroll.rollout import GroupSummary, expire
from reroll.rollout.foreign import read_length, read_seq_staleness
from reroll.rollout.staleness import write_staleness


class Group:
    """The payload of a row. The row decides; rollouts follow when somebody gets to see them.

    So a refresh that expires thousands of groups stays quick: they are emptied when they are shown.
    """

    __slots__ = (
        "_stale_at",
        "_told_at",
        "items",
        "measure",
        "trainable",
        "uid",
        "version_tokens",
        "versions",
    )

    def __init__(self, uid: int, items: list[Any], summary: GroupSummary, told_at: int | None = None) -> None:
        self.uid = uid
        self.items = items
        self._stale_at: int | None = (
            None  # the step at which all members expired, if they are not emptied yet
        )
        self.learn(summary, told_at)

    def learn(self, summary: GroupSummary, told_at: int | None = None) -> None:
        """Know the members as they are now; `told_at` is the step of the staleness that was written into them."""
        # Kept until somebody sees the rollouts: a trainer that is still at that step gets them without a look into
        # each, and a batch has hundreds.
        self._told_at = told_at
        self.versions = summary.member_versions
        self.trainable = summary.member_newest_trainable
        self.version_tokens = summary.version_tokens
        self.measure = summary.measure

    def prompt_tokens(self) -> int:
        """Return how many tokens are left when all members are emptied."""
        return sum(read_length("prompt_ids", getattr(item, "prompt_ids", None)) or 0 for item in self.items)

    def expire_later(self, step: int) -> None:
        """Let all members expire as of a step; they are emptied when they are shown."""
        self._stale_at = step

    def expire_now(self, staleness: Mapping[int, int]) -> None:
        """Empty these members, which expire with this staleness."""
        expired = [self.items[member] for member in staleness]
        for item in expired:
            expire(item)
        write_staleness(expired, staleness.values())

    def shown(self, step: int | None, row_staleness: int) -> list[Any]:
        """Return the rollouts as `handed_over` does, in a list that the caller may change."""
        return list(self.handed_over(step, row_staleness))

    def handed_over(self, step: int | None, row_staleness: int) -> list[Any]:
        """Return the rollouts, brought up to date with their row: expired members emptied, staleness as it is now.

        The list is the group's own: for groups that leave.
        """
        if self._stale_at is not None:
            self.expire_now(
                {m: 0 if v is None else self._stale_at - v - 1 for m, v in enumerate(self.versions)}
            )
            self._stale_at = None
            self.versions = self.trainable = (None,) * len(self.items)
            self.version_tokens = {}
        elif self.version_tokens and step is not None:
            if step != self._told_at:
                write_staleness(self.items, [None if v is None else step - v - 1 for v in self.versions])
            self._told_at = None
        elif not self.version_tokens and row_staleness == 0:  # a refresh forgets what they were told
            for item in self.items:
                if read_seq_staleness(item) > 0:
                    item.seq_staleness = 0
        return self.items
