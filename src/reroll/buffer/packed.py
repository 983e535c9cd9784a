"""Groups that stay bytes: what a put must know of rollouts that it does not decode, and how they are handed on.

Whoever stands between others (a server) puts `Packed` groups: the bytes, and what was found by the one who encoded them.
Inside of `as_bytes()` such groups are handed out as `Shown`: the bytes again, with what has to be done to the rollouts.
Nothing here decides anything.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from reroll.buffer.group import BOUND, Group, Integer, Whole, count_prompts
from reroll.codec import count_plain_rollouts, decode, encode
from reroll.errors import CorruptData, InvalidArgument
from reroll.rollout import GroupSummary, Status, summarize
from reroll.rollout.checkout import Checkout, mark, read_checkouts
from reroll.rollout.rules import find_invalid
from reroll.rollout.summary import Measure
from reroll.store import Blob

_MOST_MEMBERS: Final = 1 << 16
_MOST_BITS: Final = 40
_Amount = Annotated[int, Meta(ge=0, lt=1 << _MOST_BITS)]
"""Sums over all members fit into a column."""
_Versions = tuple[Whole | None, ...]


class _Known(msgspec.Struct, array_like=True, frozen=True):
    """A `GroupSummary`, and what else a put asks rollouts for. What follows from the rest is not told."""

    status: Status
    version_tokens: dict[Whole, _Amount]
    versions: _Versions
    trainable: _Versions
    tokens: tuple[_Amount, ...]
    staleness: tuple[Integer, ...]
    reward_mean: float | None
    reward_std: float | None
    measure: tuple[_Amount, bytes, _Amount, float, _Amount, bool, bool]
    group_uids: list[Integer]
    checkouts: list[str]
    prompt_tokens: _Amount
    group_id: bytes | None
    invalid: list[tuple[int, str]] = []

    def summary(self, num_bytes: int) -> GroupSummary:
        """Return what is known of the group, of which so many bytes are held. Raises InvalidArgument for what cannot be."""
        count, measure = len(self.tokens), Measure(*self.measure)
        sizes = {count, len(self.versions), len(self.trainable), len(self.staleness), len(measure.bits)}
        if not (
            len(sizes) == 1
            and self.status is not Status.ARCHIVED  # no group is
            and 0 < count <= _MOST_MEMBERS
            and max(measure.bits) <= _MOST_BITS
            and isfinite(measure.score)
        ):
            raise InvalidArgument(
                "what is told of these rollouts cannot be: it does not fit together; use the same reroll on both sides"
            )
        versions = self.versions
        return GroupSummary(
            status=self.status,
            group_id=None if self.group_id is None else decode(self.group_id),
            version=min(self.version_tokens, default=None),
            newest_version=max(self.version_tokens, default=None),
            staleness=max(self.staleness),
            num_rollouts=count,
            num_tokens=sum(self.tokens),
            num_bytes=num_bytes,
            reward_mean=self.reward_mean,
            reward_std=self.reward_std,
            version_tokens=self.version_tokens,
            member_versions=versions,
            member_newest_trainable=versions if self.trainable == versions else self.trainable,
            member_tokens=self.tokens,
            member_staleness=self.staleness,
            measure=measure,
        )


_read_known: Final = msgspec.msgpack.Decoder(_Known).decode
_write: Final = msgspec.msgpack.Encoder().encode


class Packed(NamedTuple):
    """The rollouts of a group as bytes, and what is known of them; may be put as they are."""

    blob: Blob
    summary: GroupSummary
    group_uids: tuple[int, ...]
    """Groups that the rollouts say they belong to."""
    checkouts: tuple[Checkout, ...]
    """Checkouts that the rollouts carry."""
    prompt_tokens: int
    invalid: tuple[tuple[int, str], ...] = ()
    """Rollouts that must not be trained on, and why."""


def pack(items: Sequence[Any], model_step: int | None) -> tuple[bytes, bytes]:
    """Return what is known of rollouts, and the rollouts, as bytes. Raises InvalidArgument, NotStorable."""
    return _known_of(items, model_step), encode(list(items), root="rollouts")


def _known_of(items: Sequence[Any], model_step: int | None) -> bytes:
    summary = summarize(items, model_step=model_step)
    carried = {getattr(item, "group_uid", None) for item in items}
    known = _Known(
        status=summary.status,
        version_tokens=summary.version_tokens,
        versions=summary.member_versions,
        trainable=summary.member_newest_trainable,
        tokens=summary.member_tokens,
        staleness=summary.member_staleness,
        reward_mean=summary.reward_mean,
        reward_std=summary.reward_std,
        measure=summary.measure,
        group_uids=[uid for uid in carried if type(uid) is int and abs(uid) < BOUND],
        checkouts=[checkout.text for checkout in read_checkouts(items)],
        prompt_tokens=count_prompts(items) if summary.prompt_tokens is None else summary.prompt_tokens,
        group_id=None if summary.group_id is None else encode(summary.group_id, root="group_id"),
        invalid=find_invalid(items),
    )
    return _write(known)


def unpack(known: bytes, blob: Blob, *, partial: bool) -> Packed | list[Any]:
    """Return a group that can be put: as bytes, if it is known that these can be decoded at any time, else decoded.

    With `partial`, the last tokens may lack a version. Raises InvalidArgument, CorruptData, UnsupportedFormat.
    """
    try:
        read = _read_known(known)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidArgument(
            f"what is told of these rollouts cannot be: {error}; use the same reroll on both sides"
        ) from None
    summary = read.summary(len(blob))  # what is held, whatever was told
    if count_plain_rollouts(blob, partial=partial) != summary.num_rollouts:
        rollouts = decode(blob)
        if type(rollouts) is not list:
            raise CorruptData(f"a group is a list of rollouts, not {type(rollouts).__name__}")
        return rollouts
    checkouts = tuple(found for text in read.checkouts if (found := Checkout.read(text)) is not None)
    uids, invalid = tuple(read.group_uids), tuple(read.invalid)
    return Packed(blob, summary, uids, checkouts, read.prompt_tokens, invalid)


class Shown(NamedTuple):
    """A group that is handed out as bytes, with what was done to its rollouts since they were encoded."""

    uid: int
    record: bytes
    step: int | None
    told: int
    is_final: bool
    """Whether the rollouts are as they are, without a look at the step."""
    checkout: str | None
    """The mark of a group that is to be rolled again."""
    blob: Blob

    def rollouts(self) -> list[Any]:
        """Return the rollouts, brought up to date. Raises CorruptData, UnsupportedFormat."""
        group = Group.from_record(self.uid, self.record)
        group.load(decode(self.blob))
        rollouts = group.items if self.is_final else group.handed_over(self.step, self.told)
        if self.checkout is not None:
            mark(rollouts, self.checkout)
        return rollouts


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


def show(group: Group, step: int | None, told: int, *, is_final: bool, checkout: str | None) -> Shown | None:
    """Return a group as bytes, None if it is to be shown as it is."""
    if group.packed is None:
        return None
    return Shown(group.uid, group.record(), step, told, is_final, checkout, group.packed)
