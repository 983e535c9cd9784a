"""Groups on the wire: columns travel as the bytes that they are, objects of other classes through the codec.

A group is two frames: its metadata (the head and the values that are not plain; empty for objects) and its body.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from reroll.codec import RefReader, RefWriter, decode, encode
from reroll.errors import CorruptData, InvalidArgument, NotStorable
from reroll.group import GroupBatch, RolloutGroup
from reroll.remote.protocol import WireInfo
from reroll.rollout import Rollout, check
from reroll.sample import Sample, SampleInfo
from reroll.store import Blob

_write: Final = msgspec.msgpack.Encoder().encode
_read: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes | None]).decode
_NOT_DRAWN: Final = WireInfo(0, 1.0, 1.0, 1.0, 0, 0, 0)


def encode_group(group: Sequence[Any], refs: RefWriter | None = None) -> tuple[bytes, Blob]:
    """Return the metadata and the body of a group. Raises NotStorable with the path to the value."""
    columns = group if isinstance(group, RolloutGroup) else _columns(group)
    if columns is None:
        try:
            return b"", encode(list(group), refs=refs, root="rollouts")
        except NotStorable:
            check(group)  # an object that is no rollout is refused as such
            raise
    head, body, objects = columns.frames(refs=refs)
    return _write((head, objects)), body


def _columns(rollouts: Sequence[Any]) -> RolloutGroup | None:
    if list(map(type, rollouts)).count(Rollout) == len(rollouts):
        try:
            return RolloutGroup.of(rollouts)
        except InvalidArgument:  # the buffer refuses them, or fails the member
            pass
    return None


def decode_group(metadata: Blob, body: Blob, refs: RefReader | None = None) -> RolloutGroup | list[Any]:
    """Return the group, whose head is compared with itself. Raises CorruptData, UnsupportedFormat."""
    if len(metadata):
        try:
            head, objects = _read(metadata)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise CorruptData(f"metadata of a group cannot be decoded: {error}") from None
        group = RolloutGroup.open(head, memoryview(body), objects, refs=refs)
        group.check()
        return group
    rollouts = decode(body, refs=refs)
    if type(rollouts) is not list:
        raise CorruptData(f"a group is a list of rollouts, not {type(rollouts).__name__}")
    return rollouts


def encode_infos(samples: Mapping[str, Iterable[Sample]]) -> dict[str, list[WireInfo | None]]:
    """Return the infos of samples by task."""
    return {task: [WireInfo(*info[:-1]) for _, info in drawn] for task, drawn in samples.items()}


def decode_samples(
    infos: Mapping[str, Sequence[WireInfo | None]],
    metadata: Sequence[bytes],
    bodies: Sequence[Blob],
    decode: Callable[[Blob, Blob], Any] = decode_group,
) -> dict[str, GroupBatch]:
    """Return delivered groups with their infos by task. Raises CorruptData, UnsupportedFormat."""
    groups = map(decode, metadata, bodies)
    return {
        task: GroupBatch.of(Sample(next(groups), SampleInfo(*(info or _NOT_DRAWN), task)) for info in listed)
        for task, listed in infos.items()
    }
