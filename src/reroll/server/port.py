"""A ZeroMQ socket in an event loop: messages come in by a callback, and go out at once or as soon as they can.

zmq's file descriptor tells of changes only, and only once; so all that is there is read whenever anything happened, and
after everything that was sent. Half of the time of `zmq.asyncio`, and nothing is ever copied into futures.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

_AT_ONCE: Final = 64
"""Messages that are read before others get their turn."""


class Port:
    """A socket that belongs to the running loop. The callback gets frames, and must not raise."""

    def __init__(self, socket: "zmq.Socket[bytes]", receive: Callable[[Sequence[Any]], None]) -> None:
        self._socket = socket
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Sequence[bytes]] = deque()
        self._is_scheduled = False
        self._is_closed = False
        self._descriptor: int = socket.FD
        self._loop.add_reader(self._descriptor, self.read)
        self._schedule()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, or keep it until that is possible."""
        if not self._is_closed:
            self._unsent.append(frames)
            self._flush()
            self._schedule()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket; what was sent has so long to leave."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=int(linger_s * 1000))

    def read(self) -> None:
        """Read what is there."""
        self._is_scheduled = False
        if self._is_closed:
            return
        self._flush()
        for _ in range(_AT_ONCE):
            if not _has_mail(self._socket):  # cheaper than to be told by an exception
                return
            self._receive(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
            if self._is_closed:
                return
        self._schedule()

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send_multipart(self._unsent[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:  # a peer that is gone: whoever waits for an answer asks again
                pass
            self._unsent.popleft()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.read)


def _has_mail(socket: "zmq.Socket[bytes]") -> bool:
    return bool(int(socket.EVENTS) & zmq.POLLIN)
