"""The verbs that only look."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from reroll.buffer import arrow
from reroll.buffer.arguments import (
    Where,
    checked_choice,
    checked_count,
    checked_flag,
    checked_names,
    checked_reader,
    checked_task,
    checked_uids,
)
from reroll.buffer.handed import Handed
from reroll.buffer.slicing import GROUPS_AT_ONCE, ROWS_AT_ONCE, Slicing, slices_of
from reroll.engine.ledger import Amount
from reroll.engine.query import Row, parse_order, still_at
from reroll.engine.rows import PLACES
from reroll.engine.task import STATUS_CODE
from reroll.errors import CorruptData, InvalidArgument, UnknownUid
from reroll.query import parse_query
from reroll.rollout import Status
from reroll.telemetry.metrics import Readers, metrics_dict
from reroll.telemetry.stats import Stats


class Looking(Slicing):
    """For everybody."""

    async def count(self, task_name: str, group_status: Status | str) -> int:
        """Return how many groups of one task and status are resident. O(1)."""
        self._check_open()
        task = self._engine.named(checked_task(task_name))
        return len(task.pools[STATUS_CODE[Status.of(group_status)]])

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        """Return the counts of all these tasks and statuses, zeros included."""
        self._check_open()
        wanted = [Status.of(status) for status in checked_names("statuses", statuses)]
        names = [checked_task(name) for name in checked_names("task_names", task_names)]
        return {name: {status: await self.count(name, status) for status in wanted} for name in names}

    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Row]:
        """Return a row of metadata for each resident group that satisfies a query.

        In order of uid, or of a field: `order_by="reward_std"`, or `"-reward_std"` for the largest first; groups
        without a value come last. `offset` leaves out the first ones, `limit` those after so many: only what is returned is
        made into rows. Raises QueryError that names the path inside the query.

        Over many groups, other calls run in between: each row is as of its own moment, and groups that leave in the meantime
        are left out.
        """
        self._check_open()
        parsed = parse_query(where)
        order, first = parse_order(order_by), _checked_size("offset", offset)
        last = None if limit is None else first + _checked_size("limit", limit)
        slots = await self._find(parsed)
        if order is not None:
            slots = await self._sort(slots, *order)
        return await self._rows(slots[first:last])

    async def count_where(self, where: Where) -> int:
        """Return how many resident groups satisfy a query. Raises QueryError that names the path inside the query."""
        self._check_open()
        return len(await self._find(parse_query(where)))

    async def peek(self, uids: Iterable[int]) -> list[list[Any]]:
        """Return the rollouts of groups, in this order, without taking them.

        Of many groups, other calls run in between. Raises UnknownUid (a KeyError), also for a group that leaves in the
        meantime; CorruptData for those that were altered on disk, and are lost.
        """
        self._check_open()
        wanted = checked_uids(uids)
        self._groups.slots(wanted)  # UnknownUid before any is read
        groups: list[list[Any]] = []
        lost: list[int] = []
        for start in range(0, len(wanted), GROUPS_AT_ONCE):
            if start:
                await self._pause()
            part = wanted[start : start + GROUPS_AT_ONCE]
            handed = self._groups.look(part)
            groups += [group for shown in await self._show(handed) for group in shown]
            lost += [uid for uid, given in zip(part, handed, strict=True) if not given.groups]
        if lost:
            raise CorruptData(
                f"groups {lost} are damaged, and were given up; the others are as they were, ask for those"
            )
        return groups

    async def to_arrow(
        self, where: Where | None = None, *, payloads: bool = False, place: str | None = "resident"
    ) -> Any:
        """Return a pyarrow.Table with one row for each resident group that satisfies a query, by uid.

        The columns are the fields of `Row`, missing values as nulls, tags as JSON, and the place. With `payloads` it has
        one row for each rollout, in which the columns of its group are repeated; groups that leave meanwhile are left
        out. `place` names another place than the pools: "out", "leased", "uncommitted"; None: all. Needs the extra
        `arrow`. Raises ImportError, QueryError, InvalidArgument.
        """
        self._check_open()
        query, code = parse_query({} if where is None else where), _checked_place(place)
        payloads = checked_flag("payloads", payloads)
        arrow.check_installed()
        slots = await self._find(query, code)
        gathered = arrow.Rows(self._engine, slots)
        if len(slots) <= ROWS_AT_ONCE:
            gathered.gather(slots)
            rows = gathered.table()
        else:
            for part, uids in slices_of(self._engine, slots, ROWS_AT_ONCE):
                gathered.gather(part, still_at(self._engine, part, uids, code))
                await self._pause()
            rows = await self._waits.aside(gathered.table)
        if not payloads:
            return rows
        parts = arrow.Rollouts(rows)
        for chunk in arrow.chunks(rows["uid"].to_numpy(), rows["num_tokens"].to_numpy()):
            parts.gather(chunk.start, await self._members(chunk.uids, code))
            await self._waits.aside(parts.build)
        return await self._waits.aside(parts.table)

    async def to_pandas(
        self, where: Where | None = None, *, payloads: bool = False, place: str | None = "resident"
    ) -> Any:
        """Return what `to_arrow` does as a pandas.DataFrame. Needs pandas as well."""
        arrow.check_pandas()
        table = await self.to_arrow(where, payloads=payloads, place=place)
        return await self._waits.aside(lambda: arrow.frame_of(table))

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return, by task, where every group and token that was put is, or how it left."""
        self._check_open()
        return {name: task.ledger.amounts() for name, task in self._engine.tasks.items()}

    async def stats(self) -> Stats:
        """Return counts, histograms, wait times, rates and warnings."""
        self._check_open()
        stats = self._stats()
        return replace(stats, warnings=self._health.evaluate(stats))

    async def metrics(self, *, reader: str | None = None, detail: bool = False) -> dict[str, float]:
        """Return a flat dict of numbers, ready for W&B or TensorBoard.

        Counts, means and rates are those of the interval since the previous call of the same reader; for its first call,
        since the buffer was made or resumed. Gauges are as of now. `total/` holds counts since the beginning. One pass over
        the resident rows.

        Args:
            reader: the name of the caller. Each name has intervals of its own; of 64 names the one that was silent for the
                longest time is forgotten for a new one. None: the buffer's own reader, or that of the connection.
            detail: whether all metrics are returned. Else they are at most 30, and those of single tasks only where there
                are several.

        Returns:
            Numbers by name. What is not known, such as the mean reward of no groups, is left out.

        Raises:
            InvalidArgument: `reader` is not a name.
            Closed: the buffer was closed.

        Example: `wandb.log(await buffer.metrics(), step=step)`.

        """
        self._check_open()
        name, everything = checked_reader(reader), checked_flag("detail", detail)
        total = self._stats()
        self._health.evaluate(total)
        return metrics_dict(total, self._readers.interval(total, name), detail=everything)

    async def _members(self, uids: Sequence[int], place: int | None) -> list[list[Any] | None]:
        """Return the rollouts of groups; None for those that are no longer in their place, or damaged."""
        while True:
            self._check_open()
            slots = self._groups.all_slots(uids)
            slots = slots[slots >= 0]
            if place is not None:
                slots = slots[self._engine.columns.place[slots] == place]
            handed = self._groups.look_at(slots)
            try:
                shown = await self._show(handed)
            except UnknownUid:
                continue  # one of them has just gone
            found = {
                group.uid: members
                for given, groups in zip(handed, shown, strict=True)
                for group, members in zip(given.groups, groups, strict=True)
            }
            return [found.get(uid) for uid in uids]

    async def _show(self, handed: Sequence[Handed]) -> list[list[list[Any]]]:
        """Return the rollouts of groups that are looked at, and stay where they are; damaged ones are left out."""
        if self._disk is None:
            return [self._groups.show(given) for given in handed]
        damaged = await self._disk.look([group for given in handed for group in given.groups])
        for given in handed:
            self._groups.leave_out(given, damaged)
        shown = [self._groups.show(given) for given in handed]
        self._disk.settle([group for given in handed for group in given.groups])
        return shown


def interval_of(buffer: Looking, reader: str | None) -> tuple[Stats, Stats]:
    """Return the stats of a buffer since the beginning, and since the reader's previous call. Raises Closed."""
    stats, name = stats_of(buffer), checked_reader(reader)
    return stats, buffer._readers.interval(stats, name)  # noqa: SLF001  (of this module)


def begin_intervals(buffer: Looking) -> None:
    """Start the intervals of all readers now."""
    buffer._readers = Readers(buffer._stats())  # noqa: SLF001  (of this module)


def stats_of(buffer: Looking) -> Stats:
    """Return the stats of a buffer without warnings, to be merged with those of other shards. Raises Closed."""
    buffer._check_open()  # noqa: SLF001  (of this module, and no verb)
    return buffer._stats()  # noqa: SLF001


def _checked_size(name: str, value: object) -> int:
    if (size := checked_count(name, value)) < 0:
        raise InvalidArgument(f"{name} must be a whole number of at least 0, not {size}")
    return size


def _checked_place(place: str | None) -> int | None:
    if place is None:
        return None
    return PLACES.index(checked_choice("place", place, PLACES))
