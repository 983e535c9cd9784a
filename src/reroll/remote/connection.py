"""Connection: the calls of one client, overlapping, each repeated until its reply arrives.

Calls of one moment share a message. A heartbeat names the calls without a reply; the host answers which of them it is not
executing, and those are sent again: after a cut connection, and after a restart of the host.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from reroll.errors import Closed, LimitReached, ProtocolMismatch, RerollError, Unreachable, WaitTimeout
from reroll.remote.protocol import (
    MAX_CALLS,
    MAX_ENTRIES,
    Call,
    ClientMessage,
    Malformed,
    Reply,
    decode_host_message,
    encode_message,
)
from reroll.remote.values import to_bytes, to_error
from reroll.store import Blob
from reroll.waiting import Once

_MESSAGE_BYTES: Final = 1 << 20
"""Calls share a message up to this size: the next ones are encoded while it is sent."""
_GRACE_S: Final = 5.0
"""Seconds after its timeout that a call waits for a silent host, unless it is one of several shards."""
_FAREWELL_S: Final = 0.5
"""Seconds that notifications have to be answered when the connection closes."""


class ClientCarrier(Protocol):
    """Moves frames between one client and its host. Messages may get lost; none is altered or delivered in part."""

    def send(self, frames: Sequence[Blob]) -> None:
        """Send a message, or keep it until that is possible."""

    def read(self) -> None:
        """Deliver the messages that have arrived."""

    async def close(self, last: Sequence[Blob]) -> None:
        """Send a last message, and end."""


Dial = Callable[
    [bytes, Sequence[Blob], Callable[[Sequence[Blob]], None], Callable[[RerollError], None]], ClientCarrier
]
"""Returns a carrier for a session id, a message that it sends as a heartbeat also while the event loop is busy, a function
that gets each message that arrives, and one that gets the error of all calls when the host has ended for good."""


@dataclass(slots=True)
class _PendingCall:
    """A call without a reply."""

    call: Call
    blobs: Sequence[Blob]
    reply: "asyncio.Future[tuple[Reply, Sequence[Blob]]]"
    since: float
    until: float | None
    """When the call's own timeout ends."""
    num_bytes: int


class Connection:
    """The calls of one client, in the event loop that created it."""

    def __init__(
        self,
        dial: Dial,
        address: str,
        *,
        heartbeat_s: float,
        patience_s: float,
        deadline_s: float | None,
        grace_s: float | None = None,
    ) -> None:
        """Connect.

        Args:
            dial: creates the carrier.
            address: the name of the host in error messages.
            heartbeat_s: seconds between two heartbeats.
            patience_s: seconds of silence of the host after which calls raise Unreachable.
            deadline_s: seconds that any call may take.
            grace_s: seconds after its timeout that a call waits for a silent host; None: 5.

        """
        self.length: int | None = None
        """Groups in the buffer, as of the last message; None before the first."""
        self.is_closed = False
        """Whether calls raise Closed."""
        self._ended: RerollError | None = None
        self._address = address
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._deadline_s = deadline_s
        self._grace_s = min(patience_s, _GRACE_S if grace_s is None else grace_s)
        self._pending: dict[int, _PendingCall] = {}
        self._last_number = 0
        self._outbox: list[_PendingCall] = []
        self._outbox_bytes = 0
        self._cancelled: list[int] = []
        self._received: list[int] = []
        self._notifications: set[asyncio.Future[Any]] = set()
        self._is_scheduled = False
        self._closing: Once[None] = Once()
        self._loop = asyncio.get_running_loop()
        self._heard_at = time.monotonic()
        session = os.urandom(16)
        self._carrier = dial(
            session, encode_message(ClientMessage(session=session)), self._receive, self._end
        )
        self._beating = asyncio.create_task(self._beat(), name="reroll-client")

    async def call(
        self, verb: str, arguments: dict[str, Any], blobs: Sequence[Blob] = ()
    ) -> tuple[Reply, Sequence[Blob]]:
        """Execute a verb on the host; return the reply and its groups.

        A cancelled call ends on the host, too, and what it acquired is returned. Raises what the verb raises, and
        Unreachable, LimitReached, ProtocolMismatch, Closed; WaitTimeout after `deadline_s`.
        """
        if self._deadline_s is None:
            return await self._call(verb, arguments, blobs)
        try:
            async with asyncio.timeout(self._deadline_s) as limit:
                return await self._call(verb, arguments, blobs)
        except TimeoutError:
            if not limit.expired():
                raise
            raise WaitTimeout(f"{verb} was cancelled after deadline_s={self._deadline_s}") from None

    async def _call(
        self, verb: str, arguments: dict[str, Any], blobs: Sequence[Blob]
    ) -> tuple[Reply, Sequence[Blob]]:
        pending = self._start(verb, arguments, blobs)
        try:
            return await pending.reply
        except asyncio.CancelledError:
            self._pending.pop(pending.call.number, None)
            self._cancelled.append(pending.call.number)
            self._schedule_flush()
            raise

    def notify(self, verb: str, arguments: dict[str, Any]) -> None:
        """Execute a verb before all later calls, without waiting for it; its errors are ignored."""
        reply = self._start(verb, arguments, ()).reply
        self._notifications.add(reply)
        reply.add_done_callback(self._end_notification)

    def _end_notification(self, reply: "asyncio.Future[Any]") -> None:
        self._notifications.discard(reply)
        if not reply.cancelled():
            reply.exception()  # retrieved, so that asyncio does not log it

    async def close(self) -> None:
        """Close the connection: waiting calls raise Closed, and the host returns what this client held.

        A second call returns when the first has ended.
        """
        await self._closing.run(self._close)

    async def _close(self) -> None:
        self.is_closed = True
        if self._notifications and self._ended is None:
            await asyncio.wait(self._notifications, timeout=_FAREWELL_S)
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        self._fail(Closed("the connection to the server was closed"), self._pending)
        await self._carrier.close(encode_message(ClientMessage(is_goodbye=True)))

    # --- sending

    def _start(self, verb: str, arguments: dict[str, Any], blobs: Sequence[Blob]) -> _PendingCall:
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        if self.is_closed:
            raise Closed("the connection to the server was closed; connect again")
        number = self._last_number = self._last_number + 1
        call = Call(number, verb, to_bytes(arguments, verb), len(blobs))
        num_bytes = len(call.arguments) + sum(map(len, blobs))
        since, timeout = time.monotonic(), arguments.get("timeout")
        until = (
            since + timeout if isinstance(timeout, int | float) and timeout < threading.TIMEOUT_MAX else None
        )
        pending = _PendingCall(call, blobs, self._loop.create_future(), since, until, num_bytes)
        self._pending[number] = pending
        self._outbox.append(pending)
        self._outbox_bytes += num_bytes
        if self._outbox_bytes >= _MESSAGE_BYTES:
            self._flush()
        else:
            self._schedule_flush()
        return pending

    def _schedule_flush(self) -> None:
        """Send what is to be sent, together with what other tasks of this moment add."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self, *, is_heartbeat: bool = False) -> None:
        self._is_scheduled = False
        if self.is_closed and not self._pending:
            return
        outbox, self._outbox = self._outbox, []
        self._outbox_bytes = 0
        waiting = list(islice(self._pending, MAX_ENTRIES)) if is_heartbeat else None
        calls: list[Call] = []
        blobs: list[Blob] = []
        num_bytes = 0
        for pending in outbox:
            if pending.call.number not in self._pending:
                continue  # cancelled before it was sent
            calls.append(pending.call)
            blobs += pending.blobs
            num_bytes += pending.num_bytes
            if num_bytes >= _MESSAGE_BYTES or len(calls) >= MAX_CALLS:
                self._carrier.send(encode_message(ClientMessage(calls), blobs))
                calls, blobs, num_bytes = [], [], 0
        if calls or self._cancelled or self._received or waiting is not None:
            cancelled, self._cancelled = self._cancelled[:MAX_ENTRIES], self._cancelled[MAX_ENTRIES:]
            received, self._received = self._received[:MAX_ENTRIES], self._received[MAX_ENTRIES:]
            message = ClientMessage(calls, cancelled, received, waiting)
            self._carrier.send(encode_message(message, blobs))
            if self._cancelled or self._received:
                self._schedule_flush()

    # --- receiving

    def _receive(self, frames: Sequence[Blob]) -> None:
        try:
            message = decode_host_message(frames)
        except ProtocolMismatch as error:
            self._fail(error, self._pending)
            return
        except Malformed:
            return  # the next heartbeat asks for its replies again
        self._heard_at = time.monotonic()
        self.length = message.length
        start = 1
        for reply in message.replies:
            blobs = frames[start : start + reply.blobs]
            start += reply.blobs
            self._received.append(reply.number)
            pending = self._pending.pop(reply.number, None)
            if pending is not None and not pending.reply.done():
                _resolve(pending.reply, reply, blobs)
        for number in message.lost or ():
            if (lost := self._pending.get(number)) is not None:
                self._send_again(lost, message.max_frame_bytes)

    def _send_again(self, lost: _PendingCall, max_frame_bytes: int | None) -> None:
        call = lost.call
        largest = max(map(len, (call.arguments, *lost.blobs)))
        if max_frame_bytes is not None and largest > max_frame_bytes:
            error = LimitReached(
                f"{call.verb} has a frame of {largest} bytes, and the server allows {max_frame_bytes}; split it, or raise "
                "max_message_bytes"
            )
            self._fail(error, [call.number])
            return
        self._outbox.append(lost)
        self._schedule_flush()

    def _end(self, error: RerollError) -> None:
        """Let all calls raise an error: the host has ended for good."""
        self._ended = error
        self._fail(error, self._pending)

    def _fail(self, error: Exception, numbers: Iterable[int]) -> None:
        """Let calls raise an error."""
        for number in list(numbers):
            reply = self._pending.pop(number).reply
            self._cancelled.append(number)
            if not reply.done():
                reply.set_exception(type(error)(*error.args))

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            self._flush(is_heartbeat=True)
            await asyncio.sleep(self._heartbeat_s)
            self._carrier.read()
            now = time.monotonic()
            if now - last > 3 * self._heartbeat_s:
                self._heard_at = now  # this process was busy; what arrived meanwhile is read next
            last = now
            silent_s = now - self._heard_at
            late = [
                number
                for number, call in self._pending.items()
                if (silent_s > self._patience_s and now - call.since > self._patience_s)
                or (silent_s > self._grace_s and call.until is not None and now - call.until > self._grace_s)
            ]
            if late:
                error = Unreachable(
                    f"{self._address} has not answered for {silent_s:.0f} s; check that it runs and that its log does not "
                    "deny this client. Calls under way may have been executed"
                )
                self._fail(error, late)


def _resolve(
    future: "asyncio.Future[tuple[Reply, Sequence[Blob]]]", reply: Reply, blobs: Sequence[Blob]
) -> None:
    if not reply.is_error:
        future.set_result((reply, blobs))
        return
    try:
        error = to_error(reply.value)
    except RerollError as unreadable:
        error = unreadable
    future.set_exception(error)
