"""One client, as the server sees it: its calls, the answers it has not received, and what it holds.

A call is carried out once, however often it arrives; its answer is kept until the client has it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import zmq

from reroll.buffer.reservations import Reservation
from reroll.server.port import Part, part_of
from reroll.server.wire import Answer, ToClient, frames_of
from reroll.store import Blob

_REMEMBERED: Final = 4096
"""Calls that are over, and known as such if they arrive once more."""
_ANSWER_BYTES: Final = 512
"""What is kept for an answer that says nothing, roughly."""
_SMALL: Final = 16 * 1024
"""Messages of fewer bytes are not counted while they wait to be read; their number is limited."""
_REFUSED: Final = 16_384
"""Answers that wait to be sent beside those that are kept."""


class Answered(NamedTuple):
    """An answer, and its groups."""

    answer: Answer
    blobs: Sequence[Blob]

    @property
    def num_bytes(self) -> int:
        """How much is kept for it."""
        told = len(self.answer.value) + sum(map(len, self.answer.done))
        return _ANSWER_BYTES + told + sum(map(len, self.blobs))


class Pending(NamedTuple):
    """A call that is being carried out."""

    task: "asyncio.Future[None]"
    num_bytes: int


class Session:
    """The state of one client; sends nothing and waits for nothing."""

    def __init__(self, identity: bytes, now: float) -> None:
        self.identity = identity
        self.heard_at = now
        self.pending: dict[int, Pending] = {}
        self.num_bytes = 0
        """Of calls that are pending, and of answers that were not received."""
        self.leases: dict[int, int] = {}  # which call got which lease
        self.reservations: dict[int, Reservation] = {}  # the same
        self._answers: dict[int, Answered] = {}
        self._over: OrderedDict[int, None] = OrderedDict()
        self._outbox: dict[int, Answered] = {}  # by call: who asks twice before it is sent gets it once
        self._lost: list[int] | None = None
        self._leaving: deque[tuple[zmq.MessageTracker, int]] = (
            deque()
        )  # messages that wait to be read, and their bytes

    @property
    def unread_bytes(self) -> int:
        """How much was sent that the client has not read, small messages aside. It gets no more above a limit."""
        leaving = self._leaving
        while leaving and leaving[0][0].done:
            leaving.popleft()
        return sum(num_bytes for _, num_bytes in leaving)

    def holds(self, number: int) -> bool:
        """Return whether a call got a lease or a reservation that the client still holds."""
        return number in self.leases or number in self.reservations

    @property
    def name(self) -> str:
        """How logs call it."""
        return self.identity.hex()[:12]

    def is_known(self, number: int) -> bool:
        """Return whether a call came before; if it was answered, the answer is sent once more."""
        if number in self._answers:
            self._outbox[number] = self._answers[number]
            return True
        return number in self.pending or number in self._over

    def begin(self, number: int, task: "asyncio.Future[None]", num_bytes: int) -> None:
        """Let a call be pending."""
        self.pending[number] = Pending(task, num_bytes)
        self.num_bytes += num_bytes

    def end(self, number: int) -> None:
        """Let a call be over, whether or not it is answered."""
        done = self.pending.pop(number, None)
        if done is not None:
            self.num_bytes -= done.num_bytes
        self._over[number] = None
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)

    def answer(self, answer: Answer, blobs: Sequence[Blob] = ()) -> None:
        """Let an answer be sent, and kept."""
        self.end(answer.number)
        kept = self._answers[answer.number] = Answered(answer, blobs)
        self.num_bytes += kept.num_bytes
        self._outbox[answer.number] = kept

    def refuse(self, answer: Answer) -> None:
        """Let an answer be sent to a call of which nothing is kept; one that comes once more is looked at anew."""
        if len(self._outbox) < _REFUSED:  # a client that hears nothing asks again
            self._outbox[answer.number] = Answered(answer, ())

    def received(self, number: int) -> None:
        """Learn that the client has an answer."""
        kept = self._answers.pop(number, None)
        if kept is not None:
            self.num_bytes -= kept.num_bytes

    def report_lost(self, waiting: Sequence[int]) -> None:
        """Let the client know which of the calls that it waits for are not under way.

        What was answered was answered before this: if it is still waited for then, it got lost.
        """
        self._lost = [number for number in waiting if number not in self.pending]

    def lease_ended(self, lease: int) -> None:
        """Learn that a lease is no longer held."""
        for call in [call for call, held in self.leases.items() if held == lease]:
            del self.leases[call]

    def reservation_ended(self, reservation: Reservation) -> None:
        """Learn that a reservation is no longer held."""
        for call in [call for call, held in self.reservations.items() if held.id == reservation.id]:
            del self.reservations[call]

    @property
    def has_mail(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._outbox) or self._lost is not None

    def mail(self, length: int, largest: int) -> list[Part]:
        """Return the frames of all that is to be sent, by a server with so many groups that takes parts of this size."""
        outbox, self._outbox = list(self._outbox.values()), {}
        lost, self._lost = self._lost, None
        blobs = [part_of(blob) for answered in outbox for blob in answered.blobs]
        answers = [answered.answer for answered in outbox]
        message = ToClient(length, answers, lost, None if lost is None else largest)
        first, *rest = frames_of(message, blobs)
        num_bytes = len(first) + sum(map(len, rest))
        if num_bytes < _SMALL:
            return [self.identity, first, *rest]
        frame = zmq.Frame(first, track=True, copy=False, copy_threshold=0)
        self._leaving.append((frame.tracker, num_bytes))
        return [self.identity, frame, *rest]
