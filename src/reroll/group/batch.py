"""`GroupBatch`: sampled or leased groups with what is known of each draw, as arrays."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from reroll.display import html_table
from reroll.errors import InvalidArgument
from reroll.sample import Sample, SampleInfo

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class _Columns(NamedTuple):
    uids: Integers
    priorities: Floats
    probabilities: Floats
    weights: Floats
    times_sampled: Integers
    staleness: Integers
    table_sizes: Integers


_TYPES = (np.int64, np.float64, np.float64, np.float64, np.int64, np.int64, np.int64)


class GroupBatch(Sequence[Sample]):
    """A sequence of `Sample(group, info)`, made on demand from arrays with one entry per group.

    The arrays are read-only, and `weights * losses` needs no loop. A batch equals a list of equal samples.

    Example:
        >>> batch = await buffer.sample(64, "math")
        >>> batch.weights.mean(), batch.staleness.max()
        >>> for group, info in batch:
        ...     train(group, info.weight)

    """

    __slots__ = ("_columns", "groups", "task_names")
    __hash__ = None  # type: ignore[assignment]  # equal to lists

    groups: Sequence[Any]
    """The groups, in the order of the draws."""
    task_names: tuple[str, ...]
    """The task of each group."""

    def __init__(
        self,
        groups: Sequence[Any],
        *,
        uids: npt.ArrayLike,
        priorities: npt.ArrayLike,
        probabilities: npt.ArrayLike,
        weights: npt.ArrayLike,
        times_sampled: npt.ArrayLike,
        staleness: npt.ArrayLike,
        table_sizes: npt.ArrayLike,
        task_names: str | Sequence[str] = "",
    ) -> None:
        """Make a batch of arrays with one entry per group; a single number or name counts for all.

        Raises:
            InvalidArgument: an array has another number of entries.

        """
        count = len(groups)
        given = (uids, priorities, probabilities, weights, times_sampled, staleness, table_sizes)
        found = []
        for name, values, dtype in zip(_Columns._fields, given, _TYPES, strict=True):
            array = np.asarray(values, dtype)
            if array.shape not in ((), (count,)):
                raise InvalidArgument(
                    f"{name} has shape {array.shape} for {count} groups; give one entry per group"
                )
            array = np.broadcast_to(array, count) if not array.ndim else array.view()
            array.flags.writeable = False
            found.append(array)
        names = (task_names,) * count if isinstance(task_names, str) else tuple(task_names)
        if len(names) != count:
            raise InvalidArgument(
                f"task_names has {len(names)} entries for {count} groups; give one name per group"
            )
        self.groups, self.task_names, self._columns = groups, names, _Columns._make(found)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> "GroupBatch":
        """Return the batch of these samples. O(samples)."""
        samples = list(samples)
        infos = [sample.info for sample in samples]
        return cls(
            [sample.group for sample in samples],
            uids=[info.uid for info in infos],
            priorities=[info.priority for info in infos],
            probabilities=[info.probability for info in infos],
            weights=[info.weight for info in infos],
            times_sampled=[info.times_sampled for info in infos],
            staleness=[info.staleness for info in infos],
            table_sizes=[info.table_size for info in infos],
            task_names=[info.task_name for info in infos],
        )

    @property
    def uids(self) -> Integers:
        return self._columns.uids

    @property
    def priorities(self) -> Floats:
        return self._columns.priorities

    @property
    def probabilities(self) -> Floats:
        """The share of all weights that each group had at the start of the call."""
        return self._columns.probabilities

    @property
    def weights(self) -> Floats:
        """Importance weights, divided by the largest of the batch."""
        return self._columns.weights

    @property
    def times_sampled(self) -> Integers:
        """How often each group was sampled, this draw included."""
        return self._columns.times_sampled

    @property
    def staleness(self) -> Integers:
        return self._columns.staleness

    @property
    def table_sizes(self) -> Integers:
        """How many groups each draw chose from."""
        return self._columns.table_sizes

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        numbers = [column[index].item() for column in self._columns]
        return Sample(self.groups[index], SampleInfo._make((*numbers, self.task_names[index])))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple | GroupBatch):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(self.task_names)) or "no task"
        if not len(self):
            return "<GroupBatch empty>"
        low, high = int(self.staleness.min()), int(self.staleness.max())
        return f"<GroupBatch {len(self)} groups of {tasks}, staleness {low} to {high}>"

    def _repr_html_(self) -> str:
        names = ("uid", "priority", "probability", "weight", "times_sampled", "staleness", "table_size")
        rows = ((name, *values) for name, *values in zip(self.task_names, *self._columns, strict=True))
        return html_table(repr(self), ("task", *names), rows, len(self))
