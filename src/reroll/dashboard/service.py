"""`Dashboard`: the page at a port, inside a running program, to which it leaves signals."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from reroll.dashboard.app import Decode, make_app
from reroll.dashboard.auth import check_may_listen
from reroll.errors import InvalidConfig
from reroll.observe import Poll, View

_SHUTDOWN_S: Final = 1
_MAX_CONNECTIONS: Final = 256
"""Open connections; further ones are refused."""
_IDLE_S: Final = 10.0
"""Seconds after which a connection without a request is closed. A request with incomplete headers counts as none."""
_MAX_IDLE: Final = 64
"""Connections without a request; a further one closes the oldest."""


class Dashboard:
    """The page of one buffer. Start it with `await start()` or `async with`."""

    def __init__(
        self,
        view: View,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        interval_s: float = 2.0,
        decode: Decode | None = None,
    ) -> None:
        """Make the page of a view. The caller closes the view.

        Args:
            view: the buffer.
            host: address to listen on; beyond this host a token is required.
            port: 0 selects a free port.
            token: the token that viewers need.
            interval_s: seconds between two requests to the buffer, for all viewers together.
            decode: turns token ids into text; None shows them as numbers.

        Raises:
            InvalidConfig: other hosts can reach `host`, and there is no token.

        """
        check_may_listen(host, token)
        self._host, self._port = host, port
        self._poll = Poll(view, interval_s=interval_s)
        self._server = _Server(
            uvicorn.Config(
                make_app(self._poll, token, decode),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                limit_concurrency=_MAX_CONNECTIONS,
                http=Connection,
                ws="none",
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
        )
        self._work: list[asyncio.Task[None]] = []
        self.address = ""
        """The URL, once it has started."""

    async def start(self) -> Self:
        """Listen, and poll the buffer from now on.

        Raises:
            InvalidConfig: the address is not available.

        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise InvalidConfig(
                f"cannot listen on {self._host}:{self._port}: {error}; choose another port"
            ) from error
        host, port = listening.getsockname()[:2]
        self.address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        serving = asyncio.create_task(self._server.serve([listening]), name="reroll-dashboard")
        self._work = [asyncio.create_task(self._record()), serving]
        up = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait((up, serving), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        return self

    async def stop(self) -> None:
        """Stop listening, and end the streams of all viewers."""
        if not self._work:
            return
        work, self._work = self._work, []
        self._poll.end()
        self._server.should_exit = True
        await asyncio.gather(*work)

    async def _record(self) -> None:
        """Record the history also while no viewer is connected."""
        async for _ in self._poll.moments():
            pass

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Connection(H11Protocol):
    """One HTTP connection. uvicorn limits idle time only after the first request, and counts any byte as activity."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; close the oldest idle one if there are too many."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._timer = self.loop.call_later(_IDLE_S, self._check_idle)
        idle = [other for other in self.connections if isinstance(other, Connection) and other.is_idle]
        if len(idle) > _MAX_IDLE:
            oldest = min(idle, key=lambda other: other._idle_since)  # noqa: SLF001  (its own class)
            self.connections.discard(oldest)  # so that it no longer counts
            oldest.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the idle timer."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Start the idle time."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _check_idle(self) -> None:
        left = self._idle_since + _IDLE_S - self.loop.time() if self.is_idle else _IDLE_S
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self._check_idle)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the program handles them
