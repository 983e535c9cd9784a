"""Frames through Ray: the carrier of a client, and groups with Ray references.

The blobs of one exchange travel as one array, which Ray's object store shares without a copy. References inside of groups travel
beside it, as arguments, so that Ray counts them.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import numpy as np
import ray
from ray.exceptions import ActorDiedError, ObjectLostError, RayActorError, RayError

from reroll.errors import Closed, NotStorable, RerollError, WaitTimeout
from reroll.remote.client import RemoteBuffer
from reroll.remote.groups import decode_group, encode_group
from reroll.store import Blob
from reroll.waiting import deadline_of

_RETRY_S: Final = (0.05, 1.0)
"""Seconds between two tries to reach an actor that is being restarted: the first, and the longest."""
_FAREWELL_S: Final = 0.5
"""Seconds that the last message of a client has to leave."""
_INLINE_BYTES: Final = 64 * 1024
"""Ray sends smaller arguments with the call; for those plain bytes are faster than an array."""

_PACKET_BYTES: Final = 1 << 22
"""Messages of one moment share an exchange up to this size."""

Message = Sequence[Blob]


class Packet(NamedTuple):
    """The messages of one exchange, as Ray carries them."""

    heads: list[bytes]
    """The first frame of each message."""
    sizes: list[list[int]]
    """The sizes of the blobs of each message."""
    joined: Any
    """All blobs, one after the other."""
    refs: list[tuple[int, list[Any]]]
    """References of a blob, by its number."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Self:
        """Return messages in one packet."""
        blobs = [blob for _, *blobs in messages for blob in blobs]
        joined: Any = b""
        if sum(map(len, blobs)) < _INLINE_BYTES:
            joined = b"".join(blobs)
        else:
            joined = np.concatenate([np.frombuffer(blob, np.uint8) for blob in blobs])
        return cls(
            [bytes(head) for head, *_ in messages],
            [[len(blob) for blob in blobs] for _, *blobs in messages],
            joined,
            [(i, blob.refs) for i, blob in enumerate(blobs) if isinstance(blob, ReferringBlob)],
        )

    def messages(self) -> list[list[Blob]]:
        """Return the messages; their blobs are views."""
        view, refs, start, number = memoryview(self.joined), dict(self.refs), 0, 0
        found: list[list[Blob]] = []
        for head, sizes in zip(self.heads, self.sizes, strict=True):
            message: list[Blob] = [head]
            for size in sizes:
                blob = view[start : start + size]
                message.append(ReferringBlob.of(blob, refs[number]) if number in refs else blob)
                start, number = start + size, number + 1
            found.append(message)
        return found


# --- references


class ReferringBlob(bytes):
    """The rollouts of a group as bytes, in which Ray references are numbers."""

    refs: list[Any]

    @classmethod
    def of(cls, blob: Blob, refs: list[Any]) -> Self:
        """Return bytes with their references."""
        made = cls(blob)
        made.refs = refs
        return made


class References:
    """The references of one group by number, or the objects that they stand for."""

    def __init__(self, found: Iterable[Any] = ()) -> None:
        self.found = list(found)

    def store(self, ref: Any) -> int:
        """Return the number of a reference."""
        if ref not in self.found:
            self.found.append(ref)
        return self.found.index(ref)

    def load(self, number: int) -> Any:
        """Return the reference of a number. Raises LookupError."""
        return self.found[number]


def encode_with_refs(group: Sequence[Any]) -> tuple[bytes, Blob]:
    """Return a group as `encode_group` does, with its references."""
    refs = References()
    metadata, body = encode_group(group, refs)
    return metadata, ReferringBlob.of(body, refs.found) if refs.found else body


def decode_with_refs(metadata: Blob, body: Blob) -> Any:
    """Return a group as `decode_group` does, with its references."""
    return decode_group(metadata, body, References(getattr(body, "refs", ())))


def keep_blob(blob: Blob) -> Blob:
    """Return a blob on the heap: the producer's object may go."""
    return blob if isinstance(blob, ReferringBlob) else bytes(blob)


class ShardClient(RemoteBuffer):
    """A client of one actor: Ray references inside of groups are resolved, or kept."""

    def __init__(self, connect: Callable[[], Any], *, keep_refs: bool) -> None:
        super().__init__(connect)
        self._keep_refs = keep_refs

    async def _encode(self, items: Sequence[Any], arguments: dict[str, Any]) -> tuple[bytes, Blob]:
        deadline = deadline_of(arguments.get("timeout"))
        while True:
            metadata, body = encode_with_refs(items)
            if self._keep_refs or not isinstance(body, ReferringBlob):
                return metadata, body
            objects = await _fetch(body.refs, deadline)  # which may have references again
            items = decode_group(metadata, body, References(objects))

    def _decode(self, metadata: Blob, body: Blob) -> Any:
        return decode_with_refs(metadata, body)


async def _fetch(refs: Sequence[Any], deadline: float | None) -> list[Any]:
    """Return the objects of references. Raises WaitTimeout, NotStorable."""
    fetching = asyncio.gather(*(asyncio.wrap_future(ref.future()) for ref in refs))
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        return list(await asyncio.wait_for(fetching, left))
    except TimeoutError as error:
        raise WaitTimeout(
            "put timed out; nothing was changed. A reference in the group is not ready"
        ) from error
    except RayError as error:
        raise NotStorable(
            f"the object of a reference in the group is not available: {error}; put the group without it"
        ) from error


# --- the carrier of a client


class RayCarrier:
    """Exchanges frames with one actor. An exchange returns what the actor has to send, as soon as there is something.

    A thread sends heartbeats while the event loop is busy with a training step.
    """

    def __init__(
        self,
        session: bytes,
        heartbeat: Message,
        receive: Callable[[Message], None],
        end: Callable[[RerollError], None],
        *,
        find: Callable[[], Any],
        closed: str,
        heartbeat_s: float,
    ) -> None:
        """Exchange frames with the actor that `find` returns; see `reroll.remote.connection.Dial`.

        `closed` is the message of Closed, which calls raise when the actor has ended for good.
        """
        self._session, self._receive, self._end = session, receive, end
        self._find, self._closed_text = find, closed
        self._loop = asyncio.get_running_loop()
        self._outbox: list[Message] = []
        self._outbox_bytes = 0
        self._number = 0
        self._exchanges: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._sent_at = time.monotonic()
        self._actor = find()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._beat, args=(bytes(heartbeat[0]), heartbeat_s), name="reroll-heartbeat", daemon=True
        )
        self._thread.start()

    def send(self, frames: Message) -> None:
        """Send a message, together with other messages of this moment, or keep it until that is possible."""
        self._outbox.append(frames)
        self._outbox_bytes += sum(map(len, frames))
        if self._outbox_bytes >= _PACKET_BYTES:
            self._flush()
        elif len(self._outbox) == 1:
            self._loop.call_soon(self._flush)

    def read(self) -> None:
        """Deliver the messages that have arrived: their exchanges do."""

    async def close(self, last: Message) -> None:
        """Send a last message, and end."""
        self.send(last)
        self._flush()
        self._is_closed = True
        self._stopping.set()
        await asyncio.wait(self._exchanges, timeout=_FAREWELL_S)
        for task in self._exchanges:
            task.cancel()

    def _flush(self) -> None:
        messages, self._outbox, self._outbox_bytes = self._outbox, [], 0
        if messages:
            self._exchange(messages)

    def _exchange(self, messages: Sequence[Message]) -> None:
        self._number += 1
        self._sent_at = time.monotonic()
        task = self._loop.create_task(self._until_answered(self._number, Packet.of(messages)))
        self._exchanges.add(task)
        task.add_done_callback(self._exchanges.discard)

    async def _until_answered(self, number: int, packet: Packet) -> None:
        pause = _RETRY_S[0]
        while True:
            try:
                answer, is_waiting = await self._actor.exchange.remote(self._session, number, packet)
                break
            except ActorDiedError:  # for good: Ray restarts the actor after any other end
                self._end(Closed(self._closed_text))
                return
            except (RayActorError, ObjectLostError):
                if self._is_closed:
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_S[1])
            except RayError as error:
                self._end(Closed(f"{self._closed_text}: {error}"))
                return
        for message in answer.messages():
            self._receive(message)
        if is_waiting and len(self._exchanges) == 1 and not self._is_closed:
            self._exchange([])  # for the replies of calls that wait

    def _beat(self, heartbeat: bytes, heartbeat_s: float) -> None:
        while not self._stopping.wait(heartbeat_s) and not self._loop.is_closed():
            if time.monotonic() - self._sent_at > 1.5 * heartbeat_s and ray.is_initialized():
                with suppress(Exception):  # an actor that is away
                    self._actor.heartbeat.remote(heartbeat)
