"""A buffer in a process of its own, and clients that reach it over tcp or ipc (extra `server`: ZeroMQ).

wire         messages and their version
port         a socket in an event loop
keys, gate   key pairs, who may connect, who was denied
limits       what each client may take up
silence      connections that have sent nothing
session      one client, as the server sees it
serving      what is done for a call; starting: at once, as far as it need not wait
memory       how a program that is nothing but a server treats its memory
server       `Server`: messages in, answers out, clients come and go
connection   one client's calls, repeated until they are answered; heart beats while its loop is busy
client       `Client`: the verbs; prefetch: batches ahead of time; blocking: the same for threads

The server decides nothing about groups, and decodes none that it need not: that is the buffer's, and the client's.
"""

from typing import TYPE_CHECKING, Any

try:
    import zmq as _zmq  # noqa: F401
except ImportError as error:
    raise ImportError("the server and its clients need ZeroMQ: pip install 'reroll[server]'") from error

from reroll.remote.memory import keep_freed_memory
from reroll.server.client import Client
from reroll.server.keys import keygen
from reroll.server.limits import Limits
from reroll.server.server import Server

if TYPE_CHECKING:
    from reroll.server.blocking import BlockingClient

__all__ = ["Client", "Limits", "Server", "connect", "connect_blocking", "keep_freed_memory", "keygen"]


def connect(address: str, **options: Any) -> Client:
    """Return a client of the server at an address, for asyncio; it connects with its first call.

    Options: `key` and `server_key`, files of keys; `heartbeat_s`; `patience_s`, how long the server may be silent before
    calls raise Unreachable; `deadline_s`, how long any call may take. Raises InvalidArgument.
    """
    return Client(address, **options)


def connect_blocking(address: str, **options: Any) -> "BlockingClient":
    """Return a client for threads: the same verbs without `await`; see `connect`."""
    from reroll.server.blocking import BlockingClient  # noqa: PLC0415  (only for those who want it)

    return BlockingClient(address, **options)
