"""Groups as bytes: one blob each, and beside it what a buffer must know of it, so that it need not be decoded there.

In:  the producer's side looks at the rollouts and encodes them (`sent`, `sent_from`); the buffer's side puts the bytes (`received`).
Out: the buffer's side hands out inside of `as_bytes()` and writes what it got (`given`); the other reads it (`taken`).
"""

from collections.abc import Sequence
from mmap import mmap
from typing import Any

import msgspec

from reroll.buffer.packed import Packed, Shown, as_bytes, pack, pack_into, unpack
from reroll.codec import encode
from reroll.errors import CorruptData
from reroll.remote.values import to_value
from reroll.store import Blob

__all__ = ["as_bytes", "given", "received", "sent", "sent_from", "taken"]

_read_shown = msgspec.msgpack.Decoder(tuple[int, bytes, int | None, int, bool, str | None]).decode


def sent(items: Sequence[Any], model_step: int | None) -> tuple[bytes, bytes]:
    """Return what is known of a group, and the group, as bytes. Raises InvalidArgument that names rollout and field."""
    return pack(items, model_step)


def sent_from(memory: mmap, items: Sequence[Any], model_step: int | None) -> tuple[bytes, Blob]:
    """Return what `sent` returns; the group is in this memory, if that has room."""
    return pack_into(memory, items, model_step)


def received(known: bytes, blob: Blob, model_step: int | None) -> Packed | list[Any]:
    """Return what can be put; plain groups stay bytes. Raises InvalidArgument, CorruptData, UnsupportedFormat."""
    return unpack(known, blob, partial=model_step is not None)


def given(group: Shown | list[Any]) -> tuple[bytes, Blob]:
    """Return what was done to a group that is handed out, and the group, as bytes; nothing was, if it was decoded."""
    if isinstance(group, Shown):
        return msgspec.msgpack.encode(group[:-1]), group.blob
    return b"", encode(group, root="rollouts")


def taken(done: bytes, blob: Blob) -> list[Any]:
    """Return the rollouts of a group that was handed out. Raises CorruptData, UnsupportedFormat."""
    if not done:
        rollouts: list[Any] = to_value(blob)
        return rollouts
    try:
        return Shown(*_read_shown(done), blob).rollouts()
    except msgspec.MsgspecError as error:
        raise CorruptData(f"what was done to this group cannot be read: {error}") from None
