"""Connections of the dashboard: those without a request are closed after some seconds, and sooner where they are many."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

_IDLE_S: Final = 10.0
"""A connection may be without a request for so long. Also a request whose headers do not arrive is none."""
_MOST_IDLE: Final = 64
"""Connections without a request that may be open; the oldest is closed for one more."""


class Connection(H11Protocol):
    """One HTTP connection. uvicorn limits idle time only after a first request, and then counts any byte as activity."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle_since = 0.0
        self._looking: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection in, at the cost of the oldest idle one where there are too many."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._looking = self.loop.call_later(_IDLE_S, self._look)
        idle = [other for other in self.connections if isinstance(other, Connection) and other.is_idle]
        if len(idle) > _MOST_IDLE:
            oldest = min(idle, key=lambda other: other._idle_since)  # noqa: SLF001  (its own class)
            self.connections.discard(oldest)  # at once, so that it does not count any more
            oldest.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self._looking is not None:
            self._looking.cancel()

    def on_response_complete(self) -> None:
        """Begin to be idle."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        left = self._idle_since + _IDLE_S - self.loop.time() if self.is_idle else _IDLE_S
        if left <= 0:
            self.transport.close()
        else:
            self._looking = self.loop.call_later(left, self._look)
