"""ConnectionMonitor: the connections of a server that fail their handshake, or send no message.

ZeroMQ closes a connection that does not finish its handshake, but keeps one that is silent after it, and cannot close one
peer of a socket. Its monitor names the file descriptor of each connection, and so does each message: the server closes a
connection by shutting its descriptor down, as if the peer had gone.
"""

import logging
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from reroll.server.auth import DenialLog

log: Final = logging.getLogger("reroll.server")
_RESERVED_FILES: Final = 48
"""Files that a server needs besides connections: its sockets, the store, checkpoints, logs."""
_FAILURES: Final[Mapping[int, str]] = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "the handshake broke off",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "no handshake with keys, or none of ZeroMQ",
}
_CLOSED: Final = (zmq.Event.CLOSED, zmq.Event.DISCONNECTED)
EVENTS: Final = sum((zmq.Event.ACCEPTED, zmq.Event.ACCEPT_FAILED, *_CLOSED, *_FAILURES))
"""The events that `handle` needs."""


class ConnectionMonitor:
    """The open connections of a server, and which of them have sent no message so far."""

    def __init__(self, denials: DenialLog, silent_s: float, max_clients: int) -> None:
        """Close connections after `silent_s` seconds without a message; each client has two connections."""
        self._denials = denials
        self._silent_s = silent_s
        self._silent: dict[int, tuple[float, object]] = {}
        self._open: set[int] = set()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_open = max(8, files - _RESERVED_FILES)
        if self._max_open < 2 * max_clients:
            needed = 2 * max_clients + _RESERVED_FILES
            log.warning("few files", extra={"limit": files, "needed": needed, "remedy": "raise ulimit -n"})

    @property
    def has_silent(self) -> bool:
        """Whether a connection has sent no message."""
        return bool(self._silent)

    def handle(self, frames: Sequence[zmq.Frame]) -> None:
        """Handle an event of ZeroMQ's socket monitor."""
        event = parse_monitor_message([frame.bytes for frame in frames])
        kind, descriptor = event["event"], int(event["value"])
        if kind == zmq.Event.ACCEPTED:
            self._open.add(descriptor)
            self._silent[descriptor] = time.monotonic(), _peer_of(descriptor)
            if len(self._open) > self._max_open:
                self._close_oldest()
        elif kind == zmq.Event.ACCEPT_FAILED:
            self._close_oldest()
        elif kind in _CLOSED:
            self._open.discard(descriptor)
            self._silent.pop(descriptor, None)
        elif kind in _FAILURES:
            self._denials.add(reason=_FAILURES[kind], at=event["endpoint"].decode(errors="replace"))

    def has_sent(self, descriptor: int) -> None:
        """Register that a connection sent a message."""
        self._silent.pop(descriptor, None)

    def close_silent(self) -> None:
        """Close all connections that have been silent for too long."""
        before = time.monotonic() - self._silent_s
        for descriptor in [one for one, (since, _) in self._silent.items() if since < before]:
            self._close(descriptor)

    def _close_oldest(self) -> None:
        if self._silent:
            self._close(next(iter(self._silent)))

    def _close(self, descriptor: int) -> None:
        _, peer = self._silent.pop(descriptor)
        self._open.discard(descriptor)
        if peer is not None and _peer_of(descriptor) == peer:  # else another file has this number now
            with suppress(OSError):
                connection = socket.socket(fileno=descriptor)
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                finally:
                    connection.detach()


def _peer_of(descriptor: int) -> object:
    """Return the address of a peer, which identifies a connection; None if it is gone."""
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            return connection.getpeername()
        finally:
            connection.detach()
    return None
