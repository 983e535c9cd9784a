"""Dispatcher: executes the verbs of a buffer, and of services beside it, with groups as bytes.

A verb that consumes groups leases them, and the client acknowledges the lease when the groups have arrived. So a client or a
host that dies in between loses no group and delivers none twice. Groups that may be sampled several times cannot be leased
that way: for them `take_batch` consumes at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from reroll._version import __version__
from reroll.buffer.arguments import batch_sizes, checked_count, checked_flag, checked_sizes, checked_step
from reroll.buffer.buffer import ReplayBuffer, runtime_of
from reroll.buffer.reservations import Reservation
from reroll.config import ReplayBufferConfig
from reroll.errors import CorruptData, InvalidArgument, LeaseExpired
from reroll.remote.groups import encode_infos
from reroll.remote.methods import METHODS
from reroll.remote.protocol import LeaseReply, Reply
from reroll.remote.session import Session
from reroll.remote.shard import ShardVerbs
from reroll.remote.values import to_bytes
from reroll.rollout import Status
from reroll.sample import Sample
from reroll.store import Blob

Encode = Callable[[Sequence[Any]], tuple[bytes, Blob]]
Decode = Callable[[Blob, Blob], Any]
ANYWHERE: Final = Path("/")
"""Directory for checkpoints of a host whose clients may name any path."""
_LONG_LIST: Final = 1000
"""Longer lists, such as the rows of a query, are encoded in another thread while other calls continue."""


class Request(NamedTuple):
    """A call to execute."""

    session: Session
    number: int
    arguments: dict[str, Any]
    blobs: Sequence[Blob]


class Deliverable(NamedTuple):
    """Groups that a verb delivers."""

    groups: Sequence[Sequence[Any]]
    lease: LeaseReply | None = None


class Service(Protocol):
    """An object that a host serves beside its buffer."""

    @property
    def verbs(self) -> Collection[str]:
        """Names of the coroutine methods that clients may call, with arguments by name."""

    async def stop(self) -> None:
        """Stop, before the buffer is closed."""


class Dispatcher:
    """The verbs of one buffer and of the services beside it."""

    def __init__(
        self,
        config: ReplayBufferConfig,
        buffer: ReplayBuffer,
        checkpoints: Path | None,
        facts: Callable[[], dict[str, Any]],
        *,
        encode: Encode,
        decode: Decode,
    ) -> None:
        """Dispatch to `buffer`.

        Args:
            config: the configuration of the buffer.
            buffer: the buffer.
            checkpoints: directory in which clients may save and resume; None forbids both.
            facts: returns what the host adds to `health`.
            encode: encodes a delivered group.
            decode: decodes a group that is put.

        """
        self._config = config
        self._buffer = buffer
        self._checkpoints = checkpoints
        self._facts = facts
        self._encode, self._decode = encode, decode
        self.first_lease = 0
        """Leases below this number were lost with an earlier host of the same buffer."""
        self._started_at = time.monotonic()
        self.services: dict[str, Service] = {}
        self._deliveries: dict[str, Callable[[Request], Awaitable[Deliverable]]] = {
            "take_batch": self._take_batch,
            "lease": self._lease,
            "sample": self._sample,
            "peek": self._peek,
        }
        self._verbs: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "put": self._put,
            "put_many": self._put_many,
            "ack_lease": self._ack_lease,
            "nack_lease": self._nack_lease,
            "has_stale": self._has_stale,
            "reserve": self._reserve,
            "release": self._release,
            "save": self._save,
            "resume": self._resume,
            "to_arrow": self._to_arrow,
            "health": self._health,
        }
        for name, verb in ShardVerbs(buffer).verbs.items():
            self._verbs[name] = partial(self._call_shard, verb)
        for name, method in METHODS.items():  # all other methods of the buffer, as they are
            if name not in self._deliveries:
                self._verbs.setdefault(name, partial(self._call_buffer, method))

    def is_buffer_verb(self, verb: str) -> bool:
        """Return whether the buffer executes a verb: it waits only for futures, so that it may start without a task."""
        return verb in self._verbs or verb in self._deliveries

    def check(self, verb: str) -> None:
        """Raise InvalidArgument for an unknown verb."""
        service, _, name = verb.partition(".")
        found = self.services.get(service)
        if not self.is_buffer_verb(verb) and (found is None or name not in found.verbs):
            raise InvalidArgument(
                f"the server has no verb {verb!r}; start it with the service that has this verb"
            )

    async def run(self, verb: str, request: Request) -> tuple[Reply, Sequence[Blob]]:
        """Execute a call; return its reply and its groups. Raises what the verb raises."""
        if verb in self._deliveries:
            delivered = await self._deliveries[verb](request)
            encoded = list(map(self._encode, delivered.groups))
            metadata, blobs = [each for each, _ in encoded], [blob for _, blob in encoded]
            reply = Reply(request.number, False, lease=delivered.lease, metadata=metadata, blobs=len(blobs))
            return reply, blobs
        if verb in self._verbs:
            value = await self._verbs[verb](request)
        else:
            service, _, name = verb.partition(".")
            value = await getattr(self.services[service], name)(**request.arguments)
        if value is None or (type(value) is int and abs(value) < 1 << 62):
            return Reply(request.number, False, integer=value), ()
        if isinstance(value, list) and len(value) > _LONG_LIST:
            return Reply(request.number, False, await asyncio.to_thread(to_bytes, value)), ()
        return Reply(request.number, False, to_bytes(value)), ()

    # --- what a client holds

    async def return_all(self, session: Session) -> None:
        """Return all leases and reservations of a client that is gone."""
        for lease in list(session.leases.values()):
            await self._buffer.end_lease(lease)
        for reservation in list(session.reservations.values()):
            await self._buffer.release(reservation)

    async def return_cancelled(self, session: Session, number: int) -> None:
        """Return the lease or the reservation of a call that the caller cancelled after it had ended."""
        lease, reservation = session.leases.pop(number, None), session.reservations.pop(number, None)
        if lease is not None:
            await self._buffer.nack_lease(lease)
        if reservation is not None:
            await self._buffer.release(reservation)

    def drop_ended(self, session: Session) -> None:
        """Drop leases and reservations from a session that have ended: their time passed, or their groups were put."""
        runtime = runtime_of(self._buffer)
        leases, reservations = runtime.leases, runtime.reservations
        session.leases = {call: lease for call, lease in session.leases.items() if lease in leases}
        session.reservations = {
            call: held for call, held in session.reservations.items() if held.id in reservations
        }

    # --- verbs that deliver groups

    async def _lease(self, request: Request) -> Deliverable:
        batch = await self._buffer.lease(**request.arguments)
        return self._leased(request, batch.id, batch.samples)

    async def _take_batch(self, request: Request) -> Deliverable:
        arguments = request.arguments
        sizes = checked_sizes(arguments.get("task_batch_sizes"))
        status = Status.of(arguments.get("group_status", Status.COMPLETED))
        is_used_once = all(self._config.for_task(task).max_times_sampled == 1 for task in sizes)
        if is_used_once or status is not Status.COMPLETED:
            return await self._lease(request)
        groups, _ = await self._buffer.take_batch(**arguments)
        lease = LeaseReply(None, False, {task: [None] * len(taken) for task, taken in groups.items()})
        return Deliverable([group for taken in groups.values() for group in taken], lease)

    async def _sample(self, request: Request) -> Deliverable:
        arguments = request.arguments
        if checked_flag("replace", arguments.get("replace", False)):
            by_task: dict[str, list[Sample]] = {}
            for sample in await self._buffer.sample(**arguments):  # ordered by task
                by_task.setdefault(sample.info.task_name, []).append(sample)
            lease = LeaseReply(None, False, encode_infos(by_task))
            return Deliverable([group for drawn in by_task.values() for group, _ in drawn], lease)
        arguments.pop("replace", None)
        allow_short = checked_flag("allow_short", arguments.pop("allow_short", False))
        sizes = batch_sizes(
            arguments.pop("n", None),
            arguments.pop("task_name", None),
            runtime_of(self._buffer).engine.rng.random,
        )
        batch = await self._buffer.lease(sizes, wait=not allow_short, **arguments)
        return self._leased(request, batch.id, batch.samples)

    async def _peek(self, request: Request) -> Deliverable:
        return Deliverable(await self._buffer.peek(**request.arguments))

    def _leased(self, request: Request, lease: int, samples: Mapping[str, Sequence[Sample]]) -> Deliverable:
        request.session.leases[request.number] = lease
        bounded = [task for task in samples if self._config.for_task(task).max_staleness is not None]
        reply = LeaseReply(lease, self._config.store is not None, encode_infos(samples), bounded)
        return Deliverable([group for drawn in samples.values() for group, _ in drawn], reply)

    # --- verbs whose arguments or results differ from the buffer's

    async def _call_buffer(self, method: Callable[..., Awaitable[Any]], request: Request) -> Any:
        return await method(self._buffer, **request.arguments)

    async def _call_shard(self, verb: Callable[..., Awaitable[Any]], request: Request) -> Any:
        return await verb(**request.arguments)

    async def _put(self, request: Request) -> int | None:
        arguments = request.arguments
        if request.blobs:
            if len(request.blobs) != 2:
                raise CorruptData(
                    "a put has the metadata and the body of one group; use the same reroll on both sides"
                )
            arguments["items"] = self._decode(request.blobs[0], request.blobs[1])
        return await self._buffer.put(**arguments)

    async def _put_many(self, request: Request) -> list[int | None]:
        heads, bodies = request.blobs[::2], request.blobs[1::2]
        if len(heads) != len(bodies):
            raise CorruptData(
                "put_many has the metadata and the body of each group; use the same reroll on both sides"
            )
        groups = [
            self._decode(head, body) if len(head) or len(body) else []
            for head, body in zip(heads, bodies, strict=True)
        ]
        return await self._buffer.put_many(groups, **request.arguments)

    async def _ack_lease(self, request: Request) -> None:
        lease = checked_count("lease", request.arguments.get("lease"))
        step = checked_step("train_step", request.arguments.get("train_step"))
        request.session.end_lease(lease)
        if 0 < lease <= self.first_lease:
            raise LeaseExpired("the groups of this lease were lost with their host, and are counted as lost")
        await self._buffer.ack_lease(lease, train_step=step)

    async def _nack_lease(self, request: Request) -> None:
        lease = checked_count("lease", request.arguments.get("lease"))
        request.session.end_lease(lease)
        await self._buffer.nack_lease(lease)

    async def _has_stale(self, request: Request) -> int:
        return int(
            runtime_of(self._buffer).leases.has_stale(checked_count("lease", request.arguments.get("lease")))
        )

    async def _reserve(self, request: Request) -> Reservation:
        reservation = await self._buffer.reserve(**request.arguments)
        request.session.reservations[request.number] = reservation
        return reservation

    async def _release(self, request: Request) -> int:
        released = await self._buffer.release(**request.arguments)
        request.session.end_reservation(request.arguments["reservation"])
        return released

    async def _save(self, request: Request) -> Any:
        request.arguments["path"] = self._checkpoint_path(request.arguments.get("path"))
        return await self._buffer.save(**request.arguments)

    async def _resume(self, request: Request) -> Any:
        request.arguments["path"] = self._checkpoint_path(request.arguments.get("path"))
        return await self._buffer.resume(**request.arguments)

    def _checkpoint_path(self, path: Any) -> Path:
        """Return the path of a checkpoint in the host's directory. Raises InvalidArgument."""
        if self._checkpoints == ANYWHERE:
            return Path(str(path))
        if self._checkpoints is None:
            raise InvalidArgument(
                "the server has no directory for checkpoints; start it with --checkpoints DIR, or keep the buffer in a store"
            )
        inside = Path(str(path))
        if inside.is_absolute() or ".." in inside.parts or "\0" in str(path):
            raise InvalidArgument(
                f"path must be a name inside the server's directory for checkpoints, not {path!r}"
            )
        return self._checkpoints / inside

    async def _to_arrow(self, request: Request) -> bytes:
        table = await self._buffer.to_arrow(**request.arguments)
        import pyarrow as pa  # noqa: PLC0415  (an extra, which the buffer has imported)

        def write() -> bytes:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            written: bytes = sink.getvalue().to_pybytes()
            return written

        return await asyncio.to_thread(write)

    async def _health(self, _request: Request) -> dict[str, Any]:
        return {
            "version": __version__,
            "groups": len(self._buffer),
            "uptime_s": time.monotonic() - self._started_at,
            "is_durable": self._config.store is not None,
            "services": sorted(self.services),
            **self._facts(),
        }
