"""BufferActor: one shard in an actor of Ray. It carries frames to a `BufferHost`, and Ray restarts it after any crash.

A shard with a store opens it again. Of a shard without one, what it had is counted as lost (`losses`).
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ray.util.metrics import Gauge

from reroll.config import ReplayBufferConfig
from reroll.errors import Closed, StoreLocked
from reroll.ray.losses import Losses
from reroll.ray.transport import Message, Packet, decode_with_refs, encode_with_refs, keep_blob
from reroll.remote.dispatcher import ANYWHERE
from reroll.remote.host import BufferHost
from reroll.remote.malloc import keep_freed_memory
from reroll.remote.session import Limits
from reroll.remote.shard import ShardPlace
from reroll.telemetry.metrics import NUMBERS
from reroll.telemetry.stats import Stats

_UNBOUNDED: Final = 1 << 60
"""Clients of a cluster are trusted: only silence ends a session."""
_POLL_S: Final = 30.0
"""Seconds after which an exchange returns without a message."""
_ORDER_S: Final = 1.0
"""Seconds that an exchange waits for an earlier one, which Ray may start later."""
_LOCKED_S: Final = 30.0
"""Seconds that a new process waits until the previous one has released the store."""
_GAUGES_S: Final = 10.0
"""Seconds between two updates of Ray's gauges."""
_FAREWELL_S: Final = 5.0
"""Seconds that the last replies have to leave when the buffer is closed."""


class BufferSpec(NamedTuple):
    """What a handle and the actors of a buffer are made from."""

    name: str
    namespace: str
    num_shards: int
    config: ReplayBufferConfig
    life: str
    """Another buffer of the same name has another."""
    holder_ttl_s: float
    unreachable_s: float
    keep_refs: bool

    def actor_name(self, shard: int) -> str:
        """Return the name of a shard's actor."""
        return f"reroll:{self.name}:{shard}"

    def key(self, shard: int) -> str:
        """Return the key of a shard's record, unique in the cluster."""
        return f"{self.namespace}/{self.actor_name(shard)}"


@dataclass(slots=True)
class _Line:
    """Exchanges of one session."""

    outbox: list[Message] = field(default_factory=list)
    waiting: "list[asyncio.Future[None]]" = field(default_factory=list)
    """Exchanges that wait for a message."""
    last: int | None = None
    """Number of the newest exchange that was received."""
    turns: "dict[int, asyncio.Future[None]]" = field(default_factory=dict)
    """Exchanges that wait for an earlier one, by number."""


class BufferActor:
    """The actor. Its methods are for handles only."""

    def __init__(self, spec: BufferSpec, shard: int, setup: Callable[[], None] | None = None) -> None:
        keep_freed_memory()
        self._spec, self._shard, self._setup = spec, shard, setup
        self._host: BufferHost | None = None
        self._losses: Losses | None = None
        self._opening: asyncio.Task[BufferHost] | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._lines: dict[bytes, _Line] = {}
        self._num_exchanges = 0
        self._is_closed = False

    # --- methods for handles

    async def exchange(self, session: bytes, number: int, packet: Packet) -> tuple[Packet, bool]:
        """Receive messages of a client; return those for it, when there is one or nothing to wait for.

        Args:
            session: the client.
            number: the number of this exchange within the session.
            packet: the messages of the client.

        Returns:
            Messages for the client, and whether calls of it still wait.

        """
        host = await self._open()
        line = self._lines.setdefault(session, _Line())
        self._num_exchanges += 1
        try:
            await _take_turn(line, number)
            host.is_receiving = True
            for first, *blobs in packet.messages():
                host.receive(session, first, blobs)
            host.is_receiving = False
            host.flush()
            end = time.monotonic() + _POLL_S
            while not line.outbox and host.is_busy(session) and (left := end - time.monotonic()) > 0:
                waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                line.waiting.append(waiting)
                await asyncio.wait([waiting], timeout=left)
                if waiting in line.waiting:
                    line.waiting.remove(waiting)
            if line.outbox and self._losses is not None and not self._is_closed:
                await self._losses.record()
            messages, line.outbox = line.outbox, []
            return Packet.of(messages), host.is_busy(session)
        finally:
            self._num_exchanges -= 1

    async def heartbeat(self, message: bytes) -> None:
        """Register that a client is alive whose event loop is busy."""
        (await self._open()).receive(b"", message, ())

    async def ready(self) -> Exception | None:
        """Return why the buffer cannot be opened; None if it is open."""
        try:
            await self._open()
        except Exception as error:  # noqa: BLE001  (the creator raises it)
            return error
        return None

    async def spec(self) -> BufferSpec:
        """Return what a handle is made from."""
        return self._spec

    async def size(self) -> int:
        """Return the number of groups."""
        return len((await self._open()).buffer)

    async def pid(self) -> int:
        """Return the process of this shard."""
        return os.getpid()

    async def close(self) -> None:
        """Close the buffer, and return when the last replies have left."""
        host = await self._open()
        self._is_closed = True
        for chore in self._chores:
            chore.cancel()
        await host.close()
        end = time.monotonic() + _FAREWELL_S
        for line in self._lines.values():
            _wake(line, len(line.waiting))
        while self._num_exchanges and time.monotonic() < end:  # noqa: ASYNC110  (once, at the end)
            await asyncio.sleep(0.01)

    # --- HostCarrier

    def send(self, identity: bytes, frames: Message) -> None:
        """Send a message to a client, with one of its exchanges; see `HostCarrier`."""
        line = self._lines.setdefault(identity, _Line())
        line.outbox.append(frames)
        _wake(line, 1)

    def unread_bytes(self, _identity: bytes) -> int:
        """Return 0: a client has an exchange under way whenever it expects a message."""
        return 0

    # --- open

    async def _open(self) -> BufferHost:
        if self._is_closed:
            raise Closed("the buffer was closed")
        if self._host is not None:
            return self._host
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._build())
        try:
            return await asyncio.shield(self._opening)
        finally:
            if self._opening is not None and self._opening.done():
                self._opening = None

    async def _build(self) -> BufferHost:
        if self._setup is not None:
            self._setup()
        spec = self._spec
        host = await self._build_host()
        is_durable = spec.config.store is not None
        losses = Losses(spec.key(self._shard), spec.life, host.buffer, is_durable=is_durable)
        host.first_lease = await losses.recover()
        self._host, self._losses = host, losses
        self._chores = [asyncio.ensure_future(self._sweep()), asyncio.ensure_future(self._set_gauges())]
        return host

    async def _build_host(self) -> BufferHost:
        deadline = time.monotonic() + _LOCKED_S
        limits = Limits(
            max_clients=_UNBOUNDED,
            max_message_bytes=_UNBOUNDED,
            max_pending_calls=_UNBOUNDED,
            max_pending_bytes=_UNBOUNDED,
            client_ttl_s=self._spec.holder_ttl_s,
        )
        while True:
            try:
                return BufferHost(
                    self._spec.config,
                    self,
                    limits=limits,
                    checkpoints=ANYWHERE,
                    keep=keep_blob,
                    place=ShardPlace(self._shard, self._spec.num_shards),
                    encode=encode_with_refs,
                    decode=decode_with_refs,
                )
            except StoreLocked:  # by the previous process of this shard, which is about to end
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    # --- chores

    async def _sweep(self) -> None:
        """Four times within `holder_ttl_s`, end the sessions of silent clients."""
        interval_s = self._spec.holder_ttl_s / 4
        assert self._host is not None  # noqa: S101  (it is open)
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(interval_s)
            await self._host.end_silent_sessions(time.monotonic() - slept_at - interval_s)
            for session in self._lines.keys() - self._host.sessions.keys():
                if not self._lines[session].waiting:
                    del self._lines[session]

    async def _set_gauges(self) -> None:
        """Set Ray's gauges from time to time, until the buffer is closed."""
        assert self._host is not None  # noqa: S101  (it is open)
        gauges = Gauges(f"{self._spec.namespace}/{self._spec.name}", self._shard)
        with suppress(Closed):
            while True:
                gauges.set(await self._host.buffer.stats())
                await asyncio.sleep(_GAUGES_S)


async def _take_turn(line: _Line, number: int) -> None:
    """Return when the earlier exchanges of a session were received: Ray may start one with large arguments later."""
    if line.last is not None and number > line.last + 1:
        turn = line.turns[number] = asyncio.get_running_loop().create_future()
        await asyncio.wait([turn], timeout=_ORDER_S)
        line.turns.pop(number, None)
    line.last = max(line.last or 0, number)
    following = line.turns.pop(line.last + 1, None)
    if following is not None and not following.done():
        following.set_result(None)


def _wake(line: _Line, count: int) -> None:
    """Wake exchanges that wait, the oldest first."""
    for waiting in line.waiting[:count]:
        line.waiting.remove(waiting)
        if not waiting.done():
            waiting.set_result(None)


# --- gauges


class Point(NamedTuple):
    """A value of a gauge."""

    gauge: str
    help: str
    task: str
    """"" is all tasks."""
    value: float


def points_of(stats: Stats) -> Iterator[Point]:
    """Yield all known numbers, over all tasks and for each: `gen/groups` is `reroll_gen_groups`."""
    for name, (metric, key) in NUMBERS.items():
        gauge = "reroll_" + re.sub(r"\W", "_", name)
        for task, part in {"": stats.total, **stats.tasks}.items():
            value = metric.read(part, key)
            if value is not None:
                yield Point(gauge, metric.help, task, float(value))


class Gauges:
    """The metrics of a shard as gauges of Ray: the cluster's dashboard and Prometheus show them."""

    def __init__(self, buffer: str, shard: int) -> None:
        self._tags: Mapping[str, str] = {"buffer": buffer, "shard": str(shard)}
        self._gauges: dict[str, Gauge] = {}

    def set(self, stats: Stats) -> None:
        """Set all gauges."""
        for point in points_of(stats):
            if point.gauge not in self._gauges:
                tags: Sequence[str] = (*self._tags, "task")
                self._gauges[point.gauge] = Gauge(point.gauge, point.help, tag_keys=tuple(tags))
            self._gauges[point.gauge].set(point.value, tags={**self._tags, "task": point.task})
