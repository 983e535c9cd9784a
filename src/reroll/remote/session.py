"""One client of a host: its calls, the replies that it has not received, and the leases and reservations that it holds.

A call is executed once, however often it arrives; its reply is kept until the client reports that it received it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from reroll.buffer.reservations import Reservation
from reroll.errors import InvalidConfig, LimitReached
from reroll.remote.protocol import HostMessage, Reply, encode_message
from reroll.store import Blob

_REMEMBERED: Final = 4096
"""Ended calls whose numbers are remembered, in case that they arrive again."""
_REPLY_BYTES: Final = 512
"""Memory of a reply besides its value and its blobs, roughly."""
_MAX_UNSENT: Final = 16_384
"""Replies in the outbox from which on refusals are dropped; the client asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on clients. A call above a limit raises LimitReached; other clients are not affected.

    Attributes:
        max_clients: clients that may be connected.
        max_message_bytes: size of one frame; a client that sends a larger one is disconnected.
        max_pending_calls: calls of one client without a reply.
        max_pending_bytes: bytes of one client's calls without a reply, and of replies that it has not received.
        client_ttl_s: seconds of silence after which a client is gone: its waits end, its leases and reservations return.

    """

    max_clients: int = 1024
    max_message_bytes: int = 1 << 30
    max_pending_calls: int = 4096
    max_pending_bytes: int = 1 << 30
    client_ttl_s: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidConfig(f"{field.name} must be above 0, not {getattr(self, field.name)}")


class StoredReply(NamedTuple):
    """A reply and its groups."""

    reply: Reply
    blobs: Sequence[Blob]

    @property
    def num_bytes(self) -> int:
        """Memory that the reply takes."""
        parts = len(self.reply.value) + sum(map(len, self.reply.metadata))
        return _REPLY_BYTES + parts + sum(map(len, self.blobs))


class PendingCall(NamedTuple):
    """A call that is being executed."""

    task: "asyncio.Future[None]"
    num_bytes: int


class Session:
    """State of one client; sends nothing and waits for nothing."""

    def __init__(self, identity: bytes, now: float) -> None:
        self.identity = identity
        self.heard_at = now
        self.pending: dict[int, PendingCall] = {}
        self.replies: dict[int, StoredReply] = {}
        """Replies that the client has not received, by call."""
        self.num_bytes = 0
        """Bytes of pending calls and of replies that the client has not received."""
        self.leases: dict[int, int] = {}
        """Leases that the client holds, by the call that acquired each."""
        self.reservations: dict[int, Reservation] = {}
        """Reservations that the client holds, by the call that acquired each."""
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._outbox: dict[int, StoredReply] = {}
        self._lost: list[int] | None = None

    @property
    def name(self) -> str:
        """Short name of the client in logs."""
        return self.identity.hex()[:12]

    # --- calls and replies

    def has_seen(self, number: int) -> bool:
        """Return whether a call arrived before; if it has a reply, send that again."""
        if number in self.replies:
            self._outbox[number] = self.replies[number]
            return True
        return number in self.pending or number in self._ended

    def check_limits(self, num_bytes: int, limits: Limits) -> None:
        """Raise LimitReached if the client may not have another call of this size."""
        if len(self.pending) >= limits.max_pending_calls:
            raise LimitReached(
                f"this client has {len(self.pending)} calls without a reply, and the server allows "
                f"{limits.max_pending_calls}; wait for replies, or raise max_pending_calls"
            )
        if self.num_bytes + num_bytes > limits.max_pending_bytes:
            raise LimitReached(
                f"this client would have {self.num_bytes + num_bytes} bytes under way, and the server allows "
                f"{limits.max_pending_bytes}; send less at once, or raise max_pending_bytes"
            )

    def begin(self, number: int, task: "asyncio.Future[None]", num_bytes: int) -> None:
        """Register a call that waits."""
        self.pending[number] = PendingCall(task, num_bytes)
        self.num_bytes += num_bytes

    def end(self, number: int) -> None:
        """Register that a call has ended, with or without a reply."""
        call = self.pending.pop(number, None)
        if call is not None:
            self.num_bytes -= call.num_bytes
        self._ended[number] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def answer(self, reply: Reply, blobs: Sequence[Blob] = ()) -> None:
        """Send the reply of a call, and keep it until the client has received it."""
        self.end(reply.number)
        stored = self.replies[reply.number] = self._outbox[reply.number] = StoredReply(reply, blobs)
        self.num_bytes += stored.num_bytes

    def refuse(self, reply: Reply) -> None:
        """Send a reply that is not kept: the call is considered anew if it arrives again."""
        if len(self._outbox) < _MAX_UNSENT:
            self._outbox[reply.number] = StoredReply(reply, ())

    def received(self, number: int) -> None:
        """Drop the reply of a call: the client has it, or does not want it."""
        stored = self.replies.pop(number, None)
        if stored is not None:
            self.num_bytes -= stored.num_bytes

    def report_lost(self, waiting: Sequence[int]) -> None:
        """Answer a heartbeat: name the calls the client waits for that are not being executed.

        A call with a reply counts as lost, too: the reply was sent before this answer, so it was lost if the client still waits.
        """
        self._lost = [number for number in waiting if number not in self.pending]

    # --- leases and reservations

    def holds(self, number: int) -> bool:
        """Return whether a call acquired a lease or a reservation that the client still holds."""
        return number in self.leases or number in self.reservations

    def end_lease(self, lease: int) -> None:
        """Register that the client no longer holds a lease."""
        self.leases = {call: held for call, held in self.leases.items() if held != lease}

    def end_reservation(self, reservation: Reservation) -> None:
        """Register that the client no longer holds a reservation."""
        self.reservations = {
            call: held for call, held in self.reservations.items() if held.id != reservation.id
        }

    # --- sending

    @property
    def has_unsent(self) -> bool:
        """Whether there is something to send."""
        return bool(self._outbox) or self._lost is not None

    def take_unsent(self, length: int, max_frame_bytes: int) -> list[Blob]:
        """Return the frames of everything that is to be sent.

        Args:
            length: groups in the buffer.
            max_frame_bytes: the largest frame that the host accepts.

        """
        outbox, self._outbox = list(self._outbox.values()), {}
        lost, self._lost = self._lost, None
        message = HostMessage(
            length, [stored.reply for stored in outbox], lost, None if lost is None else max_frame_bytes
        )
        return encode_message(message, [blob for stored in outbox for blob in stored.blobs])
