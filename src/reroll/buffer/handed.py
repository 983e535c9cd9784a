"""Groups on their way out: decided on rows, not yet shown to anybody."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reroll.buffer.group import Group, Payload
from reroll.engine.engine import Drawn
from reroll.engine.rows import IntArray
from reroll.engine.task import COMPLETED, Task
from reroll.engine.uses import Use
from reroll.group import RolloutGroup
from reroll.rollout.checkout import mark
from reroll.rollout.rules import write_staleness


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
    """Whether the delivery is exclusive: no other caller gets these groups."""
    uses: Sequence[int] = ()
    """Which use of each group this is, if it is one."""
    used: Use | None = None
    """Who was handed out, and how often, if that may still be taken back."""
    consumed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The rows that were used up by this, and are kept for now."""
    number: int | None = None
    """That of the use, if it was noted."""
    again: Mapping[int, set[int]] = field(default_factory=dict)
    """Expired leases whose groups this delivery reassigned, with these groups."""
    drawn: Drawn | None = None
    """The metadata of the rows at the draw, for samples and leases."""
    checkouts: Sequence[str] = ()
    """The marks of the groups, if they are handed out to be rolled again."""
    columns: Sequence[str] | None = None
    """The further columns that the receiver asks for; None: all."""
    parts: Mapping[int, RolloutGroup] = field(default_factory=dict)
    """By uid: groups of which only these columns were read from disk."""
    ahead: Sequence[int] = ()
    """Places of groups that were here at the last rewind: their versions may be of weights that were lost."""

    def leave_out(self, uids: Collection[int]) -> None:
        """Hand out all but these."""
        kept = [place for place, group in enumerate(self.groups) if group.uid not in uids]
        self.slots = self.slots[kept]
        self.groups = [self.groups[place] for place in kept]
        self.told = [self.told[place] for place in kept]
        self.uses = [self.uses[place] for place in kept] if len(self.uses) else ()
        if self.drawn is not None:
            self.drawn = self.drawn.select(kept)
        self.checkouts = [self.checkouts[place] for place in kept] if self.checkouts else ()
        self.ahead = [new for new, place in enumerate(kept) if place in self.ahead]

    def show(self) -> list[Payload]:
        """Return the groups as their rows are now; their payloads are in memory."""
        shown: list[Payload] = []
        for place, (group, stated) in enumerate(zip(self.groups, self.told, strict=True)):
            # A group that expired while this was being written is still delivered as it was chosen.
            is_final = group.stale_at is not None and self.status == COMPLETED
            part = self.parts.get(group.uid)
            payload = group.delivered(self.step, stated, is_final=is_final, leaves=self.leaves, part=part)
            if self.columns is not None and isinstance(payload, RolloutGroup):
                payload = payload.select(self.columns)
            if place in self.ahead and self.step is not None:
                payload = _with_distance(payload, group.versions, self.step)
            if self.checkouts and isinstance(payload, RolloutGroup):
                payload.checkout = self.checkouts[place]
            elif self.checkouts:
                mark(payload, self.checkouts[place])
            shown.append(payload)
        if self.status == COMPLETED and not self.leaves:
            for group in self.groups:
                group.freeze()
        return shown


def _with_distance(payload: Payload, versions: Sequence[int | None], step: int) -> Payload:
    """Return a group that was here at the last rewind with distances as staleness, if it is ahead of the step."""
    if not any(version is not None and version >= step for version in versions):
        return payload
    distances = [None if version is None else abs(step - version - 1) for version in versions]
    if isinstance(payload, RolloutGroup):
        return payload.with_staleness(distances)
    write_staleness(payload, distances)
    return payload
