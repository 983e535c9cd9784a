"""The dashboard as a part of a running program: it has its own port, and leaves signals to the program."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import uvicorn

from reroll.dashboard.access import check_may_listen
from reroll.dashboard.app import Decode, make_app
from reroll.dashboard.connections import Connection
from reroll.errors import InvalidConfig
from reroll.observe import Poll, View

_FAREWELL_S: Final = 1
_MOST_CONNECTIONS: Final = 256
"""All together: viewers, connections without a request, and what else is asked. More are turned away."""


class Dashboard:
    """The page of one buffer; `await start()` starts it, or `async with`."""

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
        """Make the page of a view, which is closed by whoever opened it.

        Args:
            view: what is looked at.
            host: where it listens; beyond this host it needs a token.
            port: 0 is any that is free.
            token: what viewers have to know.
            interval_s: how often the buffer is asked, however many look.
            decode: makes text of token ids; None: they are shown as numbers.

        Raises InvalidConfig for a host that others can reach, without a token.

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
                limit_concurrency=_MOST_CONNECTIONS,
                http=Connection,
                ws="none",
                timeout_graceful_shutdown=_FAREWELL_S,
            )
        )
        self._work: list[asyncio.Task[None]] = []
        self.address = ""
        """Where it is, once it has started."""

    async def start(self) -> Self:
        """Listen, and look from now on. Raises InvalidConfig if the address cannot be had."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise InvalidConfig(f"{self._host}:{self._port} cannot be listened at: {error}") from error
        host, port = listening.getsockname()[:2]
        self.address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        serving = asyncio.create_task(self._server.serve([listening]), name="reroll-dashboard")
        self._work = [asyncio.create_task(self._remember()), serving]
        up = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait((up, serving), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        return self

    async def stop(self) -> None:
        """Let all viewers go."""
        if not self._work:
            return
        work, self._work = self._work, []
        self._poll.end()
        self._server.should_exit = True
        await asyncio.gather(*work)

    async def _remember(self) -> None:
        """Be a viewer that is always there, so that whoever comes later sees what was before."""
        async for _ in self._poll.moments():
            pass

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they belong to the program around it
