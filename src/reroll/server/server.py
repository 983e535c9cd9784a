"""Server: one buffer, one socket, many clients.

It reads messages, carries out each call, in a task of its own if it has to wait, and sends what came of it. What a message holds is never trusted: one that
cannot be read is dropped and counted, a verb that fails is an answer, and nobody waits for a client that is slow or gone.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import zmq

from reroll import forking
from reroll.config import ReplayBufferConfig
from reroll.errors import Closed, CorruptData, InvalidConfig, LimitReached, RerollError
from reroll.remote.failures import failure_to_bytes
from reroll.remote.starting import start
from reroll.remote.values import to_value
from reroll.server.gate import Gate
from reroll.server.keys import check_can_be_open, read_allowed, read_pair
from reroll.server.limits import Limits
from reroll.server.port import Port, kept
from reroll.server.serving import Service, Serving
from reroll.server.session import Session
from reroll.server.silence import Silent
from reroll.server.wire import (
    VERSION,
    Answer,
    Call,
    Malformed,
    ToServer,
    read_to_server,
    refusal,
    version_of,
)
from reroll.store import Blob
from reroll.waiting import Once

log: Final = logging.getLogger("reroll.server")
_UNREAD: Final = 1024
"""Messages that wait for a client to read them. What has more bytes than a small one is counted, see `Session`."""
_WAITING: Final = 64
"""Messages of a client that wait to be read by the server."""
_FAREWELL_S: Final = 2.0
"""How long the last answers have to leave when the server stops."""

_SILENT_S: Final = 10.0
"""A connection has so long for its first message."""
_TOLD_EVERY_S: Final = 1.0
"""Seconds between two log lines of the same kind that any peer can cause."""


class Server:
    """A buffer that others reach over tcp or ipc; see `reroll.connect`."""

    def __init__(
        self,
        config: ReplayBufferConfig,
        bind: str,
        *,
        key: str | PathLike[str] | None = None,
        allow: str | PathLike[str] | None = None,
        limits: Limits | None = None,
        checkpoints: str | PathLike[str] | None = None,
    ) -> None:
        """Make a server; `await start()` starts it, or `async with`.

        Args:
            config: the buffer; with a store it is durable.
            bind: where: `tcp://127.0.0.1:5555`, `tcp://*:5555`, `ipc:///tmp/buffer.sock`. Port 0 is any that is free.
            key: file with the server's key pair; without it only this host can connect.
            allow: file with the public keys of those who may connect, one a line.
            limits: what each client may take up.
            checkpoints: directory in which clients may `save` and `resume`; None: nowhere.

        Raises InvalidConfig for an address that others can reach, without keys.

        """
        if (key is None) != (allow is None):
            raise InvalidConfig(
                "give both, key and allow: who the server is, and who may connect; or neither"
            )
        if not bind.startswith(("tcp://", "ipc://")):
            raise InvalidConfig(
                f"{bind!r} is no address to serve at; write tcp://127.0.0.1:5555, tcp://*:5555 or ipc:///tmp/buffer.sock"
            )
        if key is None:
            check_can_be_open(bind)
        self._pair = None if key is None else read_pair(key)
        self._allowed = None if allow is None else read_allowed(allow)
        self._limits = limits or Limits()
        self._bind = bind
        self.config = config
        self.buffer = config.build()
        self._services: dict[str, Service] = {}
        self._serving = Serving(
            config,
            self.buffer,
            self._services,
            None if checkpoints is None else Path(checkpoints),
            facts=lambda: {"clients": len(self._sessions), "malformed": self.malformed},
        )
        self._home = forking.here()
        self._sessions: dict[bytes, Session] = {}
        self._unsent: list[Session] = []
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._port: Port | None = None
        self._gate: Gate | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping: Once[None] = Once()
        self._chores: set[asyncio.Task[None]] = set()
        self._told: dict[str, float] = {}
        self.address = bind
        """Where it is, once it has started."""
        self.malformed = 0
        """Messages that could not be read."""
        self.refused = 0
        """Messages of another version of the protocol."""

    def add_service(self, name: str, service: Service) -> None:
        """Serve something else beside the buffer: clients `ask("name.verb", {...})`."""
        forking.check(self._home, "the server")
        self._services[name] = service

    # --- its life

    async def start(self) -> Self:
        """Bind, and serve from now on. Raises InvalidConfig if the address cannot be had."""
        forking.check(self._home, "the server")
        self._context = context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that connects anew is the same client
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.max_message_bytes)
        # Who does not read gets no more: what is dropped here, a client that reads again asks for.
        socket.setsockopt(zmq.SNDHWM, _UNREAD)
        socket.setsockopt(zmq.RCVHWM, _WAITING)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, "[" in self._bind)
        self._silent = Silent(max(_SILENT_S, self._limits.client_ttl_s), self._limits.max_clients)
        self._gate = Gate(context, socket, self._pair, self._allowed, self._silent)
        self._gate.open()
        try:
            socket.bind(self._bind)
        except zmq.ZMQError as error:
            self._gate.close()
            socket.close()
            context.term()
            raise InvalidConfig(f"{self._bind} cannot be bound to: {error}") from error
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = Port(socket, self._receive, all_read=self._flush)
        self._sweeper = asyncio.create_task(self._sweep(), name="reroll-sweep")
        log.info(
            "serving",
            extra={
                "address": self.address,
                "groups": len(self.buffer),
                "is_encrypted": self._pair is not None,
            },
        )
        return self

    async def stop(self) -> None:
        """Stop: whoever waits gets Closed, leases come back, the store is closed. A second call waits for the first."""
        if self._port is not None and not forking.is_elsewhere(self._home):
            await self._stopping.run(self._stop)

    async def _stop(self) -> None:
        assert self._port is not None  # noqa: S101  (it was started)
        for service in self._services.values():
            await service.stop()
        await self.buffer.close()
        calls = [p.task for session in self._sessions.values() for p in session.pending.values()]
        if calls:
            await asyncio.wait(calls, timeout=_FAREWELL_S)
        self._flush()
        for task in (self._sweeper, *calls, *self._chores):
            if task is not None:
                task.cancel()
        await asyncio.gather(
            *(t for t in (self._sweeper, *calls, *self._chores) if t), return_exceptions=True
        )
        self._port.close(_FAREWELL_S)
        self._port = None
        assert self._gate is not None  # noqa: S101  (it was started)
        assert self._context is not None  # noqa: S101
        self._gate.close()
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
        """Take a message in. Whatever it holds, this does not raise."""
        identity = frames[0].bytes
        try:
            first = frames[1].buffer if len(frames) > 1 else b""
            version = version_of(first)
            if version is None:
                self._count_malformed(identity, "no message of reroll")
                return
            if version != VERSION:
                self._refuse(identity, version)
                return
            message = read_to_server(first, len(frames) - 2)
        except Malformed as error:
            self._count_malformed(identity, str(error))
            return
        if len(self._silent):
            self._silent.spoke(int(frames[0].get(zmq.SRCFD)))
        if message.session is not None:
            if (other := self._sessions.get(message.session)) is not None:
                other.heard_at = time.monotonic()
            return
        session = self._session(identity)
        if session is None:
            self._turn_away(identity, message)
            return
        session.heard_at = time.monotonic()
        for number in message.received:
            session.received(number)
        blobs_at = 2
        for call in message.calls:
            blobs = frames[blobs_at : blobs_at + call.blobs]
            blobs_at += call.blobs
            self._begin(session, call, blobs)
        for number in message.cancelled:
            self._cancel(session, number)
        if message.is_goodbye:
            self._do(self._end(session))
        if message.waiting is not None:
            session.report_lost(message.waiting)
        self._post(session)

    def _begin(self, session: Session, call: Call, blobs: Sequence[Any]) -> None:
        if session.is_known(call.number):
            return
        num_bytes = len(call.arguments) + sum(map(len, blobs))
        try:
            self._check_limits(session, num_bytes)
        except LimitReached as error:
            session.refuse(Answer(call.number, True, failure_to_bytes(error)))
            return
        work = self._carry_out(session, call, list(map(kept, blobs)))
        task = start(work) if self._serving.is_of_buffer(call.verb) else asyncio.create_task(work)
        if not task.done():
            session.begin(call.number, task, num_bytes)
            # Here, and not in the call itself: one that is cancelled before its first step never runs.
            task.add_done_callback(lambda _: session.end(call.number))

    def _check_limits(self, session: Session, num_bytes: int) -> None:
        limits = self._limits
        if len(session.pending) >= limits.max_pending_calls:
            raise LimitReached(
                f"{len(session.pending)} calls of this client have no answer yet, and the server allows "
                f"{limits.max_pending_calls}; wait for some of them, or raise max_pending_calls"
            )
        if session.num_bytes + num_bytes > limits.max_pending_bytes:
            raise LimitReached(
                f"{session.num_bytes + num_bytes} bytes of this client would be under way, and the server allows "
                f"{limits.max_pending_bytes}; send less at once, or raise max_pending_bytes"
            )

    async def _carry_out(self, session: Session, call: Call, blobs: Sequence[Blob]) -> None:
        try:
            self._serving.check(call.verb)
            arguments = to_value(call.arguments, max_bytes=self._limits.max_pending_bytes)
            if type(arguments) is not dict or not all(type(name) is str for name in arguments):
                raise CorruptData("the arguments of a call are a dict by name")  # noqa: TRY301
            answer, groups = await self._serving.carry_out(session, call.number, call.verb, arguments, blobs)
        except Exception as error:  # whatever it is, the client is told, and nobody else is hurt
            if not isinstance(error, RerollError | TypeError | ImportError):
                log.warning(
                    "call failed",
                    extra={"client": session.name, "verb": call.verb},
                    exc_info=error,
                )
            answer, groups = Answer(call.number, True, failure_to_bytes(error)), []
        session.answer(answer, groups)
        self._post(session)

    def _cancel(self, session: Session, number: int) -> None:
        pending = session.pending.get(number)
        if pending is not None:
            pending.task.cancel()
        else:
            session.received(number)
            if session.holds(number):
                self._do(self._serving.cancelled(session, number))

    def _post(self, session: Session) -> None:
        """Send what a client is to get, after others that are about to add to it have done so."""
        if not self._unsent and not (self._port is not None and self._port.is_reading):
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(session)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._port is None:
            return
        length = len(self.buffer)
        for session in unsent:
            if session.has_mail and session.unread_bytes < self._limits.max_pending_bytes:
                self._port.send(session.mail(length, self._limits.max_message_bytes))

    def _refuse(self, identity: bytes, version: int) -> None:
        self.refused += 1
        if self._may_tell("refused"):
            log.warning("refused", extra={"reason": "protocol", "version": version, "count": self.refused})
        assert self._port is not None  # noqa: S101  (it received something)
        text = f"this server speaks protocol {VERSION}, and the client speaks {version}; install the same reroll on both sides"
        self._port.send([identity, *refusal(text)])

    def _count_malformed(self, identity: bytes, reason: str) -> None:
        self.malformed += 1
        if self._may_tell("malformed"):
            log.warning(
                "malformed message",
                extra={"client": identity.hex()[:12], "reason": reason[:200], "count": self.malformed},
            )

    def _may_tell(self, kind: str) -> bool:
        """Return whether the log may have a line of this kind: one a second, however many messages there are."""
        now = time.monotonic()
        if now - self._told.get(kind, -_TOLD_EVERY_S) < _TOLD_EVERY_S:
            return False
        self._told[kind] = now
        return True

    # --- clients come and go

    def _session(self, identity: bytes) -> Session | None:
        """Return the session of a client, None for one more than are allowed."""
        session = self._sessions.get(identity)
        if session is None:
            if len(self._sessions) >= self._limits.max_clients:
                return None
            session = self._sessions[identity] = Session(identity, time.monotonic())
            log.info("client connected", extra={"client": session.name, "clients": len(self._sessions)})
        return session

    def _turn_away(self, identity: bytes, message: ToServer) -> None:
        session, allowed = Session(identity, 0.0), self._limits.max_clients
        error = LimitReached(f"the server has {allowed} clients and takes no more; raise max_clients")
        for call in message.calls:
            session.refuse(Answer(call.number, True, failure_to_bytes(error)))
        self._post(session)

    async def _sweep(self) -> None:
        """End the sessions of clients that are silent for too long, and forget what others do not hold any more."""
        ttl = self._limits.client_ttl_s
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(ttl / 4)
            # A server that was stopped, or busy, did not listen for that long: its clients get the same time again.
            late = time.monotonic() - looked_at - ttl / 4
            if self._port is not None:
                await self._port.read_waiting(2 * len(self._sessions))
            looked_at = now = time.monotonic()
            self._silent.end_old()
            for session in self._sessions.values():
                session.heard_at = min(now, session.heard_at + late)
            for session in list(self._sessions.values()):
                if now - session.heard_at > ttl:
                    await self._end(session)
                else:
                    self._serving.forget_ended(session)

    async def _end(self, session: Session) -> None:
        if self._sessions.pop(session.identity, None) is not session:
            return
        log.info(
            "client gone",
            extra={
                "client": session.name,
                "calls": len(session.pending),
                "leases": len(session.leases),
                "clients": len(self._sessions),
            },
        )
        for pending in list(session.pending.values()):
            pending.task.cancel()
        await self._quietly(self._serving.give_back(session))

    def _do(self, work: Any) -> None:
        chore = asyncio.create_task(self._quietly(work))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    @staticmethod
    async def _quietly(work: Any) -> None:
        try:
            await work
        except Closed:
            pass  # closing gave everything back
        except Exception as error:  # others go on
            log.warning("giving back failed", exc_info=error)
