"""`View`: the verbs that read a buffer, the same for every kind of buffer. `open_view` returns the view of a target."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from reroll import BlockingReplayBuffer, ReadOnlyBuffer, ReplayBuffer, open_readonly
from reroll.buffer.arguments import Where
from reroll.engine.ledger import Amount
from reroll.engine.query import Row
from reroll.errors import InvalidArgument, Unreachable, WaitTimeout
from reroll.observe.plain import plain, plain_rollout
from reroll.rollout import Status
from reroll.store import find_saved
from reroll.telemetry.stats import Stats
from reroll.waiting import LoopWaits

T = TypeVar("T")


class Source(Protocol):
    """The verbs of a buffer that a view calls."""

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
    async def peek(self, uids: Iterable[int]) -> list[Any]: ...
    async def to_arrow(self, where: Where | None = None, *, payloads: bool = False) -> Any: ...


class Page(NamedTuple):
    """One page of the groups that match a query."""

    rows: list[dict[str, Any]]
    """By the field names of the query language."""
    total: int
    """The number of groups that match."""
    offset: int


class View:
    """Read-only view of one buffer, made by `open_view`. Its methods raise the errors of the buffer's verbs."""

    def __init__(
        self, source: Source, *, title: str, kind: str, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._source = source
        self._close = close
        self._reader = f"view {uuid.uuid4().hex}"
        self.title = title
        """The path, address or name of the buffer."""
        self.kind = kind
        """"file", "server", "ray" or "process"."""

    async def stats(self) -> Stats:
        """Return the buffer's stats, with warnings."""
        return await self._source.stats()

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        """Return, by task, where every group and token is, or how it left."""
        return await self._source.ledger()

    async def metrics(self, *, detail: bool = False) -> dict[str, float]:
        """Return a flat dict of numbers, for the interval since the previous call of this view.

        Args:
            detail: return all metrics, those of single tasks included.

        """
        return await self._source.metrics(reader=self._reader, detail=detail)

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        """Return the number of resident groups by task and status.

        Args:
            task_names: tasks to count.
            statuses: statuses to count.

        """
        return await self._source.count_statuses(task_names, statuses)

    async def rows(
        self, where: Where | None = None, *, order_by: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page:
        """Return a page of the resident groups that match a query.

        Args:
            where: the query; None matches all groups.
            order_by: a field, with `-` before it for descending order.
            limit: rows of the page.
            offset: matching groups to skip.

        Raises:
            QueryError: the query is invalid.
            InvalidArgument: another argument is invalid.

        """
        query = {} if where is None else where
        rows = await self._source.query(query, order_by=order_by, limit=limit, offset=offset)
        return Page(list(map(plain, rows)), await self._source.count_where(query), offset)

    async def group(self, uid: int, *, max_tokens: int | None = None) -> dict[str, Any]:
        """Return one resident group as plain values: `uid`, `row`, and `rollouts` (see `plain_rollout`).

        Args:
            uid: the group's uid.
            max_tokens: tokens of each rollout that are returned; None returns all.

        Raises:
            UnknownUid: no such group is resident.

        """
        (rollouts,) = await self._source.peek([uid])
        rows = await self._source.query({"uid": uid})
        return {
            "uid": uid,
            "row": plain(rows[0]) if rows else None,
            "rollouts": [plain_rollout(rollout, max_tokens=max_tokens) for rollout in rollouts],
        }

    async def to_arrow(self, where: Where | None = None, *, payloads: bool = False) -> Any:
        """Return a pyarrow.Table of resident groups. Needs the extra `arrow`.

        Args:
            where: query that groups match; None: all.
            payloads: one row for each rollout, with its tokens, instead of each group.

        """
        return await self._source.to_arrow(where, payloads=payloads)

    async def close(self) -> None:
        """Close the file or the connection; the buffer itself stays open."""
        if self._close is not None:
            await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_view(
    target: "str | PathLike[str] | ReplayBuffer | Any",
    *,
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    timeout: float = 10.0,
) -> View:
    """Open a read-only view of a buffer.

    Args:
        target: the path of a saved buffer or of a durable store, also one in use; `tcp://host:port` or `ipc://path` of a
            server; `ray:name` or `ray:namespace/name` of a buffer on Ray; or a ReplayBuffer of this process.
        key: the client's key pair, if the server requires keys.
        server_key: the public key of that server.
        timeout: seconds that a server or an actor may take to answer.

    Returns:
        The view; `async with` closes it.

    Raises:
        InvalidArgument: the target is no buffer, or a key is missing.
        SavedNotFound: the path has no saved buffer.
        CorruptData: the file is damaged.
        UnsupportedFormat: another version of reroll wrote the file.
        Unreachable: the server did not answer in time.
        Closed: the buffer is closed.

    Example: `async with await open_view("./buffer") as view: stats = await view.stats()`.

    """
    if isinstance(target, BlockingReplayBuffer):
        raise InvalidArgument(
            "cannot view a blocking buffer; call its own verbs, pass a ReplayBuffer, or serve it"
        )
    if not isinstance(target, str | PathLike):
        return View(target, title="this process", kind="process")
    name = fspath(target)
    is_address = name.startswith(("tcp://", "ipc://"))
    if (key is None) != (server_key is None) or (key is not None and not is_address):
        raise InvalidArgument("key and server_key go together, and only with the address of a server")
    if is_address:
        return await _open_server(name, key, server_key, timeout)
    if name.startswith("ray:"):
        return await asyncio.to_thread(_open_ray, name.removeprefix("ray:").removeprefix("//"), timeout)
    if "://" in name:
        raise InvalidArgument(
            f"{name!r} is not an address of a buffer; use tcp://host:port, ipc://path, ray:name or the path of a file"
        )
    source = await asyncio.to_thread(FileSource, name)
    return View(source, title=str(source.path), kind="file", close=source.close)


async def _open_server(
    address: str, key: str | PathLike[str] | None, server_key: str | PathLike[str] | None, timeout: float
) -> View:
    from reroll.server import connect  # noqa: PLC0415  (needs its extra)

    client = connect(address, key=key, server_key=server_key, deadline_s=timeout, patience_s=timeout)
    try:
        await client.health()
    except BaseException as error:
        await client.close()
        if not isinstance(error, WaitTimeout):
            raise
        raise Unreachable(
            f"{address} does not answer within {timeout} s; check that a server is there and knows your key"
        ) from error
    return View(client, title=address, kind="server", close=client.close)


def _open_ray(name: str, timeout: float) -> View:
    import ray  # noqa: PLC0415  (needs its extra)

    from reroll.ray import RayReplayBuffer  # noqa: PLC0415

    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise InvalidArgument("there is no Ray cluster here; run this on one of its nodes") from error
    namespace, _, own = name.rpartition("/")
    handle = RayReplayBuffer.connect(own, namespace=namespace or None, timeout=timeout)
    return View(handle, title=f"ray:{name}", kind="ray")


class FileSource:
    """A saved buffer, or the store of a durable one. `stats` reads the file again if it was written.

    Reads happen in threads, so the event loop never waits for a disk.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = find_saved(path)
        self._read = self._signature()
        self._buffer = open_readonly(self.path)
        self._turn = asyncio.Lock()
        self._waits = LoopWaits()  # a cancelled call keeps its turn until its thread has finished

    async def stats(self) -> Stats:
        async with self._turn:
            await self._waits.aside(self._reopen)
            return await self._waits.aside(self._buffer.stats)

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        return await self._call(lambda buffer: buffer.ledger())

    async def metrics(self, *, reader: str | None = None, detail: bool = False) -> dict[str, float]:
        return await self._call(lambda buffer: buffer.metrics(reader=reader, detail=detail))

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        return await self._call(lambda buffer: buffer.count_statuses(task_names, statuses))

    async def count_where(self, where: Where) -> int:
        return await self._call(lambda buffer: buffer.count_where(where))

    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Row]:
        return await self._call(
            lambda buffer: buffer.query(where, order_by=order_by, limit=limit, offset=offset)
        )

    async def peek(self, uids: Iterable[int]) -> list[Any]:
        return await self._call(lambda buffer: buffer.peek(uids))

    async def to_arrow(self, where: Where | None = None, *, payloads: bool = False) -> Any:
        return await self._call(lambda buffer: buffer.to_arrow(where, payloads=payloads))

    async def close(self) -> None:
        await self._call(lambda buffer: buffer.close())

    async def _call(self, read: Callable[[ReadOnlyBuffer], T]) -> T:
        async with self._turn:
            return await self._waits.aside(lambda: read(self._buffer))

    def _reopen(self) -> None:
        """Open the file again if it was written; while it is open, the log of a store in use grows."""
        now = self._signature()
        if now != self._read:
            newer = open_readonly(self.path)
            self._buffer.close()
            self._buffer, self._read = newer, now

    def _signature(self) -> tuple[tuple[int, int], ...]:
        files = (self.path, Path(f"{self.path}-wal"))
        stats = [file.stat() for file in files if file.exists()]
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)
