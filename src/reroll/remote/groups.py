"""Groups as bytes: one blob for the rollouts, and beside it the metadata that a buffer needs, so that it decodes no group.

In:  the producer summarizes and encodes the rollouts (`encode_put`); the buffer stores the bytes (`decode_put`).
Out: inside `as_bytes()` the buffer delivers the bytes with pending edits (`encode_delivery`); the client decodes them and
     applies the edits (`decode_delivery`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from reroll.buffer.packed import Packed, Shown, as_bytes, pack, unpack
from reroll.codec import encode
from reroll.errors import CorruptData
from reroll.remote.protocol import WireInfo
from reroll.remote.values import to_value
from reroll.sample import Sample, SampleInfo
from reroll.store import Blob

__all__ = [
    "as_bytes",
    "decode_delivery",
    "decode_put",
    "decode_samples",
    "encode_delivery",
    "encode_infos",
    "encode_put",
]

_read_edits: Final = msgspec.msgpack.Decoder(tuple[int, bytes, int | None, int, bool, str | None]).decode
_NOT_DRAWN: Final = WireInfo(0, 1.0, 1.0, 1.0, 0, 0, 0)


def encode_put(items: Sequence[Any], model_step: int | None) -> tuple[bytes, bytes]:
    """Return a group's metadata and its rollouts as bytes. Raises InvalidArgument and NotStorable with rollout and field."""
    return pack(items, model_step)


def decode_put(metadata: bytes, blob: Blob, model_step: int | None) -> Packed | list[Any]:
    """Return a group that can be put; plain rollouts stay bytes. Raises InvalidArgument, CorruptData, UnsupportedFormat."""
    return unpack(metadata, blob, partial=model_step is not None)


def encode_delivery(group: Shown | list[Any]) -> tuple[bytes, Blob]:
    """Return the pending edits of a delivered group, empty if it was decoded, and its rollouts as bytes."""
    if isinstance(group, Shown):
        return msgspec.msgpack.encode(group[:-1]), group.blob
    return b"", encode(group, root="rollouts")


def decode_delivery(edits: bytes, blob: Blob) -> list[Any]:
    """Return the rollouts of a delivered group. Raises CorruptData, UnsupportedFormat."""
    if not edits:
        rollouts: list[Any] = to_value(blob)
        return rollouts
    try:
        return Shown(*_read_edits(edits), blob).rollouts()
    except msgspec.MsgspecError as error:
        raise CorruptData(f"edits of a delivered group cannot be decoded: {error}") from None


def encode_infos(samples: Mapping[str, Iterable[Sample]]) -> dict[str, list[WireInfo | None]]:
    """Return the infos of samples by task."""
    return {task: [WireInfo(*info[:-1]) for _, info in drawn] for task, drawn in samples.items()}


def decode_samples(
    infos: Mapping[str, Sequence[WireInfo | None]], edits: Sequence[bytes], blobs: Sequence[Blob]
) -> dict[str, list[Sample]]:
    """Return delivered groups with their infos by task. Raises CorruptData, UnsupportedFormat."""
    groups = map(decode_delivery, edits, blobs)
    return {
        task: [Sample(next(groups), SampleInfo(*(info or _NOT_DRAWN), task)) for info in listed]
        for task, listed in infos.items()
    }
