"""The buffer in a process of its own: reroll's server, and beside it the preparer and the board of weights."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reroll import Server, connect_blocking
from reroll.demo.board import Weights
from reroll.prepare import PrepareConfig
from reroll.prepare.remote import RemotePreparer, serve_preparer
from reroll.server import Limits
from reroll.waiting import on_signal

_BOARD = "board"


def serve(path: Path, config: PrepareConfig, is_ready: Callable[[], None]) -> None:
    """Serve at a path, until SIGTERM."""

    async def run() -> None:
        server = Server(config.buffer_config(), f"ipc://{path}", limits=Limits(client_ttl_s=2.0))
        serve_preparer(server, config)
        server.add_service(_BOARD, BoardService())
        stopping = on_signal()
        async with server:
            is_ready()
            await stopping.wait()

    asyncio.run(run())


class BoardService:
    """The newest weights and their version, for other processes; see `Board`."""

    verbs = frozenset({"publish", "version", "newest", "clear"})

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._version: int | None = None
        self._weights: Weights = {}

    async def publish(self, version: int, weights: Weights) -> None:
        """Let these weights generate from now on."""
        async with self._changed:
            self._version, self._weights = version, weights
            self._changed.notify_all()

    async def version(self) -> int | None:
        """Return the version that generates now; None before the first."""
        return self._version

    async def newest(self, other_than: int | None = None) -> tuple[int, Weights]:
        """Return the newest version and its weights; wait for another one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._version not in (None, other_than))
            assert self._version is not None  # noqa: S101
            return self._version, self._weights

    async def clear(self) -> None:
        """Forget the weights; whoever asks for them waits for others."""
        self._version = None

    async def stop(self) -> None:
        """Nothing has to be done: calls that wait end with the server."""


class RemoteBoard:
    """The verbs of the board."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def publish(self, version: int, weights: Weights) -> None:
        self._client.ask(f"{_BOARD}.publish", {"version": version, "weights": weights})

    def version(self) -> int | None:
        version: int | None = self._client.ask(f"{_BOARD}.version", {})
        return version

    def newest(self, *, other_than: int | None = None) -> tuple[int, Weights]:
        version, weights = self._client.ask(f"{_BOARD}.newest", {"other_than": other_than})
        return version, weights

    def clear(self) -> None:
        self._client.ask(f"{_BOARD}.clear", {})


class Remote:
    """A connection to the server, with what `train` and `produce` use."""

    def __init__(self, path: Path) -> None:
        """Connect with the first call; the connection heals by itself when the server is started again."""
        self.buffer = connect_blocking(f"ipc://{path}", heartbeat_s=0.2)
        self.preparer = RemotePreparer(self.buffer)
        self.board = RemoteBoard(self.buffer)

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Go on from the state in a trainer's checkpoint; what later steps had consumed is available again."""
        self.board.clear()
        if state is not None:
            self.preparer.restore(state)
