"""View: what can be seen of a buffer, the same whatever it is and wherever it lives. It has no verb that changes anything."""

import uuid
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from reroll.buffer.arguments import Where
from reroll.engine.ledger import Amount
from reroll.engine.query import Row
from reroll.observe.group import plain_rollout
from reroll.observe.plain import plain_row
from reroll.rollout import Status
from reroll.telemetry.stats import Stats


class Source(Protocol):
    """The verbs of a buffer that are used here: those that look."""

    async def stats(self) -> Stats: ...
    async def ledger(self) -> dict[str, dict[str, Amount]]: ...
    async def metrics(self, *, reader: str | None = None, detail: bool = False) -> dict[str, float]: ...
    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]: ...
    async def count_where(self, where: Where) -> int: ...
    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Row]: ...
    async def peek(self, uids: Iterable[int]) -> list[list[Any]]: ...
    async def to_arrow(self, where: Where | None = None, *, payloads: bool = False) -> Any: ...


class Page(NamedTuple):
    """Some of the groups that satisfy a query."""

    rows: list[dict[str, Any]]
    """By the names of the query language."""
    total: int
    """How many satisfy it."""
    offset: int


class View:
    """What can be seen of one buffer; made by `open_view`. All methods but `title` are coroutines, and raise what verbs raise."""

    def __init__(
        self, source: Source, *, title: str, kind: str, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._source = source
        self._close = close
        self._reader = f"view {uuid.uuid4().hex}"
        self.title = title
        """What is looked at: a path, an address or a name."""
        self.kind = kind
        """"file", "server", "ray" or "process"."""

    async def stats(self) -> Stats:
        """Return what the buffer tells about itself, with warnings."""
        return await self._source.stats()

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return, by task, where every group and token is, or how it left."""
        return await self._source.ledger()

    async def metrics(self, *, detail: bool = False) -> dict[str, float]:
        """Return a flat dict of numbers, of the interval since the previous call of this view."""
        return await self._source.metrics(reader=self._reader, detail=detail)

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        """Return how many groups are resident, by task and status."""
        return await self._source.count_statuses(task_names, statuses)

    async def rows(
        self, where: Where | None = None, *, order_by: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page:
        """Return a page of the resident groups that satisfy a query. Raises QueryError, InvalidArgument."""
        asked = {} if where is None else where
        rows = await self._source.query(asked, order_by=order_by, limit=limit, offset=offset)
        return Page(list(map(plain_row, rows)), await self._source.count_where(asked), offset)

    async def group(self, uid: int, *, max_tokens: int | None = None) -> dict[str, Any]:
        """Return one resident group in plain values: its `row`, and its `rollouts` as `plain_rollout` tells them.

        Of each rollout at most `max_tokens` tokens are returned. Raises UnknownUid.
        """
        (rollouts,) = await self._source.peek([uid])
        rows = await self._source.query({"uid": uid})
        return {
            "uid": uid,
            "row": plain_row(rows[0]) if rows else None,
            "rollouts": [plain_rollout(rollout, max_tokens=max_tokens) for rollout in rollouts],
        }

    async def to_arrow(self, where: Where | None = None, *, payloads: bool = False) -> Any:
        """Return a pyarrow.Table of resident groups, or with `payloads` of their rollouts. Needs the extra `arrow`."""
        return await self._source.to_arrow(where, payloads=payloads)

    async def close(self) -> None:
        """End looking: a file or a connection is closed, the buffer itself goes on."""
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
