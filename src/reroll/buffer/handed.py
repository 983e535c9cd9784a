"""Groups on their way out: decided on rows, not yet shown to anybody."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reroll.buffer.group import Group
from reroll.buffer.packed import are_bytes_wanted, show
from reroll.engine.rows import IntArray
from reroll.engine.task import COMPLETED, Task
from reroll.engine.uses import Use
from reroll.rollout.checkout import mark
from reroll.rollout.rules import write_staleness
from reroll.sample import SampleInfo


@dataclass(slots=True)
class Handed:
    """What a hand-out gave."""

    task: Task
    status: int
    slots: IntArray
    groups: list[Group]
    told: list[int]
    """The staleness of their rows, as put told it."""
    step: int | None
    """The training step of the task."""
    leaves: bool = False
    """Whether nobody else has these groups from now on."""
    uses: Sequence[int] = ()
    """Which use of each group this is, if it is one."""
    used: Use | None = None
    """Who was handed out, and how often, if that may still be taken back."""
    consumed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The rows that were used up by this, and are kept for now."""
    number: int | None = None
    """That of the use, if it was noted."""
    again: Mapping[int, set[int]] = field(default_factory=dict)
    """The leases that had ended, and which of their groups are somebody else's by this."""
    infos: Sequence[SampleInfo] = ()
    checkouts: Sequence[str] = ()
    """The marks of the groups, if they are handed out to be rolled again."""
    ahead: Sequence[int] = ()
    """Places of groups that were here at the last rewind: their versions may be of weights that were lost."""

    def leave_out(self, uids: Collection[int]) -> None:
        """Hand out all but these."""
        kept = [place for place, group in enumerate(self.groups) if group.uid not in uids]
        self.slots = self.slots[kept]
        self.groups = [self.groups[place] for place in kept]
        self.told = [self.told[place] for place in kept]
        self.uses = [self.uses[place] for place in kept] if len(self.uses) else ()
        self.infos = [self.infos[place] for place in kept] if len(self.infos) else ()
        self.checkouts = [self.checkouts[place] for place in kept] if self.checkouts else ()
        self.ahead = [new for new, place in enumerate(kept) if place in self.ahead]

    def show(self) -> list[list[Any]]:
        """Return the rollouts, brought up to date with their rows; they are all here."""
        # A copy of each list would touch hundreds of rollouts that nobody needs to look at here.
        hand = Group.handed_over if self.leaves else Group.shown
        step = self.step
        wants_bytes = are_bytes_wanted()
        shown: list[Any] = []
        for place, (group, told) in enumerate(zip(self.groups, self.told, strict=True)):
            # What expired since, while this was being written, is still what the trainer was to get.
            is_final = group.stale_at is not None and self.status == COMPLETED
            packed = None
            if wants_bytes and place not in self.ahead:
                checkout = self.checkouts[place] if self.checkouts else None
                packed = show(group, step, told, is_final=is_final, checkout=checkout)
            if packed is not None:
                shown.append(packed)
                continue
            shown.append(list(group.items) if is_final else hand(group, step, told))
            if self.checkouts:
                mark(shown[-1], self.checkouts[place])
        for place in self.ahead if step is not None else ():
            group = self.groups[place]
            if any(
                version is not None and step is not None and version >= step for version in group.versions
            ):
                distances = [None if v is None else abs((step or 0) - v - 1) for v in group.versions]
                write_staleness(group.items, distances)
        if self.status == COMPLETED and not self.leaves:
            for group in self.groups:
                group.freeze()
        return shown
