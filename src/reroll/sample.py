"""What sampling returns: a payload, and what is known of the draw that chose it."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from reroll.engine.engine import Drawn


class SampleInfo(NamedTuple):
    """What is known of one sampled group, as of the draw that gave it."""

    uid: Any
    """The group's uid; in a Table the key it was inserted under."""
    priority: float
    probability: float
    """Its share of all weights at the start of the call; 1 where the sampler leaves nothing to chance."""
    weight: float
    """Importance weight, (N x probability)^-beta, divided by the largest of the batch."""
    times_sampled: int
    """How often it was sampled, this draw included."""
    staleness: int
    table_size: int
    """How many groups could be drawn from, before this draw let any of them go."""
    task_name: str = ""
    """The task of the group; empty in a Table."""

    @property
    def key(self) -> Any:
        """The uid, under the name that a Table's user knows."""
        return self.uid


class Sample(NamedTuple):
    """A sampled group and its info."""

    group: Any
    info: SampleInfo

    @property
    def data(self) -> Any:
        """The group, under the name that a Table's user knows."""
        return self.group


def sample_infos(uids: Sequence[Any], drawn: Drawn, task_name: str = "") -> Iterator[SampleInfo]:
    """Return the info of each draw; `uids` is what its user knows the groups by."""
    columns = (drawn.priority, drawn.probability, drawn.weight, drawn.times_sampled, drawn.staleness)
    rest = (repeat(drawn.table_size), repeat(task_name))
    return map(SampleInfo, uids, *(column.tolist() for column in columns), *rest)
