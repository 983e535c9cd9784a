"""A client's connection: calls that overlap on one socket, each repeated until it is answered.

Whatever is sent at once shares a message. A heartbeat names the calls that have no answer; the server says which of them it
does not have (any more), and those are sent again: after a cut connection, after a restart of the server.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import zmq

from reroll.errors import (
    Closed,
    InvalidArgument,
    LimitReached,
    ProtocolMismatch,
    RerollError,
    Unreachable,
)
from reroll.remote.failures import to_failure
from reroll.remote.values import to_bytes
from reroll.server.heart import Heart
from reroll.server.keys import KeyPair
from reroll.server.port import Port, kept
from reroll.server.wire import (
    MAX_CALLS,
    MAX_ENTRIES,
    Answer,
    Call,
    Malformed,
    ToServer,
    frames_of,
    read_to_client,
)
from reroll.store import Blob
from reroll.waiting import Once

_ADDRESS: Final = re.compile(r"tcp://[^\s/*]+:\d{1,5}|ipc://.+")
_MESSAGE_BYTES: Final = 1 << 20
"""Calls share a message up to this size. While it leaves, the next ones are encoded."""
_FAREWELL_S: Final = 0.5
"""How long the last messages have to leave."""


@dataclass(slots=True)
class _Waiting:
    """A call without an answer."""

    call: Call
    blobs: Sequence[bytes]
    answer: "asyncio.Future[tuple[Answer, list[Blob]]]"
    since: float


def checked_address(address: str) -> str:
    """Return the address of a server; InvalidArgument for what ZeroMQ would refuse, later and in its own words."""
    is_short = len(os.fsencode(address.removeprefix("ipc://"))) <= zmq.IPC_PATH_MAX_LEN
    if not _ADDRESS.fullmatch(address) or (address.startswith("ipc://") and not is_short):
        raise InvalidArgument(
            f"{address!r} is no address of a server; write tcp://host:port, or ipc://path with at most "
            f"{zmq.IPC_PATH_MAX_LEN} bytes of path"
        )
    return address


def _too_large(call: Call, size: int, largest: int) -> LimitReached:
    return LimitReached(
        f"{call.verb} has {size} bytes in one part of its message, and the server takes {largest}; split it, or raise "
        "max_message_bytes"
    )


class Connection:
    """One socket to one server, in the event loop that made it."""

    def __init__(
        self,
        address: str,
        *,
        pair: KeyPair | None,
        server_key: str | None,
        heartbeat_s: float,
        patience_s: float,
    ) -> None:
        self.length = 0
        """How many groups the buffer had, as of the last answer."""
        self._address = address
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._waiting: dict[int, _Waiting] = {}
        self._last = 0
        self._outbox: list[_Waiting] = []
        self._outbox_bytes = 0
        self._cancelled: list[int] = []
        self._received: list[int] = []
        self._told: set[asyncio.Future[Any]] = set()
        self._is_scheduled = False
        self._closing: Once[None] = Once()
        self.is_closed = False
        """Whether it takes no calls any more."""
        self._loop = asyncio.get_running_loop()
        self._heard_at = time.monotonic()
        session = os.urandom(16)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._port = Port(self._socket(pair, server_key, session), self._receive)
        self._heart = Heart(self._socket(pair, server_key, None), session, heartbeat_s)
        self._beating = asyncio.create_task(self._beat(), name="reroll-client")

    async def call(
        self, verb: str, arguments: dict[str, Any], blobs: Sequence[bytes] = ()
    ) -> tuple[Answer, list[Blob]]:
        """Have a verb carried out, and return the answer and its groups.

        Whoever is cancelled has its wait on the server cancelled, and what the call got given back.
        """
        number, waiting = self._start(verb, arguments, blobs)
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            self._cancelled.append(number)
            self._schedule()
            raise

    def tell(self, verb: str, arguments: dict[str, Any]) -> None:
        """Have a verb carried out before all later ones, without waiting for it."""
        _, waiting = self._start(verb, arguments, ())
        self._told.add(waiting.answer)
        waiting.answer.add_done_callback(self._told_of)

    def _told_of(self, answer: "asyncio.Future[Any]") -> None:
        self._told.discard(answer)
        if not answer.cancelled():
            answer.exception()  # nobody asks for it

    async def close(self) -> None:
        """Close the connection; whoever waits gets Closed, and the server gets back what this client held.

        A second call returns when the first has ended.
        """
        await self._closing.run(self._close)

    async def _close(self) -> None:
        self.is_closed = True
        if self._told:
            await asyncio.wait(self._told, timeout=_FAREWELL_S)
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        self._fail(Closed("the connection to the server was closed"), self._waiting)
        self._port.send(frames_of(ToServer(is_goodbye=True)))
        await asyncio.to_thread(self._heart.stop)
        self._port.close(_FAREWELL_S)
        await asyncio.to_thread(self._context.term)

    # --- sending

    def _socket(self, pair: KeyPair | None, server_key: str | None, identity: bytes | None) -> Any:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, "[" in self._address)
        # ZeroMQ's own heartbeat finds a connection that is cut without a word.
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self._heartbeat_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self._heartbeat_s * 5000))
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
        else:
            socket.setsockopt(zmq.SNDHWM, 2)
        if pair is not None and server_key is not None:
            socket.setsockopt_string(zmq.CURVE_PUBLICKEY, pair.public)
            socket.setsockopt_string(zmq.CURVE_SECRETKEY, pair.secret)
            socket.setsockopt_string(zmq.CURVE_SERVERKEY, server_key)
        socket.connect(self._address)
        return socket

    def _start(self, verb: str, arguments: dict[str, Any], blobs: Sequence[bytes]) -> tuple[int, _Waiting]:
        if self.is_closed:
            raise Closed("the connection to the server was closed; connect anew")
        self._last += 1
        call = Call(self._last, verb, to_bytes(arguments, verb), len(blobs))
        waiting = self._waiting[call.number] = _Waiting(
            call, blobs, self._loop.create_future(), time.monotonic()
        )
        self._outbox.append(waiting)
        self._outbox_bytes += sum(map(len, blobs))
        if self._outbox_bytes >= _MESSAGE_BYTES:
            self._flush()
        else:
            self._schedule()
        return call.number, waiting

    def _schedule(self) -> None:
        """Send what is to be sent, after others that are about to add to it have done so."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self, *, is_heartbeat: bool = False) -> None:
        self._is_scheduled = False
        if self.is_closed and not self._waiting:
            return
        outbox, self._outbox = self._outbox, []
        self._outbox_bytes = 0
        asked = list(islice(self._waiting, MAX_ENTRIES)) if is_heartbeat else None
        calls: list[Call] = []
        blobs: list[bytes] = []
        num_bytes = 0
        for waiting in outbox:
            if waiting.call.number not in self._waiting:
                continue  # cancelled before it was sent
            calls.append(waiting.call)
            blobs += waiting.blobs
            num_bytes += sum(map(len, waiting.blobs))
            if num_bytes >= _MESSAGE_BYTES or len(calls) >= MAX_CALLS:
                self._port.send(frames_of(ToServer(calls), blobs))
                calls, blobs, num_bytes = [], [], 0
        if calls or self._cancelled or self._received or asked is not None:
            cancelled, self._cancelled = self._cancelled[:MAX_ENTRIES], self._cancelled[MAX_ENTRIES:]
            received, self._received = self._received[:MAX_ENTRIES], self._received[MAX_ENTRIES:]
            self._port.send(frames_of(ToServer(calls, cancelled, received, asked), blobs))
            if self._cancelled or self._received:
                self._schedule()

    # --- receiving

    def _receive(self, frames: Sequence[Any]) -> None:
        try:
            message = read_to_client(frames)
        except ProtocolMismatch as error:
            self._fail(error, self._waiting)
            return
        except Malformed:
            return  # asked for again by the next heartbeat
        self._heard_at = time.monotonic()
        self.length = message.length
        blobs_at = 1
        for answer in message.answers:
            blobs = frames[blobs_at : blobs_at + answer.blobs]
            blobs_at += answer.blobs
            waiting = self._waiting.pop(answer.number, None)
            self._received.append(answer.number)
            if waiting is None or waiting.answer.done():
                continue
            try:
                if answer.is_error:
                    waiting.answer.set_exception(to_failure(answer.value))
                else:
                    waiting.answer.set_result((answer, list(map(kept, blobs))))
            except RerollError as error:  # an answer that cannot be read
                waiting.answer.set_exception(error)
        for number in message.lost or ():
            if (lost := self._waiting.get(number)) is None:
                continue
            size = max(map(len, (lost.call.arguments, *lost.blobs)))
            if message.largest is not None and size > message.largest:
                self._fail(_too_large(lost.call, size, message.largest), [number])
                continue
            self._outbox.append(lost)
            self._schedule()

    def _fail(self, error: Exception, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            answer = self._waiting.pop(number).answer
            self._cancelled.append(number)
            if not answer.done():
                answer.set_exception(type(error)(*error.args))

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            self._flush(is_heartbeat=True)
            await asyncio.sleep(self._heartbeat_s)
            self._port.read()
            now = time.monotonic()
            if now - last > 3 * self._heartbeat_s:
                self._heard_at = now  # it was us who were busy; what came meanwhile is about to be read
            last = now
            silent_since = now - self._patience_s
            if self._heard_at < silent_since:
                error = Unreachable(
                    f"{self._address} has not answered for {now - self._heard_at:.0f} s. Is the server running, and may "
                    "this client connect? Its log says whom it denied. Calls that were under way may have been carried out"
                )
                self._fail(error, [n for n, call in self._waiting.items() if call.since < silent_since])
