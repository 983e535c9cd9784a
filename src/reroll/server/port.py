"""A ZeroMQ socket in an event loop: messages come in by a callback, and go out at once or as soon as they can.

zmq's file descriptor tells of changes only, and only once; so all that is there is read whenever anything happened, and
after everything that was sent. A third of the time of `zmq.asyncio`, and nothing is ever copied into futures.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from reroll.store import Blob

_AT_ONCE: Final = 64
"""Messages that are read before others get their turn."""
_AT_ONCE_S: Final = 0.01
"""And how long that may take, besides the last message."""
_LARGE: Final = 64 * 1024
"""Parts of messages from here on have memory of their own, and are used where they lie."""

Part = Blob | zmq.Frame


class Port:
    """A socket that belongs to the running loop. Its callbacks must not raise."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        receive: Callable[[Sequence[Any]], None],
        *,
        all_read: Callable[[], None] | None = None,
    ) -> None:
        """Read from now on: `receive` gets the frames of a message; `all_read` is called after the last that was there."""
        self._socket = socket
        self._receive = receive
        self._all_read = all_read
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Sequence[Part]] = deque()
        self._is_scheduled = False
        self._is_reading = False
        self._is_closed = False
        self._descriptor: int = socket.FD
        self._loop.add_reader(self._descriptor, self.read)
        self._schedule()

    @property
    def is_reading(self) -> bool:
        """Whether `all_read` is about to be called."""
        return self._is_reading

    def send(self, frames: Sequence[Part]) -> None:
        """Send a message, or keep it until that is possible."""
        if not self._is_closed:
            self._unsent.append(frames)
            self._flush()
            if self._has_mail():  # the descriptor does not tell of it any more
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
        left, ends = _AT_ONCE, time.monotonic() + _AT_ONCE_S
        self._is_reading = self._all_read is not None
        while left and not self._is_closed and self._has_mail():  # cheaper than to be told by an exception
            left -= 1
            self._receive(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
            if time.monotonic() > ends:
                left = 0
        if self._is_reading and self._all_read is not None:
            self._is_reading = False
            self._all_read()
        if not left:
            self._schedule()

    async def read_waiting(self, peers: int) -> None:
        """Read until every peer that has sent something was read from once: ZeroMQ takes turns among its peers."""
        for _ in range(peers // _AT_ONCE + 1):
            if self._is_closed or not self._has_mail():
                return
            self.read()
            await asyncio.sleep(0)

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send_multipart(self._unsent[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:  # a peer that is gone: whoever waits for an answer asks again
                pass
            self._unsent.popleft()

    def _has_mail(self) -> bool:
        events: Any = self._socket.getsockopt(zmq.EVENTS)
        return bool(events & _MAIL)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.read)


def kept(frame: zmq.Frame) -> Blob:
    """Return the bytes of a frame that somebody keeps. Small ones are copied: they share memory with what came with them."""
    return frame.bytes if len(frame) < _LARGE else frame.buffer


def part_of(blob: Blob) -> Part:
    """Return what is to be sent for a blob: the frame that it came in, if it is one, which then is not copied."""
    if type(blob) is memoryview and isinstance(blob.obj, zmq.Frame):
        return blob.obj
    return blob


_MAIL: Final = int(zmq.POLLIN)
