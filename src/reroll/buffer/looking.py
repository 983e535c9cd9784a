"""The verbs that only look."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from reroll.buffer.arguments import (
    Where,
    checked_names,
    checked_task,
    checked_uids,
)
from reroll.buffer.metrics import metrics_of
from reroll.buffer.report import stats_of
from reroll.buffer.shell import Shell
from reroll.buffer.stats import Stats
from reroll.engine.ledger import Amount
from reroll.engine.rows import Row, find, rows_of
from reroll.engine.task import STATUS_CODE
from reroll.errors import CorruptData, InvalidArgument
from reroll.query import FIELDS, parse_query
from reroll.query.values import typed
from reroll.rollout import Status


class Looking(Shell):
    """For everybody."""

    async def count(self, task_name: str, group_status: Status | str) -> int:
        """Return how many groups of one task and status are resident. O(1)."""
        self._check_open()
        task = self._engine.tasks.get(checked_task(task_name))
        status = STATUS_CODE[Status.of(group_status)]
        return 0 if task is None else len(task.pools[status])

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        """Return the counts of all these tasks and statuses, zeros included."""
        self._check_open()
        wanted = [Status.of(status) for status in checked_names("statuses", statuses)]
        names = checked_names("task_names", task_names)
        return {name: {status: await self.count(name, status) for status in wanted} for name in names}

    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None
    ) -> list[Row]:
        """Return a row of metadata for each resident group that satisfies a query.

        In order of uid, or of a field: `order_by="reward_std"`, or `"-reward_std"` for the largest first; groups
        without a value come last. Raises QueryError that names the path inside the query.
        """
        self._check_open()
        parsed = parse_query(where)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidArgument(f"limit must be None or a whole number of at least 0, not {limit!r}")
        field = _checked_order(order_by)
        rows = rows_of(self._engine, find(self._engine, parsed))
        if field is not None:
            missing = [row for row in rows if getattr(row, field) is None]
            present = [row for row in rows if getattr(row, field) is not None]
            descending = order_by is not None and order_by.startswith("-")
            rows = (
                sorted(present, key=lambda row: _order_key(getattr(row, field)), reverse=descending) + missing
            )
        return rows[:limit]

    async def peek(self, uids: Iterable[int]) -> list[list[Any]]:
        """Return the rollouts of groups, in this order, without taking them.

        Raises UnknownUid (a KeyError); CorruptData for those that were altered on disk, and are lost.
        """
        self._check_open()
        handed = self._groups.look(wanted := checked_uids(uids))
        shown = await self._deliver(handed, lambda: None)
        found = [group for groups in shown for group in groups]
        if len(found) < len(wanted):
            lost = [uid for uid, given in zip(wanted, handed, strict=True) if not given.groups]
            raise CorruptData(
                f"groups {lost} are damaged, and were given up; the others are as they were, ask for those"
            )
        return found

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return, by task, where every group and token that was put is, or how it left."""
        self._check_open()
        return {name: task.ledger.amounts() for name, task in self._engine.tasks.items()}

    async def stats(self) -> Stats:
        """Return counts, histograms, wait times, rates and warnings."""
        self._check_open()
        stats = stats_of(self._groups, self._clock())
        return replace(stats, leases=len(self._leases), reservations=len(self._reservations))

    async def metrics(self) -> dict[str, float]:
        """Return a flat dict of numbers, ready for W&B or TensorBoard."""
        self._check_open()
        return metrics_of(self._groups, self._clock())


def _checked_order(order_by: str | None) -> str | None:
    if order_by is None:
        return None
    field = order_by.removeprefix("-") if isinstance(order_by, str) else order_by
    if not isinstance(field, str) or field not in FIELDS:
        raise InvalidArgument(
            f"order_by must be one of {', '.join(FIELDS)}, with '-' for descending, not {order_by!r}"
        )
    return field


def _order_key(value: object) -> tuple[str, Any]:
    """Return a key by which values of several kinds can be sorted: each kind by itself."""
    kind, plain = typed(value)
    return kind.name, plain
