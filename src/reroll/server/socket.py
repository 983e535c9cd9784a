"""ZeroMQ sockets in an event loop, and the carrier of a client.

ZeroMQ's file descriptor reports only changes, and each once: so a socket reads everything that has arrived after every event,
and after every message that it sent. It takes a third of the time of `zmq.asyncio`.
"""

import asyncio
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from reroll.errors import InvalidArgument, RerollError
from reroll.server.auth import KeyPair
from reroll.store import Blob

_ADDRESS: Final = re.compile(r"tcp://[^\s/*]+:\d{1,5}|ipc://.+")
_MESSAGES_PER_READ: Final = 64
"""Messages that are read before other tasks run."""
_SECONDS_PER_READ: Final = 0.01
"""Seconds after which a read ends, besides the last message."""
_OWN_MEMORY_BYTES: Final = 64 * 1024
"""Frames from this size on have memory of their own, and are used without a copy."""
_FAREWELL_S: Final = 0.5
"""Seconds that the last message of a client has to leave."""
_READABLE: Final = int(zmq.POLLIN)

Frame = Blob | zmq.Frame


class AsyncSocket:
    """A ZeroMQ socket that belongs to the running event loop. Its callbacks must not raise."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        receive: Callable[[Sequence[zmq.Frame]], None],
        *,
        on_read: Callable[[bool], None] | None = None,
    ) -> None:
        """Read from now on.

        Args:
            socket: the socket.
            receive: gets the frames of each message.
            on_read: called with True before messages are read, and with False after them.

        """
        self._socket = socket
        self._receive = receive
        self._on_read = on_read
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Sequence[Frame]] = deque()
        self._is_scheduled = False
        self._is_closed = False
        self._descriptor: int = socket.FD
        self._loop.add_reader(self._descriptor, self.read)
        self._schedule_read()

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a message, or keep it until that is possible."""
        if not self._is_closed:
            self._unsent.append(frames)
            self._flush()
            if self._has_message():  # the descriptor does not report it any more
                self._schedule_read()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; messages that were sent have `linger_s` seconds to leave."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=int(linger_s * 1000))

    def read(self) -> None:
        """Read the messages that have arrived, up to a limit; schedule the rest."""
        self._is_scheduled = False
        if self._is_closed:
            return
        self._flush()
        left, ends = _MESSAGES_PER_READ, time.monotonic() + _SECONDS_PER_READ
        if self._on_read is not None:
            self._on_read(True)
        while left and not self._is_closed and self._has_message():  # cheaper than an exception
            left -= 1
            self._receive(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
            if time.monotonic() > ends:
                left = 0
        if self._on_read is not None:
            self._on_read(False)
        if not left:
            self._schedule_read()

    async def drain(self, peers: int) -> None:
        """Read until a message of every peer that has sent one was read: ZeroMQ takes turns among its peers."""
        for _ in range(peers // _MESSAGES_PER_READ + 1):
            if self._is_closed or not self._has_message():
                return
            self.read()
            await asyncio.sleep(0)

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send_multipart(self._unsent[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:  # the peer is gone; a caller that waits for a reply asks again
                pass
            self._unsent.popleft()

    def _has_message(self) -> bool:
        events: Any = self._socket.getsockopt(zmq.EVENTS)
        return bool(events & _READABLE)

    def _schedule_read(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.read)


def frame_to_blob(frame: zmq.Frame) -> Blob:
    """Return the bytes of a frame. A small frame is copied: it shares memory with the frames that arrived with it."""
    return frame.bytes if len(frame) < _OWN_MEMORY_BYTES else frame.buffer


def blob_to_frame(blob: Blob) -> Frame:
    """Return what to send for a blob: the frame that it arrived in, if there is one, so that it is not copied."""
    if type(blob) is memoryview and isinstance(blob.obj, zmq.Frame):
        return blob.obj
    return blob


class ClientSocket:
    """The carrier of one client: a socket for its calls, and one for heartbeats, sent by a thread.

    The thread sends them also while the event loop is busy with a training step.
    """

    def __init__(
        self,
        session: bytes,
        heartbeat: Sequence[Blob],
        receive: Callable[[Sequence[Blob]], None],
        _end: Callable[[RerollError], None],
        *,
        address: str,
        pair: KeyPair | None,
        server_key: str | None,
        heartbeat_s: float,
    ) -> None:
        """Connect to `address`; see `reroll.remote.connection.Dial` for the first arguments."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

        def connected(identity: bytes | None) -> "zmq.Socket[bytes]":
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            socket.setsockopt(zmq.IPV6, "[" in address)
            # ZeroMQ's own heartbeat detects a connection that was cut silently.
            socket.setsockopt(zmq.HEARTBEAT_IVL, int(heartbeat_s * 1000))
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(heartbeat_s * 5000))
            if identity is None:
                socket.setsockopt(zmq.SNDHWM, 2)
            else:
                socket.setsockopt(zmq.IDENTITY, identity)
                socket.setsockopt(zmq.SNDHWM, 0)
                socket.setsockopt(zmq.RCVHWM, 0)
            if pair is not None and server_key is not None:
                socket.setsockopt_string(zmq.CURVE_PUBLICKEY, pair.public)
                socket.setsockopt_string(zmq.CURVE_SECRETKEY, pair.secret)
                socket.setsockopt_string(zmq.CURVE_SERVERKEY, server_key)
            socket.connect(address)
            return socket

        self._socket = AsyncSocket(
            connected(session), lambda frames: receive([frame_to_blob(frame) for frame in frames])
        )
        self._beating = connected(None)
        self._heartbeat, self._heartbeat_s = heartbeat, heartbeat_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="reroll-heartbeat", daemon=True)
        self._thread.start()

    def send(self, frames: Sequence[Blob]) -> None:
        """Send a message, or keep it until that is possible."""
        self._socket.send(frames)

    def read(self) -> None:
        """Deliver the messages that have arrived."""
        self._socket.read()

    async def close(self, last: Sequence[Blob]) -> None:
        """Send a last message, and close the sockets."""
        self._socket.send(last)
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)
        self._socket.close(_FAREWELL_S)
        await asyncio.to_thread(self._context.term)

    def _beat(self) -> None:
        while not self._stopping.wait(self._heartbeat_s):
            try:
                self._beating.send_multipart(self._heartbeat, zmq.NOBLOCK)
            except zmq.ZMQError:  # not connected, and enough heartbeats wait already
                continue
        self._beating.close(linger=0)


def checked_address(address: str) -> str:
    """Return the address of a server. Raises InvalidArgument for one that ZeroMQ would refuse later."""
    is_short = len(os.fsencode(address.removeprefix("ipc://"))) <= zmq.IPC_PATH_MAX_LEN
    if not _ADDRESS.fullmatch(address) or (address.startswith("ipc://") and not is_short):
        raise InvalidArgument(
            f"invalid server address {address!r}; use tcp://host:port, or ipc://path with at most "
            f"{zmq.IPC_PATH_MAX_LEN} bytes of path"
        )
    return address
