"""What travels between handles and shards, besides plain values: requests, replies, and groups as blobs.

Ray carries values and errors as they are. A group travels as one blob of bytes, by value: nobody else's object store has
to live for it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.codec import decode, encode
from reroll.errors import NotStorable
from reroll.ray.drawing import Drawn
from reroll.remote.groups import decode_delivery, decode_put, encode_delivery, encode_put
from reroll.sample import SampleInfo

Array = npt.NDArray[np.uint8]


class Blob(NamedTuple):
    """A group on its way."""

    known: bytes
    """What is known of it, or was done to it; nothing, if it has to be decoded."""
    rollouts: Array
    refs: tuple[Any, ...] = ()
    """The references in it, by their numbers in the rollouts."""


class Holder(NamedTuple):
    """Whoever has leases and reservations: a process, and the actor that it is, if it is one."""

    id: str
    actor: Any = None


class Request(NamedTuple):
    """One call. It has the same id each time it is tried."""

    id: str
    verb: str
    arguments: dict[str, Any]
    holder: Holder | None = None
    seen: tuple[str, ...] = ()
    """Calls whose replies have arrived: they need not be kept any more."""


class Reply(NamedTuple):
    """What a call returned, or raised."""

    value: Any = None
    error: Exception | None = None
    load: dict[str, int] | None = None
    """How many groups the shard holds, by task."""
    steps: dict[str, int] | None = None
    """The training step of each task that has one."""


class Lent(NamedTuple):
    """Groups under a lease of one shard, by task."""

    lease: int
    samples: dict[str, list[tuple[Blob, SampleInfo]]]


class Bare(NamedTuple):
    """What is to be put and is no group: the shard refuses it, or takes it for nothing."""

    items: Any


class Draw(NamedTuple):
    """What a shard would give of several that are asked: lent, and told by what is known of each group."""

    lease: int
    parts: dict[str, Drawn]
    hidden: frozenset[str] = frozenset()
    """Tasks of which others have drawn groups, and not said yet which of them they keep."""


def put_in(items: Any, model_step: int | None) -> Blob | Bare:
    """Return what is to be put as bytes. Raises InvalidArgument that names rollout and field, NotStorable."""
    if isinstance(items, str | bytes) or not isinstance(items, Sequence) or not items:
        return Bare(items)
    try:
        known, blob = encode_put(items, model_step if isinstance(model_step, int) else None)
    except NotStorable:
        found = _with_refs(list(items))
        if not found.refs:
            raise
        return found
    return Blob(known, np.frombuffer(blob, np.uint8))


def _with_refs(group: list[Any]) -> Blob:
    """Return a group with its references beside it. Raises NotStorable."""
    refs = Refs()
    blob = encode(group, root="rollouts", refs=refs)
    return Blob(b"", np.frombuffer(blob, np.uint8), tuple(refs.found))


def resolved(blob: Blob, values: Sequence[Any]) -> list[Any]:
    """Return the rollouts of a group with what its references stand for in their place."""
    group: list[Any] = decode(blob.rollouts.data, refs=Refs(values))
    return group


class Refs:
    """The references of one group, by number: written, and read again. Or what they stand for."""

    def __init__(self, found: Sequence[Any] = ()) -> None:
        self.found = list(found)

    def store(self, ref: Any) -> int:
        """Return the number of a reference."""
        if ref not in self.found:
            self.found.append(ref)
        return self.found.index(ref)

    def load(self, number: int) -> Any:
        """Return the reference of a number. Raises LookupError."""
        return self.found[number]


def size_of(request: Request) -> int:
    """Return how many bytes of a group travel with a request."""
    match request.arguments.get("items"):
        case Blob(_, rollouts, _):
            return int(rollouts.nbytes)
    return 0


def put_out(items: Blob | Bare, model_step: int | None) -> Any:
    """Return what can be put, on the heap of this process."""
    match items:
        case Bare(plain):
            return plain
        case Blob(known, rollouts, refs):
            blob = rollouts.tobytes()
            return decode_put(known, blob, model_step) if known else decode(blob, refs=Refs(refs))


def hand_in(group: Any) -> Blob:
    """Return a group that is handed out as bytes."""
    if isinstance(group, list):
        return _with_refs(group)
    done, blob = encode_delivery(group)
    return Blob(done, np.frombuffer(blob, np.uint8))


def hand_out(blob: Blob) -> list[Any]:
    """Return the rollouts of a group that was handed out; their arrays are views, and cannot be written to."""
    if blob.refs:
        return resolved(blob, blob.refs)
    return decode_delivery(blob.known, blob.rollouts.data)
