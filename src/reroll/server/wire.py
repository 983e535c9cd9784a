"""The messages between a client and a server, and how they are framed.

A message is frames: first what it is (`HEAD`: magic and version) and its body (MessagePack), then the blobs of its calls or
answers, in their order, one for each group. A server that reads another version answers with `HEAD`, "refused" and a text, in
one frame; that much is the same in all versions. Nothing that arrives is unpickled.

Calls have numbers, which count up in a session. A client repeats a call until it has the answer; a server carries it out
once, and keeps the answer until it is told that it was received.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from reroll.errors import ProtocolMismatch
from reroll.server.port import Part
from reroll.store import Blob

M = TypeVar("M")

VERSION: Final = 1
MAGIC: Final = b"reroll"
HEAD: Final = MAGIC + bytes([VERSION])
REFUSED: Final = b"refused"

MAX_ENTRIES: Final = 16_384
"""Numbers in each list of a message to the server."""
MAX_CALLS: Final = 4096
"""Calls in a message: while the server takes them in, other clients wait."""

_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Numbers = Annotated[list[_Number], Meta(max_length=MAX_ENTRIES)]
_Blobs = Annotated[int, Meta(ge=0, le=1 << 20)]


class Call(msgspec.Struct, array_like=True, frozen=True):
    """A verb, to be carried out once."""

    number: _Number
    verb: Annotated[str, Meta(max_length=64)]
    arguments: bytes
    blobs: _Blobs = 0


class ToServer(msgspec.Struct, array_like=True, frozen=True):
    """What a client sends."""

    calls: Annotated[list[Call], Meta(max_length=MAX_CALLS)] = []
    cancelled: _Numbers = []
    """Calls whose caller is gone; a lease or a reservation that such a call got is given back."""
    received: _Numbers = []
    """Calls whose answers arrived, and need not be kept."""
    waiting: _Numbers | None = None
    """A heartbeat that asks for an answer: the calls that were sent before, and have no answer yet."""
    is_goodbye: bool = False
    """Whether the client goes, and wants nothing any more."""
    session: Annotated[bytes, Meta(max_length=255)] | None = None
    """A heartbeat for another connection, that of this session; nothing else of the message counts."""


class Info(NamedTuple):
    """A `SampleInfo` on its way."""

    uid: int
    priority: float
    probability: float
    weight: float
    times_sampled: int
    staleness: int
    table_size: int


class Lent(msgspec.Struct, array_like=True, frozen=True):
    """Groups that were handed out."""

    lease: int | None
    """None: they are consumed."""
    is_durable: bool
    """Whether the lease must be acknowledged before anybody sees the groups."""
    infos: dict[str, list[Info | None]]
    bounded: list[str] = []
    """The tasks that have a `max_staleness`: what waits at the client has to be checked against it."""


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What came of a call: an error, groups, a number or nothing, or any other value."""

    number: int
    is_error: bool
    value: bytes = b""
    whole: int | None = None
    """The value, if it is a whole number or None, and `value` is empty."""
    lent: Lent | None = None
    done: list[bytes] = []
    """What was done to each group."""
    blobs: int = 0


class ToClient(msgspec.Struct, array_like=True, frozen=True):
    """What a server sends."""

    length: int
    """How many groups are in the buffer."""
    answers: list[Answer] = []
    lost: list[int] | None = None
    """The answer to a heartbeat: which of its calls, or their answers, got lost on the way, and are to be sent again."""
    largest: int | None = None
    """With that: how many bytes a part of a message may have. Who sends more is cut off, so such calls are lost each time."""


_write: Final = msgspec.msgpack.Encoder().encode
_read_to_server: Final = msgspec.msgpack.Decoder(ToServer).decode
_read_to_client: Final = msgspec.msgpack.Decoder(ToClient).decode


class Malformed(Exception):  # noqa: N818  (never leaves this package)
    """These frames are no message."""


def frames_of(message: ToServer | ToClient, blobs: Sequence[Part] = ()) -> list[Part]:
    """Return the frames of a message."""
    return [HEAD + _write(message), *blobs]


def refusal(text: str) -> list[bytes]:
    """Return the frames that tell a peer of any version why it is not served."""
    return [HEAD + REFUSED + text.encode()]


def version_of(first: Blob) -> int | None:
    """Return which version a first frame names, None if it is not ours at all."""
    return first[len(MAGIC)] if len(first) >= len(HEAD) and first[: len(MAGIC)] == MAGIC else None


def read_to_server(first: Blob, blobs: int) -> ToServer:
    """Return what a client sent, in a first frame of our version. Raises Malformed."""
    message = _read(_read_to_server, first)
    _check_count(message.calls, blobs)
    return message


def read_to_client(frames: Sequence[Any]) -> ToClient:
    """Return what a server sent. Raises ProtocolMismatch, Malformed."""
    first = frames[0].bytes
    version = version_of(first)
    if version is not None and first[len(HEAD) :].startswith(REFUSED):
        raise ProtocolMismatch(first[len(HEAD) + len(REFUSED) :].decode(errors="replace"))
    if version != VERSION:
        raise ProtocolMismatch(
            f"the other side is no reroll server of protocol {VERSION}; check the address, and use the same reroll on both"
        )
    message = _read(_read_to_client, first)
    _check_count(message.answers, len(frames) - 1)
    return message


def _read(read: Callable[[memoryview], M], first: Blob) -> M:
    try:
        return read(memoryview(first)[len(HEAD) :])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from None


def _check_count(parts: Sequence[Call] | Sequence[Answer], blobs: int) -> None:
    if sum(part.blobs for part in parts) != blobs:
        raise Malformed(f"{blobs} blobs, but the body speaks of others")
