"""Groups that stay bytes: what a put must know of rollouts that it does not decode, and how they are handed on.

Whoever stands between others (a server) puts `Packed` groups: the bytes, and what was found by the one who encoded them.
Inside of `as_bytes()` such groups are handed out as `Shown`: the bytes again, with what has to be done to the rollouts.
Nothing here decides anything.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from mmap import mmap
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from reroll.buffer.group import BOUND, Group, Integer, Whole
from reroll.codec import count_plain_rollouts, decode, encode, encode_into
from reroll.errors import CorruptData, InvalidArgument
from reroll.rollout.foreign import read_length
from reroll.rollout.group import find_group_id, look_at_all
from reroll.rollout.member import Member
from reroll.rollout.status import Status
from reroll.store import Blob

_Amount = Annotated[int, Meta(ge=0, lt=1 << 40)]
"""Sums over all members fit into a column."""
_Members = Annotated[
    Sequence[
        tuple[Status, Integer, float | None, _Amount, _Amount, dict[Whole, _Amount], Whole | None, _Amount]
    ],
    Meta(min_length=1, max_length=1 << 16),
]


class _Known(msgspec.Struct, array_like=True, frozen=True):
    members: _Members
    group_uids: list[Integer]
    prompt_tokens: _Amount
    group_id: bytes | None


_read_known: Final = msgspec.msgpack.Decoder(_Known).decode
_write: Final = msgspec.msgpack.Encoder().encode


class Packed(NamedTuple):
    """The rollouts of a group as bytes, and what is known of them; may be put as they are."""

    blob: Blob
    members: list[Member]
    group_id: Any
    group_uids: tuple[int, ...]
    """Groups that the rollouts say they belong to."""
    prompt_tokens: int


def pack(items: Sequence[Any], model_step: int | None) -> tuple[bytes, bytes]:
    """Return what is known of rollouts, and the rollouts, as bytes. Raises InvalidArgument, NotStorable."""
    return _known_of(items, model_step), encode(list(items), root="rollouts")


def pack_into(memory: mmap, items: Sequence[Any], model_step: int | None) -> tuple[bytes, bytes | memoryview]:
    """Return what is known of rollouts, and the rollouts, as bytes: as `pack`, in this memory if it has room."""
    return _known_of(items, model_step), encode_into(memory, list(items), root="rollouts")


def _known_of(items: Sequence[Any], model_step: int | None) -> bytes:
    members = look_at_all(items, model_step)
    group_id = find_group_id(items)
    carried = {getattr(item, "group_uid", None) for item in items}
    prompts = sum(read_length("prompt_ids", getattr(item, "prompt_ids", None)) or 0 for item in items)
    known = _Known(
        members,
        [uid for uid in carried if type(uid) is int and abs(uid) < BOUND],
        prompts,
        None if group_id is None else encode(group_id, root="group_id"),
    )
    return _write(known)


def unpack(known: bytes, blob: Blob, *, partial: bool) -> Packed | list[Any]:
    """Return a group that can be put: as bytes, if it is known that these can be decoded at any time, else decoded.

    With `partial`, the last tokens may lack a version. Raises InvalidArgument, CorruptData, UnsupportedFormat.
    """
    try:
        read = _read_known(known)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidArgument(f"what is told of these rollouts cannot be: {error}") from None
    if count_plain_rollouts(blob, partial=partial) != len(read.members):
        rollouts = decode(blob)
        if type(rollouts) is not list:
            raise CorruptData(f"a group is a list of rollouts, not {type(rollouts).__name__}")
        return rollouts
    group_id = None if read.group_id is None else decode(read.group_id)
    members = [Member(*member) for member in read.members]
    return Packed(blob, members, group_id, tuple(read.group_uids), read.prompt_tokens)


class Shown(NamedTuple):
    """A group that is handed out as bytes, with what was done to its rollouts since they were encoded."""

    uid: int
    record: bytes
    step: int | None
    told: int
    is_final: bool
    """Whether the rollouts are as they are, without a look at the step."""
    blob: Blob

    def rollouts(self) -> list[Any]:
        """Return the rollouts, brought up to date. Raises CorruptData, UnsupportedFormat."""
        group = Group.from_record(self.uid, self.record)
        group.load(decode(self.blob))
        return group.items if self.is_final else group.handed_over(self.step, self.told)


_IS_WANTED: ContextVar[bool] = ContextVar("reroll_as_bytes", default=False)


@contextmanager
def as_bytes() -> Iterator[None]:
    """Inside, buffers hand out groups that they hold as bytes as `Shown`, others as lists."""
    token = _IS_WANTED.set(True)
    try:
        yield
    finally:
        _IS_WANTED.reset(token)


def are_bytes_wanted() -> bool:
    """Return whether this is inside of `as_bytes`."""
    return _IS_WANTED.get()


def show(group: Group, step: int | None, told: int, *, is_final: bool) -> Shown | None:
    """Return a group as bytes, None if it is to be shown as it is."""
    if group.packed is None:
        return None
    return Shown(group.uid, group.record(), step, told, is_final, group.packed)
