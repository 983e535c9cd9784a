"""RemoteBuffer: the verbs of ReplayBuffer for a buffer in another process; BlockingRemoteBuffer: the same for threads.

Groups are encoded and decoded here; the host sees bytes. A verb that consumes groups acknowledges them when they have
arrived, so that none is lost on the way. A lease ends when its client is gone.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from os import urandom
from types import TracebackType
from typing import Any, Self, TypeVar

from reroll import forking
from reroll.buffer.arguments import checked_entries, checked_names, checked_task
from reroll.buffer.batch import Batch, Lease
from reroll.buffer.blocking import BlockingVerbs
from reroll.buffer.buffer import ReplayBuffer
from reroll.buffer.plain_calls import BlockingBatch, blocking
from reroll.errors import Closed, CorruptData, InvalidArgument, LeaseExpired, WaitTimeout
from reroll.group import GroupBatch
from reroll.interrupts import run_in
from reroll.remote.connection import Connection
from reroll.remote.groups import decode_group, decode_samples, encode_group
from reroll.remote.methods import bound_like, remote_method
from reroll.remote.protocol import LeaseReply
from reroll.remote.values import to_value
from reroll.rollout import Status
from reroll.store import Blob
from reroll.telemetry.metrics import connection_reader

T = TypeVar("T")


class RemoteBuffer:
    """A buffer in another process, for asyncio; `reroll.connect` creates it. It connects with its first call.

    Verbs, results and errors are those of `ReplayBuffer`; every call may also raise Unreachable, LimitReached and
    ProtocolMismatch. `len()` is as of the last message. `close()` closes the connection, not the buffer.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """Use the connection that `connect` returns; it is called once, with the first call of a verb."""
        self._connect = connect
        self._connected: Connection | None = None
        self._home = forking.here()
        self._name = urandom(8).hex()
        self._num_puts = 0
        self._bounded_tasks: set[str] = set()  # leased tasks with a `max_staleness`
        self._is_durable = True  # whether a take waits for its acknowledgement; as of the last lease

    def __len__(self) -> int:
        """Return the number of resident groups, as of the last reply of the server.

        Raises TypeError before the first reply.
        """
        forking.check(self._home, "the client")
        length = None if self._connected is None else self._connected.length
        if length is None:
            raise TypeError(
                "len() of a client needs a reply of the server; await a call first, such as health()"
            )
        return length

    def __bool__(self) -> bool:
        return True  # also when it is empty

    @property
    def last_length(self) -> int | None:
        """The number of resident groups as of the last reply; None before the first."""
        return None if self._connected is None else self._connected.length

    async def close(self) -> None:
        """Close the connection: waiting and later calls raise Closed; leases and reservations of this client return."""
        if self._connected is None:
            self._connect = _refuse
        elif not forking.is_elsewhere(self._home):
            await self._connected.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def health(self) -> dict[str, Any]:
        """Return facts about the server: version, groups, uptime_s, is_durable, services, clients, malformed."""
        health: dict[str, Any] = await self._call("health", {})
        return health

    async def ask(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Call a service beside the buffer: `verb` is the name of the service, a dot, and the name of its method."""
        return await self._call(verb, dict(arguments))

    # --- verbs that are sent as they are

    reserve = remote_method(ReplayBuffer.reserve)
    release = remote_method(ReplayBuffer.release)
    advance = remote_method(ReplayBuffer.advance)
    version = remote_method(ReplayBuffer.version)
    wait_version = remote_method(ReplayBuffer.wait_version)
    wait_overdue = remote_method(ReplayBuffer.wait_overdue)
    is_ready = remote_method(ReplayBuffer.is_ready)
    wait_ready = remote_method(ReplayBuffer.wait_ready)
    ack_lease = remote_method(ReplayBuffer.ack_lease)
    trim_lease = remote_method(ReplayBuffer.trim_lease)
    end_lease = remote_method(ReplayBuffer.end_lease)
    refresh_staleness = remote_method(ReplayBuffer.refresh_staleness)
    update_priorities = remote_method(ReplayBuffer.update_priorities)
    patch = remote_method(ReplayBuffer.patch)
    patch_many = remote_method(ReplayBuffer.patch_many)
    delete = remote_method(ReplayBuffer.delete)
    forget = remote_method(ReplayBuffer.forget)
    set_rate_limiter = remote_method(ReplayBuffer.set_rate_limiter)
    set_sampler = remote_method(ReplayBuffer.set_sampler)
    save = remote_method(ReplayBuffer.save)
    resume = remote_method(ReplayBuffer.resume)
    commit = remote_method(ReplayBuffer.commit)
    rewind = remote_method(ReplayBuffer.rewind)
    count = remote_method(ReplayBuffer.count)
    count_statuses = remote_method(ReplayBuffer.count_statuses)
    count_where = remote_method(ReplayBuffer.count_where)
    query = remote_method(ReplayBuffer.query)
    ledger = remote_method(ReplayBuffer.ledger)
    stats = remote_method(ReplayBuffer.stats)

    # --- verbs with work to do on this side

    @bound_like(ReplayBuffer.put)
    async def put(self, arguments: dict[str, Any]) -> int | None:
        items = arguments.pop("items")
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
            raise InvalidArgument(f"items must be a list of rollouts, not {type(items).__name__}")
        if arguments.get("put_id") is None:
            arguments["put_id"] = self._put_id()
        if not items:
            reply, _ = await self._connection.call("put", {"items": [], **arguments})
        else:
            reply, _ = await self._connection.call("put", arguments, await self._encode(items, arguments))
        return reply.integer

    @bound_like(ReplayBuffer.put_many)
    async def put_many(self, arguments: dict[str, Any]) -> list[int | None]:
        groups = checked_names("groups", arguments.pop("groups"))
        for items in groups:
            if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
                raise InvalidArgument(f"items must be a list of rollouts, not {type(items).__name__}")
        put_ids = checked_entries("put_ids", arguments.get("put_ids"), len(groups))
        arguments["put_ids"] = [self._put_id() if put_id is None else put_id for put_id in put_ids]
        frames = [
            frame
            for items in groups
            for frame in (await self._encode(items, arguments) if items else (b"", b""))
        ]
        reply, _ = await self._connection.call("put_many", arguments, frames)
        uids: list[int | None] = to_value(reply.value)
        return uids

    def _put_id(self) -> str:
        """Return the id of a put: one that is sent twice is stored once."""
        self._num_puts += 1
        return f"{self._name}-{self._num_puts}"

    @bound_like(ReplayBuffer.get)
    async def get(self, arguments: dict[str, Any]) -> list[Any]:
        task = checked_task(arguments.pop("task_name"))
        groups, _ = await self.take_batch({task: arguments.pop("batch_size")}, **arguments)
        return groups[task]

    @bound_like(ReplayBuffer.take_batch)
    async def take_batch(self, arguments: dict[str, Any]) -> tuple[dict[str, list[Any]], dict[str, int]]:
        if "group_status" in arguments:
            arguments["group_status"] = Status.of(arguments["group_status"]).value
        samples = await self._take("take_batch", arguments)
        while missing := _missing(samples, arguments):
            try:
                more = await self._take("take_batch", {**arguments, "task_batch_sizes": missing})
            except WaitTimeout:
                break
            for task, drawn in more.items():
                samples[task] = GroupBatch.of([*samples[task], *drawn])
        groups = {task: list(drawn.groups) for task, drawn in samples.items()}
        return groups, {task: len(taken) for task, taken in groups.items()}

    @bound_like(ReplayBuffer.sample)
    async def sample(self, arguments: dict[str, Any]) -> GroupBatch:
        by_task = await self._take("sample", arguments)
        return GroupBatch.of(sample for drawn in by_task.values() for sample in drawn)

    @bound_like(ReplayBuffer.lease)
    def lease(self, arguments: dict[str, Any]) -> Lease:
        return Lease(lambda: self._lease(arguments))

    def batches(
        self, task_batch_sizes: Mapping[str, int], *, prefetch: int = 1, **options: Any
    ) -> AsyncIterator[Batch]:
        """Return an endless iterator of leased batches; the next ones are fetched while the caller trains.

        A batch counts as consumed when the caller acknowledges it. Prefetched batches return to the buffer when the iteration
        ends or this client is gone. A prefetched batch with a group that has passed `max_staleness` is replaced.

        Args:
            task_batch_sizes: groups of each task in a batch.
            prefetch: batches that wait here.
            options: those of `lease`.

        """

        async def lease() -> Batch:
            return await self.lease(task_batch_sizes, **{"wait": True, **options})

        return Prefetch(lease, self.has_stale, prefetch)

    async def has_stale(self, batch: Batch) -> bool:
        """Return whether a group of a leased batch has passed `max_staleness` meanwhile."""
        return not self._bounded_tasks.isdisjoint(batch.counts) and bool(
            await self._call("has_stale", {"lease": batch.id})
        )

    @bound_like(ReplayBuffer.nack_lease)
    async def nack_lease(self, arguments: dict[str, Any]) -> None:
        if self._connected is None or not self._connected.is_closed:  # closing returns all leases
            await self._call("nack_lease", arguments)

    @bound_like(ReplayBuffer.peek)
    async def peek(self, arguments: dict[str, Any]) -> list[Any]:
        reply, blobs = await self._connection.call("peek", arguments)
        return list(map(self._decode, reply.metadata, blobs))

    @bound_like(ReplayBuffer.metrics)
    async def metrics(self, arguments: dict[str, Any]) -> dict[str, float]:
        if arguments.get("reader") is None:
            arguments["reader"] = connection_reader(self._name)
        numbers: dict[str, float] = await self._call("metrics", arguments)
        return numbers

    @bound_like(ReplayBuffer.to_arrow)
    async def to_arrow(self, arguments: dict[str, Any]) -> Any:
        from reroll.buffer import arrow  # noqa: PLC0415  (optional)

        arrow.check_installed()
        import pyarrow as pa  # noqa: PLC0415

        return pa.ipc.open_stream(await self._call("to_arrow", arguments)).read_all()

    @bound_like(ReplayBuffer.to_pandas)
    async def to_pandas(self, arguments: dict[str, Any]) -> Any:
        from reroll.buffer import arrow  # noqa: PLC0415  (optional)

        arrow.check_pandas()
        return arrow.frame_of(await self.to_arrow(**arguments))

    # ---

    async def _take(self, verb: str, arguments: dict[str, Any]) -> dict[str, GroupBatch]:
        """Lease groups and consume them; groups that another client got meanwhile are left out."""
        leased, samples = await self._receive_lease(verb, arguments)
        if leased.lease is not None:
            comes_back = arguments.get("group_status", "completed") != "completed"
            lost = await self.consume(leased.lease, comes_back=comes_back)
            if lost:
                samples = {
                    task: GroupBatch.of(sample for sample in drawn if sample.info.uid not in lost)
                    for task, drawn in samples.items()
                }
        return samples

    async def consume(self, lease: int, *, comes_back: bool = False) -> Sequence[int]:
        """Acknowledge a lease whose groups were taken; return those that were delivered to another client meanwhile.

        Args:
            lease: the lease.
            comes_back: whether the groups are put again, perhaps by another client: then the host must know of the take.

        """
        if self._is_durable or comes_back:
            return await finish(self._acknowledge(lease))
        self.notify("ack_lease", {"lease": lease})  # it arrives unless the host dies, with its groups
        return ()

    def notify(self, verb: str, arguments: dict[str, Any]) -> None:
        """Execute a verb before all later calls, without waiting for it; its errors are ignored."""
        self._connection.notify(verb, arguments)

    async def _acknowledge(self, lease: int) -> Sequence[int]:
        """Consume a lease; return the groups that were delivered to another client, because the host was restarted."""
        try:
            await self._connection.call("ack_lease", {"lease": lease})
        except LeaseExpired as error:
            return error.uids
        return ()

    async def _lease(self, arguments: dict[str, Any]) -> Batch:
        if "group_status" in arguments:
            arguments = {**arguments, "group_status": Status.of(arguments["group_status"]).value}
        leased, samples = await self._receive_lease("lease", arguments)
        if leased.lease is None:
            raise CorruptData("the server replied to lease without a lease")
        self._bounded_tasks.update(leased.bounded)
        return Batch(self, leased.lease, samples)

    async def _receive_lease(
        self, verb: str, arguments: dict[str, Any]
    ) -> tuple[LeaseReply, dict[str, GroupBatch]]:
        """Call a verb that leases groups, and decode them; groups that cannot be decoded are returned."""
        reply, blobs = await self._connection.call(verb, arguments)
        leased = reply.lease
        if leased is None:
            raise CorruptData(f"the server replied to {verb} without groups")
        self._is_durable = leased.is_durable
        try:
            return leased, decode_samples(leased.infos, reply.metadata, blobs, self._decode)
        except BaseException:
            if leased.lease is not None:
                self._connection.notify("nack_lease", {"lease": leased.lease})
            raise

    async def _encode(self, items: Sequence[Any], _arguments: dict[str, Any]) -> tuple[bytes, Blob]:
        """Return the metadata and the body of a group that is put."""
        return encode_group(items)

    def _decode(self, metadata: Blob, body: Blob) -> Any:
        """Return a delivered group."""
        return decode_group(metadata, body)

    async def _call(self, verb: str, arguments: dict[str, Any]) -> Any:
        reply, _ = await self._connection.call(verb, arguments)
        return to_value(reply.value) if reply.value else reply.integer

    @property
    def _connection(self) -> Connection:
        forking.check(self._home, "the client")
        if self._connected is None:
            self._connected = self._connect()
        return self._connected


def _refuse() -> Connection:
    raise Closed("the connection to the server was closed; connect again")


def _missing(samples: Mapping[str, Sequence[Any]], arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return how many groups of each task are missing from a batch that waits until it is complete."""
    if not arguments.get("wait"):
        return {}
    wanted: Mapping[str, int] = arguments["task_batch_sizes"]
    return {task: n - len(samples[task]) for task, n in wanted.items() if n > len(samples[task])}


async def finish(work: Awaitable[T]) -> T:
    """Return the result of work that cannot be undone, also if the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            current = asyncio.current_task()
            if current is not None:
                current.uncancel()
    return task.result()


class Prefetch:
    """An endless iterator over leases, some of which are fetched ahead; `aclose` ends it."""

    def __init__(
        self,
        lease: Callable[[], Awaitable[Batch]],
        is_stale: Callable[[Batch], Awaitable[bool]],
        ahead: int,
    ) -> None:
        """Fetch `ahead` batches with `lease`; a batch that has waited is replaced if `is_stale`."""
        if ahead < 1:
            raise InvalidArgument(f"prefetch must be at least 1, not {ahead}")
        self._lease, self._is_stale = lease, is_stale
        self._ahead = ahead
        self._fetched: deque[asyncio.Future[Batch]] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while True:
            self._fetch()
            first = self._fetched[0]
            has_waited = first.done()
            try:
                batch = await asyncio.shield(first)
            except asyncio.CancelledError:
                raise  # the batch stays the first
            except BaseException:
                self._fetched.remove(first)
                raise
            if not has_waited or not await self._is_stale(batch):
                break
            if self._fetched and self._fetched[0] is first:
                self._fetched[0] = asyncio.ensure_future(self._replace(batch))
        self._fetched.remove(first)
        self._fetch()
        return batch

    async def aclose(self) -> None:
        """Return the batches that were fetched and not asked for."""
        fetched, self._fetched = self._fetched, deque()
        for batch in fetched:
            batch.cancel()
        for done in await asyncio.gather(*fetched, return_exceptions=True):
            if isinstance(done, Batch):
                await done.nack()

    async def _replace(self, batch: Batch) -> Batch:
        await asyncio.shield(batch.nack())
        return await self._lease()

    def _fetch(self) -> None:
        while len(self._fetched) < self._ahead:
            self._fetched.append(asyncio.ensure_future(self._lease()))


class LoopThread:
    """An event loop in a thread of its own, which starts with the first coroutine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._home = forking.here()
        self._lock, self._stopping = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and return its result; an interrupt cancels it."""
        if forking.is_elsewhere(self._home):
            work.close()
        forking.check(self._home, "the client")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
        return run_in(self._loop, work)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine, and end the thread. A second call, or one in a forked child, does nothing."""
        if forking.is_elsewhere(self._home):
            return
        with self._stopping:
            if self._loop is None or not self._loop.is_closed():
                self.run(last())
                assert self._loop is not None  # noqa: S101  (it runs)
                assert self._thread is not None  # noqa: S101
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()


class BlockingRemoteBuffer(BlockingVerbs):
    """Thread-safe; verbs, arguments, results and errors of `BlockingReplayBuffer`. `reroll.connect_blocking` creates it.

    An event loop in a thread of its own executes the calls.
    """

    health = blocking(RemoteBuffer.health)
    ask = blocking(RemoteBuffer.ask)

    def __init__(self, target: Any) -> None:
        """Run the verbs of a RemoteBuffer, or of a ShardedBuffer."""
        self._target = target
        self._thread = LoopThread("reroll-client")
        self._run = self._thread.run

    def __len__(self) -> int:
        """Return the number of resident groups; asks the server."""
        with suppress(Closed):  # a closed client returns the last number
            self.health()
        return len(self._target)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def batches(
        self, task_batch_sizes: Mapping[str, int], *, prefetch: int = 1, **options: Any
    ) -> Iterator[BlockingBatch]:
        batches: Any = self._target.batches(task_batch_sizes, prefetch=prefetch, **options)
        try:
            while True:
                yield BlockingBatch(self._run, self._run(batches.__anext__()))
        finally:
            self._run(batches.aclose())

    batches.__doc__ = RemoteBuffer.batches.__doc__

    def close(self) -> None:
        """Close the connection: waiting and later calls raise Closed; leases and reservations of this client return."""
        self._thread.stop(self._target.close)
