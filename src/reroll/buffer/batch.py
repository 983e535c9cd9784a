"""What `lease` gives: a batch that is consumed when its holder says so."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from reroll.buffer.handed import Handed
from reroll.display import html_table
from reroll.group import GroupBatch, RolloutGroup

_OF_A_BATCH: Final = frozenset({"id", "groups", "samples", "counts", "ack", "nack"})


class _Holder(Protocol):
    async def ack_lease(self, lease: int, *, train_step: int | None = None) -> None: ...
    async def nack_lease(self, lease: int) -> None: ...


class Batch:
    """Groups under a lease, by task. `ack` consumes them; until then they come back if anything goes wrong."""

    def __init__(self, holder: _Holder, lease: int, samples: Mapping[str, GroupBatch]) -> None:
        self._holder = holder
        self._done = False
        self.id = lease
        self.groups: dict[str, list[RolloutGroup]] = {
            name: list(given.groups) for name, given in samples.items()
        }
        self.samples = samples
        """The same groups with the metadata of each draw, as arrays."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id}, counts={self.counts})"

    def _repr_html_(self) -> str:
        return batch_html(self)

    @property
    def counts(self) -> dict[str, int]:
        """How many groups there are, by task."""
        return {name: len(groups) for name, groups in self.groups.items()}

    async def ack(self, *, train_step: int | None = None) -> None:
        """Consume the groups.

        Args:
            train_step: the step that has trained them; None: the step of the lease. For loaders that read ahead.

        Raises:
            LeaseExpired: the lease had ended, and some groups were handed out again.

        """
        self._done = True
        await self._holder.ack_lease(self.id, train_step=train_step)

    async def nack(self) -> None:
        """Give the groups back, to their old place."""
        if not self._done:
            self._done = True
            await self._holder.nack_lease(self.id)


def group_batch(handed: Sequence[Handed], delivered: Sequence[Sequence[Any]]) -> GroupBatch:
    """Return drawn groups as one batch."""
    drawn = [given.drawn for given in handed if given.drawn is not None]
    columns = (
        (draw.uid, draw.priority, draw.probability, draw.weight, draw.times_sampled, draw.staleness)
        for draw in drawn
    )
    joined = (
        next(columns) if len(drawn) == 1 else [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    )
    uids, priorities, probabilities, weights, times_sampled, staleness = joined
    return GroupBatch(
        [group for groups in delivered for group in groups],
        uids=uids,
        priorities=priorities,
        probabilities=probabilities,
        weights=weights,
        times_sampled=times_sampled,
        staleness=staleness,
        table_sizes=np.repeat([draw.table_size for draw in drawn], [len(draw.uid) for draw in drawn]),
        task_names=[given.task.name for given in handed for _ in given.groups],
    )


def batch_html(batch: Any) -> str:
    """Return a table of the groups of a batch, one row each."""
    rows = (
        (name, sample.info.uid, len(sample.group), sample.info.staleness, sample.info.times_sampled)
        for name, samples in batch.samples.items()
        for sample in samples
    )
    columns = ("task", "uid", "rollouts", "staleness", "times_sampled")
    return html_table(repr(batch), columns, rows, sum(batch.counts.values()))


class Lease:
    """A lease to be taken: `async with buffer.lease(...) as batch`, or `batch = await buffer.lease(...)`.

    Leaving the context without `ack`, or by an exception, gives the groups back.
    """

    def __init__(self, take: Callable[[], Awaitable[Batch]]) -> None:
        self._take = take
        self._batch: Batch | None = None

    if not TYPE_CHECKING:  # a checker finds it by itself

        def __getattr__(self, name: str) -> Any:
            raise not_taken_yet(
                self, name, "`async with buffer.lease(...) as batch`, or `await buffer.lease(...)`"
            )

    def __await__(self) -> Generator[Any, None, Batch]:
        return self._take().__await__()

    async def __aenter__(self) -> Batch:
        self._batch = await self._take()
        return self._batch

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._batch is not None:
            await self._batch.nack()


def not_taken_yet(lease: object, name: str, how: str) -> AttributeError:
    """Return the error for an attribute of a lease that only its batch has."""
    hint = f"; use {how} and read it from the batch" if name in _OF_A_BATCH else ""
    return AttributeError(
        f"{type(lease).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=lease
    )
