"""A buffer in a process of its own, and clients that reach it over tcp or ipc (extra `server`: ZeroMQ).

server   Server: a `remote.BufferHost` on a ZeroMQ socket
socket   ZeroMQ sockets in an event loop, and the carrier of a client
auth     key pairs, and who may connect
monitor  connections that fail or stay silent
logs     log lines of `reroll serve`

Sessions, verbs and messages are those of `reroll.remote`.
"""

from reroll.errors import InvalidArgument, missing_extra

try:
    import zmq as _zmq  # noqa: F401
except ImportError as error:
    raise missing_extra("reroll.server", "pyzmq", "server") from error

from functools import partial
from os import PathLike
from typing import Any, overload

from reroll.remote.client import BlockingRemoteBuffer, RemoteBuffer
from reroll.remote.connection import Connection
from reroll.remote.malloc import keep_freed_memory
from reroll.remote.session import Limits
from reroll.remote.sharded import ShardedBuffer
from reroll.server.auth import keygen, read_key_pair, read_public_key
from reroll.server.server import Server
from reroll.server.socket import ClientSocket, checked_address
from reroll.waiting import deadline_of

__all__ = [
    "BlockingRemoteBuffer",
    "Limits",
    "RemoteBuffer",
    "Server",
    "ShardedBuffer",
    "connect",
    "connect_blocking",
    "keep_freed_memory",
    "keygen",
]


@overload
def connect(
    address: str,
    *,
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    heartbeat_s: float = 1.0,
    patience_s: float = 60.0,
    deadline_s: float | None = None,
) -> RemoteBuffer: ...
@overload
def connect(
    address: list[str] | tuple[str, ...],
    *,
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    heartbeat_s: float = 1.0,
    patience_s: float = 60.0,
    deadline_s: float | None = None,
) -> ShardedBuffer: ...
def connect(
    address: str | list[str] | tuple[str, ...],
    *,
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    heartbeat_s: float = 1.0,
    patience_s: float = 60.0,
    deadline_s: float | None = None,
) -> RemoteBuffer | ShardedBuffer:
    """Return a client of the server at an address, for asyncio; it connects with its first call.

    Args:
        address: `tcp://host:port` or `ipc://path`; or a list of them, for servers that are the shards of one buffer. Its
            first call raises InvalidArgument if they are not, or have different configurations.
        key: file with the key pair of this client.
        server_key: the public key of the server, or its file.
        heartbeat_s: seconds between two heartbeats.
        patience_s: seconds of silence of the server after which calls raise Unreachable.
        deadline_s: seconds that any call may take.

    Raises:
        InvalidArgument: an option is invalid, or a key cannot be read.

    Example:
        `async with reroll.connect("tcp://127.0.0.1:5555") as buffer: await buffer.put(rollouts, "math")`

    """
    if (key is None) != (server_key is None):
        raise InvalidArgument(
            "key (your key pair) and server_key (the server's public key) must be given together"
        )
    for name, seconds in (("heartbeat_s", heartbeat_s), ("patience_s", patience_s)):
        if not seconds > 0:
            raise InvalidArgument(f"{name} must be above 0, not {seconds}")
    deadline_of(deadline_s, "deadline_s")
    pair = None if key is None else read_key_pair(key)
    public = None if server_key is None else read_public_key(server_key)

    def client(one: str) -> RemoteBuffer:
        dial = partial(
            ClientSocket,
            address=checked_address(one),
            pair=pair,
            server_key=public,
            heartbeat_s=heartbeat_s,
        )
        return RemoteBuffer(
            lambda: Connection(
                dial,
                one,
                heartbeat_s=heartbeat_s,
                patience_s=patience_s,
                deadline_s=deadline_s,
                grace_s=None if isinstance(address, str) else patience_s,
            )
        )

    if isinstance(address, str):
        return client(address)
    if not address:
        raise InvalidArgument("address must name at least one server, not []")
    return ShardedBuffer([client(one) for one in address])


def connect_blocking(address: str | list[str] | tuple[str, ...], **options: Any) -> BlockingRemoteBuffer:
    """Return a client for threads: the same verbs without `await`. Arguments and errors are those of `connect`."""
    return BlockingRemoteBuffer(connect(address, **options))
