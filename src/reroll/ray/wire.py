"""What travels between handles and shards, besides plain values: requests, replies, and groups as blobs.

Ray carries values and errors as they are. A group travels as one blob of bytes, by value: nobody else's object store has
to live for it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.ray.drawing import Drawn
from reroll.remote.groups import decode_group, encode_group
from reroll.sample import SampleInfo

Array = npt.NDArray[np.uint8]


class Blob(NamedTuple):
    """A group on its way."""

    known: bytes
    """The metadata of the group."""
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


def put_in(items: Any) -> Blob | Bare:
    """Return what is to be put as bytes. Raises InvalidArgument that names rollout and field, NotStorable."""
    if isinstance(items, str | bytes) or not isinstance(items, Sequence) or not items:
        return Bare(items)
    return hand_in(items)


def resolved(blob: Blob, values: Sequence[Any]) -> Sequence[Any]:
    """Return the rollouts of a group with what its references stand for in their place."""
    return decode_group(blob.known, blob.rollouts.data, Refs(values))


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


def put_out(items: Blob | Bare) -> Any:
    """Return what can be put, on the heap of this process."""
    match items:
        case Bare(plain):
            return plain
        case Blob(known, rollouts, refs):
            return decode_group(known, rollouts.tobytes(), Refs(refs))


def hand_in(group: Any) -> Blob:
    """Return a group as bytes, with its references beside it. Raises NotStorable."""
    refs = Refs()
    known, blob = encode_group(group, refs)
    return Blob(known, np.frombuffer(blob, np.uint8), tuple(refs.found))


def hand_out(blob: Blob) -> Sequence[Any]:
    """Return a group that was handed out; its arrays are views, and cannot be written to."""
    return resolved(blob, blob.refs)
