"""A buffer and its dashboard in a thread with an event loop of its own, for tests that block: browsers, plain HTTP."""

import asyncio
import http.client
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from reroll import ReplayBufferConfig
from reroll.dashboard import Dashboard
from reroll.observe import open_view

T = TypeVar("T")
TOKEN = "a-token-of-sixteen-letters"  # noqa: S105  (of nothing else)
PATIENCE_S = 300
"""Machines are slow, and busy."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Hosted:
    """A buffer, the address of its page, and how both are asked."""

    def __init__(self, buffer: Any, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.buffer = buffer
        self.address = address
        self._loop = loop

    def begin(self, call: Awaitable[T]) -> Future[T]:
        """Begin a call in the loop of the buffer."""

        async def run() -> T:
            return await call

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def do(self, call: Awaitable[T]) -> T:
        """Return what a call in the loop of the buffer returns."""
        return self.begin(call).result(PATIENCE_S)

    def put(self, groups: list[list[Any]], task: str = "math", **options: Any) -> list[int]:
        """Put groups, and return their uids."""

        async def put_all() -> list[int]:
            return [await self.buffer.put(group, task, **options) for group in groups]

        return self.do(put_all())

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Ask as any program does."""
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE_S)
        try:
            connection.request(
                method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
            found = connection.getresponse()
            return Answer(
                found.status, {name.lower(): value for name, value in found.getheaders()}, found.read()
            )
        finally:
            connection.close()

    @contextmanager
    def watching(self) -> Iterator[Callable[[], tuple[str, Any]]]:
        """Be a viewer: give a function that waits for the next event, and returns its name and what it tells."""
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE_S)
        connection.request("GET", "/events")
        lines = connection.getresponse()

        def next_event() -> tuple[str, Any]:
            name = lines.readline().decode().removeprefix("event: ").strip()
            told = json.loads(lines.readline().removeprefix(b"data: "))
            assert lines.readline() == b"\n"
            return name, told

        try:
            yield next_event
        finally:
            connection.close()


@contextmanager
def hosting(
    config: ReplayBufferConfig | None = None, *, view_of: Callable[[Any], Any] = open_view, **options: Any
) -> Iterator[Hosted]:
    """Run a buffer and its dashboard."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Any, Dashboard]:
        buffer = (config or ReplayBufferConfig(sampler="fifo")).build()
        return buffer, await Dashboard(await view_of(buffer), **{"interval_s": 0.5, **options}).start()

    async def end() -> None:
        await dashboard.stop()
        await buffer.close()

    try:
        buffer, dashboard = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
        hosted = Hosted(buffer, dashboard.address, loop)
        try:
            yield hosted
        finally:
            hosted.do(end())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
