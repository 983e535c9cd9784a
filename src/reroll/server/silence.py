"""Connections that have sent no message: they are counted, and closed after some time, or when files run out.

ZeroMQ closes a connection that does not finish its handshake, but keeps one that never speaks after it, and cannot end
one peer of a socket. The monitor of the socket names the descriptor of each connection, and so does each message: a
connection is ended by shutting its descriptor down, as if the peer had gone.
"""

import logging
import resource
import socket
import time
from typing import Final

log: Final = logging.getLogger("reroll.server")
_RESERVED: Final = 48
"""Files that a server needs besides connections: its sockets, the store, checkpoints, logs."""


class Silent:
    """The connections of a server, and which of them have said nothing so far."""

    def __init__(self, silent_s: float, max_clients: int) -> None:
        self._silent_s = silent_s
        self._since: dict[int, tuple[float, object]] = {}
        self._open: set[int] = set()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(8, files - _RESERVED)
        if self._most < 2 * max_clients:
            log.warning(
                "few files",
                extra={"limit": files, "needed": 2 * max_clients + _RESERVED, "remedy": "raise ulimit -n"},
            )

    def __len__(self) -> int:
        return len(self._since)

    def opened(self, descriptor: int) -> None:
        """Count a connection; where there are too many, end the one that has been silent for longest."""
        self._open.add(descriptor)
        self._since[descriptor] = time.monotonic(), _peer(descriptor)
        if len(self._open) > self._most:
            self.make_room()

    def closed(self, descriptor: int) -> None:
        """Forget a connection."""
        self._open.discard(descriptor)
        self._since.pop(descriptor, None)

    def spoke(self, descriptor: int) -> None:
        """Note that a message came from a connection."""
        self._since.pop(descriptor, None)

    def make_room(self) -> None:
        """End the connection that has been silent for longest."""
        if self._since:
            self._end(next(iter(self._since)))

    def end_old(self) -> None:
        """End all connections that have been silent for too long."""
        before = time.monotonic() - self._silent_s
        for descriptor in [one for one, (since, _) in self._since.items() if since < before]:
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        _, peer = self._since.pop(descriptor)
        self._open.discard(descriptor)
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            return  # it has gone
        try:
            if (
                peer is not None and connection.getpeername() == peer
            ):  # else the number belongs to another file now
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        finally:
            connection.detach()


def _peer(descriptor: int) -> object:
    """Return the address of a peer, by which a connection is recognised; None if it has gone."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        return connection.getpeername()
    except OSError:
        return None
    finally:
        connection.detach()
