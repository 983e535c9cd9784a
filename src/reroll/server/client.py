"""Client: the verbs of ReplayBuffer, carried out by a server.

Groups are encoded and decoded here; the server sees bytes. Whatever consumes is acknowledged when it has arrived here, so
that nothing is lost on the way. `lease` gives a lease that lives as long as this client does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Hashable, Mapping, Sequence
from os import PathLike, urandom
from types import TracebackType
from typing import Any, Final, Self

from reroll import forking
from reroll.buffer.arguments import Where, checked_task
from reroll.buffer.batch import Batch, Lease
from reroll.buffer.replay_buffer import ReplayBuffer
from reroll.buffer.reservations import Reservation
from reroll.errors import CorruptData, InvalidArgument, LeaseExpired, WaitTimeout
from reroll.query import Scalar
from reroll.remote.groups import sent, taken
from reroll.remote.values import to_value
from reroll.remote.verbs import asking, bound, plain, same_words
from reroll.rollout import Status
from reroll.sample import Sample, SampleInfo
from reroll.server.connection import Connection, checked_address
from reroll.server.keys import read_pair, read_public
from reroll.server.prefetch import Prefetch
from reroll.server.wire import Answer, Lent
from reroll.store import Blob
from reroll.telemetry.metrics import connection_reader
from reroll.waiting import deadline_of

_UNKNOWN: Final = (0, 1.0, 1.0, 1.0, 0, 0, 0)
"""In place of what is known of a draw, where nothing was drawn."""


class Client:
    """A buffer on a server, for asyncio; made by `reroll.connect`. It connects with its first call.

    The verbs, results and errors are those of `ReplayBuffer`; besides, they raise Unreachable, LimitReached, ProtocolMismatch.
    `len()` is as of the last answer. `close()` closes the connection, not the buffer.
    """

    def __init__(
        self,
        address: str,
        *,
        key: str | PathLike[str] | None = None,
        server_key: str | PathLike[str] | None = None,
        heartbeat_s: float = 1.0,
        patience_s: float = 60.0,
        deadline_s: float | None = None,
    ) -> None:
        if (key is None) != (server_key is None):
            raise InvalidArgument(
                "give both, key and server_key: who you are, and who the server is; or neither"
            )
        for name, seconds in (("heartbeat_s", heartbeat_s), ("patience_s", patience_s)):
            if not seconds > 0:
                raise InvalidArgument(f"{name} must be above 0, not {seconds}")
        deadline_of(deadline_s, "deadline_s")
        self._options: dict[str, Any] = {
            "pair": None if key is None else read_pair(key),
            "server_key": None if server_key is None else read_public(server_key),
            "heartbeat_s": heartbeat_s,
            "patience_s": patience_s,
        }
        self._address = checked_address(address)
        self._deadline_s = deadline_s
        self._connected: Connection | None = None
        self._home = forking.here()
        self._name = urandom(8).hex()
        self._puts = 0
        self._bounded: set[str] = (
            set()
        )  # tasks that have a `max_staleness`, of those that groups were lent of

    def __len__(self) -> int:
        forking.check(self._home, "the client")
        return 0 if self._connected is None else self._connected.length

    async def close(self) -> None:
        """Close the connection: waiting and later calls raise Closed, and all that this client holds comes back."""
        if not forking.is_elsewhere(self._home):
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def health(self) -> dict[str, Any]:
        """Return what the server tells of itself: version, groups, uptime_s, is_durable, services."""
        health: dict[str, Any] = await self._call("health", {})
        return health

    async def ask(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Ask a service that stands beside the buffer: `verb` is its name, a dot, and what is asked for."""
        return await self._call(verb, dict(arguments))

    # --- verbs that are asked for as they are

    reserve = asking(ReplayBuffer.reserve)
    release = asking(ReplayBuffer.release)
    advance = asking(ReplayBuffer.advance)
    version = asking(ReplayBuffer.version)
    wait_version = asking(ReplayBuffer.wait_version)
    is_ready = asking(ReplayBuffer.is_ready)
    wait_ready = asking(ReplayBuffer.wait_ready)
    ack_lease = asking(ReplayBuffer.ack_lease)
    trim_lease = asking(ReplayBuffer.trim_lease)
    end_lease = asking(ReplayBuffer.end_lease)
    refresh_staleness = asking(ReplayBuffer.refresh_staleness)
    update_priorities = asking(ReplayBuffer.update_priorities)
    patch = asking(ReplayBuffer.patch)
    patch_many = asking(ReplayBuffer.patch_many)
    delete = asking(ReplayBuffer.delete)
    forget = asking(ReplayBuffer.forget)
    set_rate_limiter = asking(ReplayBuffer.set_rate_limiter)
    set_sampler = asking(ReplayBuffer.set_sampler)
    save = asking(ReplayBuffer.save)
    resume = asking(ReplayBuffer.resume)
    commit = asking(ReplayBuffer.commit)
    rewind = asking(ReplayBuffer.rewind)
    count = asking(ReplayBuffer.count)
    count_statuses = asking(ReplayBuffer.count_statuses)
    count_where = asking(ReplayBuffer.count_where)
    query = asking(ReplayBuffer.query)
    ledger = asking(ReplayBuffer.ledger)
    stats = asking(ReplayBuffer.stats)

    @same_words(ReplayBuffer.metrics)
    async def metrics(self, *, reader: str | None = None, detail: bool = False) -> dict[str, float]:
        name = connection_reader(self._name) if reader is None else reader
        numbers: dict[str, float] = await self._call("metrics", {"reader": name, "detail": detail})
        return numbers

    # --- groups go in

    @same_words(ReplayBuffer.put)
    async def put(
        self,
        items: Sequence[Any],
        task_name: str,
        *,
        model_step: int | None = None,
        current_train_step: int | None = None,
        stale_threshold: int | None = None,
        token_stale_threshold: int | None = None,
        expired_groups_retryable: bool = True,
        priority: float | None = None,
        tags: Mapping[str, Scalar] | None = None,
        uid: int | None = None,
        put_id: Hashable = None,
        reservation: Reservation | None = None,
        timeout: float | None = None,
    ) -> int | None:
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
            raise InvalidArgument(f"items must be a list of rollouts, not {type(items).__name__}")
        if put_id is None:  # a put that is sent again is stored once
            self._puts += 1
            put_id = f"{self._name}-{self._puts}"
        arguments = {"task_name": task_name} | _given(
            model_step=model_step,
            current_train_step=current_train_step,
            stale_threshold=stale_threshold,
            token_stale_threshold=token_stale_threshold,
            expired_groups_retryable=None if expired_groups_retryable is True else expired_groups_retryable,
            priority=priority,
            tags=plain("tags", tags),
            uid=uid,
            put_id=put_id,
            reservation=reservation,
            timeout=timeout,
        )
        if not items:
            answer, _ = await self._ask("put", {"items": [], **arguments})
        else:
            arguments["known"], blob = sent(items, model_step)
            answer, _ = await self._ask("put", arguments, [blob])
        return answer.whole

    # --- groups come out

    @same_words(ReplayBuffer.get)
    async def get(
        self, batch_size: int, task_name: str, group_status: Status | str, *, train_step: int | None = None
    ) -> list[list[Any]]:
        task_name = checked_task(task_name)
        groups, _ = await self.take_batch(
            {task_name: batch_size}, group_status=group_status, train_step=train_step
        )
        return groups[task_name]

    @same_words(ReplayBuffer.take_batch)
    async def take_batch(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        wait: bool = False,
        timeout: float | None = None,
        train_step: int | None = None,
    ) -> tuple[dict[str, list[list[Any]]], dict[str, int]]:
        status, sizes = Status.of(group_status), plain("task_batch_sizes", task_batch_sizes)
        arguments = {"task_batch_sizes": sizes} | _given(
            group_status=None if status is Status.COMPLETED else status.value,
            wait=None if wait is False else wait,
            timeout=timeout,
            train_step=train_step,
        )
        samples = await self._take("take_batch", arguments)
        while missing := _missing(samples, arguments):
            try:
                more = await self._take("take_batch", {**arguments, "task_batch_sizes": missing})
            except WaitTimeout:
                break
            for task, drawn in more.items():
                samples[task] += drawn
        groups = {task: [group for group, _ in drawn] for task, drawn in samples.items()}
        return groups, {task: len(some) for task, some in groups.items()}

    @same_words(ReplayBuffer.sample)
    async def sample(
        self,
        n: int,
        task_name: str | Mapping[str, float],
        *,
        timeout: float | None = None,
        replace: bool = False,
        allow_short: bool = False,
        train_step: int | None = None,
    ) -> list[Sample]:
        tasks = dict(task_name) if isinstance(task_name, Mapping) else task_name
        arguments: dict[str, Any] = {"n": n, "task_name": tasks} | _given(
            timeout=timeout,
            replace=None if replace is False else replace,
            allow_short=None if allow_short is False else allow_short,
            train_step=train_step,
        )
        drawn = await self._take("sample", arguments)
        return [sample for samples in drawn.values() for sample in samples]

    @same_words(ReplayBuffer.lease)
    def lease(self, /, task_batch_sizes: Mapping[str, int], **options: Any) -> Lease:
        return Lease(lambda: self._lend(task_batch_sizes, options))

    def batches(
        self, task_batch_sizes: Mapping[str, int], *, prefetch: int = 1, **options: Any
    ) -> AsyncIterator[Batch]:
        """Return batches without end, each a lease to be acknowledged; the next ones are fetched meanwhile.

        `prefetch` of them wait here, under leases, and come back when this client goes or the iteration ends: they count as
        consumed when you acknowledge them. One whose groups pass `max_staleness` while it waits is given back, and another
        one is fetched. `options` are those of `lease`.
        """

        async def is_stale(batch: Batch) -> bool:
            return not self._bounded.isdisjoint(batch.counts) and bool(
                await self._call("has_stale", {"lease": batch.id})
            )

        return Prefetch(lambda: self._lend(task_batch_sizes, {"wait": True, **options}), is_stale, prefetch)

    @same_words(ReplayBuffer.peek)
    async def peek(self, uids: Any) -> list[list[Any]]:
        answer, blobs = await self._ask("peek", bound("peek", (uids,), {}))
        return list(map(taken, answer.done, blobs))

    @same_words(ReplayBuffer.to_arrow)
    async def to_arrow(
        self, where: Where | None = None, *, payloads: bool = False, place: str | None = "resident"
    ) -> Any:
        from reroll.buffer import arrow  # noqa: PLC0415  (optional)

        arrow.check_installed()
        import pyarrow as pa  # noqa: PLC0415

        arguments = {"where": plain("where", where), "payloads": payloads, "place": place}
        written = await self._call("to_arrow", arguments)
        return pa.ipc.open_stream(written).read_all()

    @same_words(ReplayBuffer.to_pandas)
    async def to_pandas(
        self, where: Where | None = None, *, payloads: bool = False, place: str | None = "resident"
    ) -> Any:
        from reroll.buffer import arrow  # noqa: PLC0415  (optional)

        arrow.check_pandas()
        return arrow.frame_of(await self.to_arrow(where, payloads=payloads, place=place))

    # ---

    async def _take(self, verb: str, arguments: dict[str, Any]) -> dict[str, list[Sample]]:
        """Have groups handed out, and consume them now that they are here; those that others got meanwhile are left out."""
        lent, samples = await self._handed_out(verb, arguments)
        lease = lent.lease
        if lease is not None and not lent.is_durable:  # as long as the server lives, it gets there
            self._connection.tell("ack_lease", {"lease": lease})
        elif lease is not None:
            gone = await _to_the_end(self._acknowledged(lease))
            for drawn in samples.values() if gone else ():
                drawn[:] = [sample for sample in drawn if sample.info.uid not in gone]
        return samples

    async def _acknowledged(self, lease: int) -> Sequence[int]:
        """Consume a lease; return the groups that were handed to others, because the server started anew meanwhile."""
        try:
            await self._ask("ack_lease", {"lease": lease})
        except LeaseExpired as error:
            return error.uids
        return ()

    async def _lend(self, task_batch_sizes: Mapping[str, int], options: Mapping[str, Any]) -> Batch:
        arguments = bound(
            "take_batch", (task_batch_sizes,), {n: v for n, v in options.items() if n != "ttl_s"}
        )
        if options.get("ttl_s") is not None:
            arguments["ttl_s"] = options["ttl_s"]
        lent, samples = await self._handed_out("lend", arguments)
        assert lent.lease is not None  # noqa: S101  (that is what was asked for)
        self._bounded.update(lent.bounded)
        return Batch(self, lent.lease, samples)

    async def _handed_out(self, verb: str, arguments: dict[str, Any]) -> tuple[Lent, dict[str, list[Sample]]]:
        """Have groups handed out, and decode them; if that cannot be done, they are given back."""
        answer, blobs = await self._ask(verb, arguments)
        lent = answer.lent
        if lent is None:
            raise CorruptData(f"the server answered {verb} without groups")
        groups = map(taken, answer.done, blobs)
        try:
            samples = {
                task: [Sample(next(groups), SampleInfo(*(info or _UNKNOWN), task)) for info in infos]
                for task, infos in lent.infos.items()
            }
        except BaseException:
            if lent.lease is not None:
                self._connection.tell("nack_lease", {"lease": lent.lease})
            raise
        return lent, samples

    async def nack_lease(self, lease: int) -> None:
        """Give a lease back by its id; what `Batch.nack` does."""
        if self._connected is None or not self._connected.is_closed:  # closing gives all back
            await self._call("nack_lease", {"lease": lease})

    async def _call(self, verb: str, arguments: dict[str, Any], blobs: Sequence[bytes] = ()) -> Any:
        answer, _ = await self._ask(verb, arguments, blobs)
        return to_value(answer.value) if answer.value else answer.whole

    async def _ask(
        self, verb: str, arguments: dict[str, Any], blobs: Sequence[bytes] = ()
    ) -> tuple[Answer, list[Blob]]:
        if self._deadline_s is None:
            return await self._connection.call(verb, arguments, blobs)
        try:
            async with asyncio.timeout(self._deadline_s) as limit:
                return await self._connection.call(verb, arguments, blobs)
        except TimeoutError:
            if not limit.expired():
                raise
            raise WaitTimeout(
                f"{verb} took longer than deadline_s={self._deadline_s}, and was cancelled"
            ) from None

    @property
    def _connection(self) -> Connection:
        forking.check(self._home, "the client")
        if self._connected is None:
            self._connected = Connection(self._address, **self._options)
        return self._connected


def _given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that say something: None is what all of them are without a word."""
    return {name: value for name, value in arguments.items() if value is not None}


def _missing(samples: Mapping[str, Sequence[Any]], arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return how many groups a batch that was to be whole lacks, by task."""
    if not arguments.get("wait"):
        return {}
    wanted: Mapping[str, int] = arguments["task_batch_sizes"]
    return {task: n - len(samples[task]) for task, n in wanted.items() if n > len(samples[task])}


async def _to_the_end(work: Awaitable[Sequence[int]]) -> Sequence[int]:
    """Return what comes of work that cannot be undone: whoever is cancelled meanwhile gets it all the same."""
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
