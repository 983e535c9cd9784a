"""Messages between a client and the process that hosts a buffer, and their framing.

A message is a list of frames: the first holds `HEAD` (magic and version) and a MessagePack body, the others are the blobs of
its calls or replies in their order, one for each group. A host that reads another version answers with one frame: `HEAD`,
"refused" and a text; this form is the same in all versions. No message is ever unpickled.

Calls have numbers that increase within a session. A client repeats a call until its reply arrives; the host executes it
once, and keeps the reply until the client reports that it received it.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from reroll.errors import ProtocolMismatch
from reroll.store import Blob

M = TypeVar("M")

VERSION: Final = 1
MAGIC: Final = b"reroll"
HEAD: Final = MAGIC + bytes([VERSION])
REFUSED: Final = b"refused"

MAX_ENTRIES: Final = 16_384
"""Numbers in each list of a client's message."""
MAX_CALLS: Final = 4096
"""Calls in a message: other clients wait while the host accepts them."""

_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Numbers = Annotated[list[_Number], Meta(max_length=MAX_ENTRIES)]


class Call(msgspec.Struct, array_like=True, frozen=True):
    """One call of a verb."""

    number: _Number
    verb: Annotated[str, Meta(max_length=64)]
    arguments: bytes
    blobs: Annotated[int, Meta(ge=0, le=1 << 20)] = 0


class ClientMessage(msgspec.Struct, array_like=True, frozen=True):
    """Message from a client to the host."""

    calls: Annotated[list[Call], Meta(max_length=MAX_CALLS)] = []
    cancelled: _Numbers = []
    """Calls that the caller cancelled; a lease or reservation that such a call acquired is returned."""
    received: _Numbers = []
    """Calls whose replies arrived; the host drops these replies."""
    waiting: _Numbers | None = None
    """Heartbeat that asks for an answer: calls sent before this message that have no reply yet."""
    is_goodbye: bool = False
    """Whether the client closes its session."""
    session: Annotated[bytes, Meta(max_length=255)] | None = None
    """Heartbeat for the session with this id; the other fields are ignored."""


class WireInfo(NamedTuple):
    """A `SampleInfo` without its task."""

    uid: int
    priority: float
    probability: float
    weight: float
    times_sampled: int
    staleness: int
    table_size: int


class LeaseReply(msgspec.Struct, array_like=True, frozen=True):
    """Groups that a call delivers."""

    lease: int | None
    """The lease of the groups; None if they are consumed already."""
    is_durable: bool
    """Whether the client must wait for the acknowledgement of the lease before it uses the groups."""
    infos: dict[str, list[WireInfo | None]]
    bounded: list[str] = []
    """Tasks with a `max_staleness`: a client that prefetches checks the age of their groups."""


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """Outcome of a call: an error, groups, an integer or None, or another value."""

    number: int
    is_error: bool
    value: bytes = b""
    integer: int | None = None
    """The value if it is an integer or None; `value` is empty then."""
    lease: LeaseReply | None = None
    metadata: list[bytes] = []
    """The metadata of each group."""
    blobs: int = 0


class HostMessage(msgspec.Struct, array_like=True, frozen=True):
    """Message from the host to a client."""

    length: int
    """Groups in the buffer."""
    replies: list[Reply] = []
    lost: list[int] | None = None
    """Answer to a heartbeat: calls that the host does not execute at the moment; the client sends them again."""
    max_frame_bytes: int | None = None
    """With `lost`: the largest frame that the host accepts. A larger frame ends the connection, so its call is always lost."""


class Malformed(Exception):  # noqa: N818  (never leaves this package)
    """Frames that are not a message."""


_write: Final = msgspec.msgpack.Encoder().encode
_read_client_message: Final = msgspec.msgpack.Decoder(ClientMessage).decode
_read_host_message: Final = msgspec.msgpack.Decoder(HostMessage).decode


def encode_message(message: ClientMessage | HostMessage, blobs: Sequence[Blob] = ()) -> list[Blob]:
    """Return the frames of a message."""
    return [HEAD + _write(message), *blobs]


def encode_refusal(text: str) -> list[Blob]:
    """Return the frames that explain to a peer of any version why the host refuses it."""
    return [HEAD + REFUSED + text.encode()]


def protocol_version(first: Blob) -> int | None:
    """Return the protocol version of a first frame; None if it is not a frame of reroll."""
    return first[len(MAGIC)] if len(first) >= len(HEAD) and first[: len(MAGIC)] == MAGIC else None


def decode_client_message(first: Blob, blobs: int) -> ClientMessage:
    """Return the message of a first frame of our version that is followed by `blobs` blobs. Raises Malformed."""
    message = _decode(_read_client_message, first)
    _check_blobs(message.calls, blobs)
    return message


def decode_host_message(frames: Sequence[Blob]) -> HostMessage:
    """Return the message of the host. Raises ProtocolMismatch, Malformed."""
    first = frames[0]
    version = protocol_version(first)
    body = bytes(first[len(HEAD) : len(HEAD) + len(REFUSED)])
    if version is not None and body == REFUSED:
        raise ProtocolMismatch(bytes(first[len(HEAD) + len(REFUSED) :]).decode(errors="replace"))
    if version != VERSION:
        raise ProtocolMismatch(
            f"the peer is not a reroll server of protocol {VERSION}; check the address, and use the same reroll on both sides"
        )
    message = _decode(_read_host_message, first)
    _check_blobs(message.replies, len(frames) - 1)
    return message


def _decode(read: Callable[[memoryview], M], first: Blob) -> M:
    try:
        return read(memoryview(first)[len(HEAD) :])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from None


def _check_blobs(parts: Sequence[Call] | Sequence[Reply], blobs: int) -> None:
    if (named := sum(part.blobs for part in parts)) != blobs:
        raise Malformed(f"the message has {blobs} blobs, its body names {named}")
