"""A wire between client and server that can be cut, and that remembers what went over it."""

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards tcp connections to an address, from another loopback address: two hosts on one machine."""

    def __init__(self, target: str, host: str = "127.0.0.2") -> None:
        self._host, self._port = target.removeprefix("tcp://").rsplit(":", 1)
        self._own = host
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_cut = False
        self.refused = 0
        """Connections that were tried while it is cut."""
        self.swallows_answers = False
        """Whether what comes from the server is thrown away."""
        self.seen = bytearray()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"tcp://{self._own}:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, self._own, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all connections, whatever was under way."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            self.refused += 1
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(self._host, int(self._port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink, is_answer in ((reader, back, False), (there, writer, True)):
            task = asyncio.ensure_future(self._pump(source, sink, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await source.read(1 << 16):
                self.seen += data
                if is_answer and self.swallows_answers:
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
