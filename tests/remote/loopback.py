"""A carrier inside one event loop, for tests: a host and its clients, and messages that get lost on request."""

import asyncio
from collections.abc import Callable, Sequence

from reroll import ReplayBufferConfig, RerollError
from reroll.remote.client import RemoteBuffer
from reroll.remote.connection import Connection
from reroll.remote.host import BufferHost
from reroll.remote.session import Limits
from reroll.store import Blob

Receive = Callable[[Sequence[Blob]], None]


class Loopback:
    """A host, and the carrier of all its clients."""

    def __init__(self, config: ReplayBufferConfig, *, loses: Callable[[], bool] = lambda: False) -> None:
        self.host = BufferHost(config, self, limits=Limits())
        self._loses = loses
        self._receivers: dict[bytes, Receive] = {}

    def connect(self, heartbeat_s: float = 1.0) -> RemoteBuffer:
        return RemoteBuffer(
            lambda: Connection(
                self._dial, "loopback", heartbeat_s=heartbeat_s, patience_s=60.0, deadline_s=None
            )
        )

    def send(self, identity: bytes, frames: Sequence[Blob]) -> None:
        if not self._loses():
            asyncio.get_running_loop().call_soon(self._deliver, identity, list(map(bytes, frames)))

    def unread_bytes(self, _identity: bytes) -> int:
        return 0

    def _deliver(self, identity: bytes, frames: Sequence[Blob]) -> None:
        if identity in self._receivers:
            self._receivers[identity](frames)

    def _dial(
        self,
        session: bytes,
        _heartbeat: Sequence[Blob],
        receive: Receive,
        _end: Callable[[RerollError], None],
    ) -> "_Client":
        self._receivers[session] = receive
        return _Client(self, session)

    def accept(self, session: bytes, frames: Sequence[Blob]) -> None:
        if not self._loses():
            first, *blobs = map(bytes, frames)
            asyncio.get_running_loop().call_soon(self.host.receive, session, first, blobs)

    def hang_up(self, session: bytes) -> None:
        del self._receivers[session]


class _Client:
    """The carrier of one client."""

    def __init__(self, loopback: Loopback, session: bytes) -> None:
        self._loopback, self._session = loopback, session

    def send(self, frames: Sequence[Blob]) -> None:
        self._loopback.accept(self._session, frames)

    def read(self) -> None:
        pass

    async def close(self, last: Sequence[Blob]) -> None:
        self.send(last)
        self._loopback.hang_up(self._session)
