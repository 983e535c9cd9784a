"""BufferHost: the clients of one buffer. It accepts their messages, executes their calls, and returns what they held.

Nothing in a message is trusted: a message that cannot be decoded is dropped and counted, a verb that fails is a reply, and
no client waits for another one that is slow or gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from reroll.config import ReplayBufferConfig
from reroll.errors import Closed, CorruptData, LimitReached, RerollError
from reroll.remote.dispatcher import Decode, Dispatcher, Encode, Request
from reroll.remote.eager_task import start_eagerly
from reroll.remote.groups import decode_group, encode_group
from reroll.remote.protocol import (
    VERSION,
    Call,
    ClientMessage,
    Malformed,
    Reply,
    decode_client_message,
    encode_refusal,
    protocol_version,
)
from reroll.remote.session import Limits, Session
from reroll.remote.shard import ShardPlace, build_shard, fingerprint_of
from reroll.remote.values import error_to_bytes, to_value
from reroll.store import Blob

log: Final = logging.getLogger("reroll.server")
_FAREWELL_S: Final = 2.0
"""Seconds that calls have to end when the host closes."""
_LOG_INTERVAL_S: Final = 1.0
"""Seconds between two log lines of the same kind that any peer can cause."""


class HostCarrier(Protocol):
    """Moves frames from the host to its clients."""

    def send(self, identity: bytes, frames: Sequence[Blob]) -> None:
        """Send a message to a client; a message to a client that is gone is dropped."""

    def unread_bytes(self, identity: bytes) -> int:
        """Return how many bytes were sent that the client has not read."""


class BufferHost:
    """One buffer and the sessions of its clients."""

    def __init__(
        self,
        config: ReplayBufferConfig,
        carrier: HostCarrier,
        *,
        limits: Limits,
        checkpoints: Path | None = None,
        keep: Callable[[Any], Blob] = lambda blob: blob,
        place: ShardPlace = ShardPlace(),  # noqa: B008  (immutable)
        encode: Encode = encode_group,
        decode: Decode = decode_group,
    ) -> None:
        """Build the buffer.

        Args:
            config: the configuration of the whole buffer.
            carrier: moves frames to the clients; it calls `receive` for each message that arrives.
            limits: limits on clients.
            checkpoints: directory in which clients may save and resume; None forbids both.
            keep: converts a frame that arrived into bytes that may be kept.
            place: which shard of the whole buffer this is.
            encode: encodes a delivered group.
            decode: decodes a group that is put.

        """
        self.config, self.buffer = build_shard(config, place)
        self.place = place
        self.sessions: dict[bytes, Session] = {}
        self.malformed = 0
        """Messages that could not be decoded."""
        self.refused = 0
        """Messages of another version of the protocol."""
        self.is_receiving = False
        """Whether the carrier delivers several messages at once, and calls `flush` after the last one."""
        self._carrier = carrier
        self._limits = limits
        self._keep = keep
        self._fingerprint = fingerprint_of(config)
        self._dispatcher = Dispatcher(
            self.config, self.buffer, checkpoints, self._facts, encode=encode, decode=decode
        )
        self.services = self._dispatcher.services
        self._unsent: list[Session] = []
        self._chores: set[asyncio.Future[None]] = set()
        self._logged_at: dict[str, float] = {}

    def _facts(self) -> dict[str, Any]:
        return {
            "clients": len(self.sessions),
            "malformed": self.malformed,
            "shard": str(self.place),
            "config": self._fingerprint,
        }

    @property
    def first_lease(self) -> int:
        """Leases below this number were lost with an earlier host of the same buffer."""
        return self._dispatcher.first_lease

    @first_lease.setter
    def first_lease(self, number: int) -> None:
        self._dispatcher.first_lease = number

    def is_busy(self, identity: bytes) -> bool:
        """Return whether calls of a client are being executed."""
        session = self.sessions.get(identity)
        return session is not None and bool(session.pending)

    async def close(self) -> None:
        """Stop the services, close the buffer, and send the last replies: waiting calls raise Closed."""
        for service in self.services.values():
            await service.stop()
        await self.buffer.close()
        calls = [call.task for session in self.sessions.values() for call in session.pending.values()]
        if calls:
            await asyncio.wait(calls, timeout=_FAREWELL_S)
        self.flush()
        running = [*calls, *self._chores]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # --- messages

    def receive(self, identity: bytes, first: Blob, blobs: Sequence[Any]) -> bool:
        """Accept a message of a client; never raises. Return whether it was a valid message of our version."""
        version = protocol_version(first)
        if version is not None and version != VERSION:
            self._refuse(identity, version)
            return False
        try:
            if version is None:
                raise Malformed("not a message of reroll")  # noqa: TRY301
            message = decode_client_message(first, len(blobs))
        except Malformed as error:
            self._count_malformed(identity, str(error))
            return False
        now = time.monotonic()
        if message.session is not None:
            if (other := self.sessions.get(message.session)) is not None:
                other.heard_at = now
            return True
        session = self._open_session(identity, now)
        if session is None:
            self._turn_away(identity, message)
            return True
        session.heard_at = now
        for number in message.received:
            session.received(number)
        start = 0
        for call in message.calls:
            self._accept(session, call, blobs[start : start + call.blobs])
            start += call.blobs
        for number in message.cancelled:
            self._cancel(session, number)
        if message.is_goodbye:
            self._start_chore(self._end_session(session))
        if message.waiting is not None:
            session.report_lost(message.waiting)
        self._post(session)
        return True

    def _accept(self, session: Session, call: Call, blobs: Sequence[Any]) -> None:
        """Execute a call, unless it was executed before."""
        if session.has_seen(call.number):
            return
        num_bytes = len(call.arguments) + sum(map(len, blobs))
        try:
            session.check_limits(num_bytes, self._limits)
        except LimitReached as error:
            session.refuse(Reply(call.number, True, error_to_bytes(error)))
            return
        work = self._execute(session, call, list(map(self._keep, blobs)))
        is_eager = self._dispatcher.is_buffer_verb(call.verb)
        task = start_eagerly(work) if is_eager else asyncio.create_task(work)
        if not task.done():
            session.begin(call.number, task, num_bytes)
            # Not in `_execute`: a task that is cancelled before its first step never enters it.
            task.add_done_callback(lambda _: session.end(call.number))

    async def _execute(self, session: Session, call: Call, blobs: Sequence[Blob]) -> None:
        groups: Sequence[Blob] = ()
        try:
            self._dispatcher.check(call.verb)
            arguments = to_value(call.arguments, max_bytes=self._limits.max_pending_bytes)
            if type(arguments) is not dict or not all(type(name) is str for name in arguments):
                raise CorruptData("the arguments of a call must be a dict by name")  # noqa: TRY301
            request = Request(session, call.number, arguments, blobs)
            reply, groups = await self._dispatcher.run(call.verb, request)
        except Exception as error:  # every error is a reply
            if not isinstance(error, RerollError | TypeError | ImportError):
                extra = {"client": session.name, "verb": call.verb}
                log.warning("call failed", extra=extra, exc_info=error)
            reply = Reply(call.number, True, error_to_bytes(error))
        session.answer(reply, groups)
        self._post(session)

    def _cancel(self, session: Session, number: int) -> None:
        """Cancel a call that waits; return the lease or reservation of one that has ended."""
        call = session.pending.get(number)
        if call is not None:
            call.task.cancel()
            return
        session.received(number)
        if session.holds(number):
            self._start_chore(self._dispatcher.return_cancelled(session, number))

    def _post(self, session: Session) -> None:
        """Send what a session has to send, together with what other calls of this moment add."""
        if not self._unsent and not self.is_receiving:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(session)

    def flush(self) -> None:
        """Send everything that is to be sent; a client that does not read gets nothing until it does."""
        unsent, self._unsent = self._unsent, []
        length, limits = len(self.buffer), self._limits
        for session in unsent:
            if session.has_unsent and self._carrier.unread_bytes(session.identity) < limits.max_pending_bytes:
                self._carrier.send(session.identity, session.take_unsent(length, limits.max_message_bytes))

    def _refuse(self, identity: bytes, version: int) -> None:
        self.refused += 1
        self._log("refused", reason="protocol", version=version, count=self.refused)
        text = (
            f"the server has protocol {VERSION}, the client {version}; install the same reroll on both sides"
        )
        self._carrier.send(identity, encode_refusal(text))

    def _count_malformed(self, identity: bytes, reason: str) -> None:
        self.malformed += 1
        client = identity.hex()[:12]
        self._log("malformed message", client=client, reason=reason[:200], count=self.malformed)

    def _log(self, message: str, **extra: Any) -> None:
        """Log a warning that any peer can cause, at most one of its kind each second."""
        now = time.monotonic()
        if now - self._logged_at.get(message, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_at[message] = now
            log.warning(message, extra=extra)

    # --- sessions

    def _open_session(self, identity: bytes, now: float) -> Session | None:
        """Return the session of a client; None if there are as many clients as the limit allows."""
        session = self.sessions.get(identity)
        if session is None and len(self.sessions) < self._limits.max_clients:
            session = self.sessions[identity] = Session(identity, now)
            log.info("client connected", extra={"client": session.name, "clients": len(self.sessions)})
        return session

    def _turn_away(self, identity: bytes, message: ClientMessage) -> None:
        most = self._limits.max_clients
        error = LimitReached(f"the server has {most} clients and accepts no more; raise max_clients")
        session = Session(identity, 0.0)
        for call in message.calls:
            session.refuse(Reply(call.number, True, error_to_bytes(error)))
        self._post(session)

    async def end_silent_sessions(self, paused_s: float) -> None:
        """End the sessions of clients that were silent for `client_ttl_s`; call it several times within that time.

        Args:
            paused_s: seconds since the last call in which the host was stopped or busy: clients get this time in addition.

        """
        now = time.monotonic()
        for session in self.sessions.values():
            session.heard_at = min(now, session.heard_at + paused_s)
        for session in list(self.sessions.values()):
            if now - session.heard_at > self._limits.client_ttl_s:
                await self._quietly(self._end_session(session))
            else:
                self._dispatcher.drop_ended(session)

    async def _end_session(self, session: Session) -> None:
        """Cancel all calls of a client, and return all that it holds."""
        if self.sessions.pop(session.identity, None) is not session:
            return
        extra = {"calls": len(session.pending), "leases": len(session.leases), "clients": len(self.sessions)}
        log.info("client gone", extra={"client": session.name, **extra})
        for call in list(session.pending.values()):
            call.task.cancel()
        await self._dispatcher.return_all(session)

    def _start_chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.create_task(self._quietly(work))
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    @staticmethod
    async def _quietly(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Closed:
            pass  # a buffer that closes returns all leases and reservations
        except Exception as error:  # the other clients must not be affected
            log.warning("returning leases failed", exc_info=error)
