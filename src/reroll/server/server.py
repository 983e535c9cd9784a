"""Server: one buffer on a ZeroMQ socket, for many clients."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import zmq

from reroll import forking
from reroll.config import ReplayBufferConfig
from reroll.errors import InvalidConfig
from reroll.remote.dispatcher import Service
from reroll.remote.host import BufferHost
from reroll.remote.session import Limits
from reroll.remote.shard import ShardPlace
from reroll.server.auth import (
    HANDSHAKES_AT,
    Authenticator,
    DenialLog,
    read_allowed,
    read_key_pair,
    require_keys,
)
from reroll.server.monitor import EVENTS, ConnectionMonitor
from reroll.server.socket import AsyncSocket, Frame, blob_to_frame, frame_to_blob
from reroll.store import Blob
from reroll.waiting import Once

log: Final = logging.getLogger("reroll.server")
_MAX_UNREAD: Final = 1024
"""Messages that wait for a client to read them; the bytes of large ones are limited, too."""
_MAX_ARRIVED: Final = 64
"""Messages of a client that wait for the server to read them."""
_SMALL_BYTES: Final = 16 * 1024
"""Smaller messages do not count towards the unread bytes of a client."""
_FAREWELL_S: Final = 2.0
"""Seconds that the last replies have to leave when the server stops."""
_SILENT_S: Final = 10.0
"""Seconds that a connection has for its first message."""


class Server:
    """A buffer that clients reach over tcp or ipc; see `reroll.connect`."""

    def __init__(
        self,
        config: ReplayBufferConfig,
        bind: str,
        *,
        key: str | PathLike[str] | None = None,
        allow: str | PathLike[str] | None = None,
        limits: Limits | None = None,
        checkpoints: str | PathLike[str] | None = None,
        shard: str | None = None,
    ) -> None:
        """Create a server; `await start()` or `async with` starts it.

        Args:
            config: the buffer; with a store it is durable.
            bind: `tcp://127.0.0.1:5555`, `tcp://*:5555`, or `ipc:///tmp/buffer.sock`. Port 0 is any free port.
            key: file with the server's key pair; without it only this host can connect.
            allow: file with the public keys of permitted clients, one on each line.
            limits: limits on clients.
            checkpoints: directory in which clients may `save` and `resume`; None forbids both.
            shard: this server's part of the buffer, such as "0/2": the first of two. All get the same `config`.

        Raises:
            InvalidConfig: the address is invalid, other hosts can reach it and there are no keys, or the configuration cannot
                be divided among the shards.

        Example:
            `async with Server(ReplayBufferConfig(), "tcp://127.0.0.1:5555") as server: ...`

        """
        if (key is None) != (allow is None):
            raise InvalidConfig(
                "key (the server's key pair) and allow (permitted public keys) must be given together"
            )
        if not bind.startswith(("tcp://", "ipc://")):
            raise InvalidConfig(
                f"invalid bind address {bind!r}; use tcp://127.0.0.1:5555, tcp://*:5555 or ipc:///tmp/buffer.sock"
            )
        if key is None:
            require_keys(bind)
        self._pair = None if key is None else read_key_pair(key)
        self._allowed = {} if allow is None else read_allowed(allow)
        self._limits = limits or Limits()
        self._bind = bind
        self._home = forking.here()
        self.host = BufferHost(
            config,
            self,
            limits=self._limits,
            checkpoints=None if checkpoints is None else Path(checkpoints),
            keep=frame_to_blob,
            place=ShardPlace() if shard is None else ShardPlace.read(shard),
        )
        self.config = self.host.config
        self.buffer = self.host.buffer
        self.denials = DenialLog()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: AsyncSocket | None = None
        self._others: list[AsyncSocket] = []
        self._unread: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping: Once[None] = Once()
        self.address = bind
        """Where the server listens, once it has started."""

    @property
    def malformed(self) -> int:
        """Messages that could not be decoded."""
        return self.host.malformed

    def add_service(self, name: str, service: Service) -> None:
        """Serve another object beside the buffer: clients call `ask("name.verb", {...})`."""
        forking.check(self._home, "the server")
        self.host.services[name] = service

    # --- start and stop

    async def start(self) -> Self:
        """Bind, and serve from now on. Raises InvalidConfig if the address is not available."""
        forking.check(self._home, "the server")
        self._context = context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that connects again is the same client
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.max_message_bytes)
        # A client that does not read gets no more; when it reads again, it asks for the replies that were dropped.
        socket.setsockopt(zmq.SNDHWM, _MAX_UNREAD)
        socket.setsockopt(zmq.RCVHWM, _MAX_ARRIVED)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, "[" in self._bind)
        self._guard(context, socket)
        try:
            socket.bind(self._bind)
        except zmq.ZMQError as error:
            socket.disable_monitor()
            for other in self._others:
                other.close()
            socket.close()
            context.term()
            raise InvalidConfig(f"cannot bind to {self._bind}: {error}") from error
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._socket = AsyncSocket(socket, self._receive, on_read=self._on_read)
        self._sweeper = asyncio.create_task(self._sweep(), name="reroll-sweep")
        extra = {"groups": len(self.buffer), "is_encrypted": self._pair is not None}
        log.info("serving", extra={"address": self.address, **extra})
        return self

    def _guard(self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]") -> None:
        """Monitor the connections of the socket, and admit only permitted keys, if there are keys."""
        silent_s = max(_SILENT_S, self._limits.client_ttl_s)
        self._monitor = ConnectionMonitor(self.denials, silent_s, self._limits.max_clients)
        self._others = [AsyncSocket(socket.get_monitor_socket(EVENTS), self._monitor.handle)]
        if self._pair is None:
            return
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, self._pair.secret)
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self._pair.public)
        socket.setsockopt(zmq.ZAP_DOMAIN, b"reroll")
        authenticator = Authenticator(self._allowed, self.denials)
        asking = context.socket(zmq.REP)
        asking.bind(HANDSHAKES_AT)
        handshakes = AsyncSocket(asking, lambda frames: handshakes.send(authenticator.answer(frames)))
        self._others.append(handshakes)

    async def stop(self) -> None:
        """Stop: waiting calls raise Closed, leases return, the store is closed. A second call waits for the first."""
        if self._socket is not None and not forking.is_elsewhere(self._home):
            await self._stopping.run(self._stop)

    async def _stop(self) -> None:
        assert self._socket is not None  # noqa: S101  (it was started)
        assert self._context is not None  # noqa: S101
        assert self._sweeper is not None  # noqa: S101
        await self.host.close()
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        self._socket.close(_FAREWELL_S)
        self._socket = None
        for other in self._others:
            other.close()
        await asyncio.to_thread(self._context.term)
        log.info("stopped", extra={"address": self.address})

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- messages

    def _receive(self, frames: Sequence[Any]) -> None:
        """Pass a message to the host; never raises."""
        identity = frames[0].bytes
        first: Blob = frames[1].buffer if len(frames) > 1 else b""
        is_valid = self.host.receive(identity, first, frames[2:])
        if is_valid and self._monitor.has_silent:
            self._monitor.has_sent(int(frames[0].get(zmq.SRCFD)))

    def _on_read(self, is_reading: bool) -> None:
        self.host.is_receiving = is_reading
        if not is_reading:
            self.host.flush()

    def send(self, identity: bytes, frames: Sequence[Blob]) -> None:
        """Send a message to a client; see `HostCarrier`."""
        if self._socket is None:
            return
        parts: list[Frame] = [identity, *map(blob_to_frame, frames)]
        num_bytes = sum(map(len, parts))
        if num_bytes >= _SMALL_BYTES:
            tracked = zmq.Frame(frames[0], track=True, copy=False, copy_threshold=0)
            self._unread.setdefault(identity, deque()).append((tracked.tracker, num_bytes))
            parts[1] = tracked
        self._socket.send(parts)

    def unread_bytes(self, identity: bytes) -> int:
        """Return the bytes of large messages that a client has not read; see `HostCarrier`."""
        unread = self._unread.get(identity)
        if unread is None:
            return 0
        while unread and unread[0][0].done:
            unread.popleft()
        if not unread:
            del self._unread[identity]
        return sum(num_bytes for _, num_bytes in unread)

    async def _sweep(self) -> None:
        """Four times within `client_ttl_s`, end silent sessions and connections."""
        interval_s = self._limits.client_ttl_s / 4
        swept_at = time.monotonic()
        while True:
            await asyncio.sleep(interval_s)
            paused_s = time.monotonic() - swept_at - interval_s
            if self._socket is not None:  # heartbeats that arrived while the server was stopped or busy
                await self._socket.drain(2 * len(self.host.sessions))
            swept_at = time.monotonic()
            self._monitor.close_silent()
            for identity in list(self._unread):
                self.unread_bytes(identity)
            await self.host.end_silent_sessions(paused_s)
