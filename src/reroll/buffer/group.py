"""One group: its rollouts, and what is known of each member without looking at it again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from reroll.codec import decode
from reroll.rollout import GroupSummary, Rollout, Status, expire, read_status, stamp, write_status
from reroll.rollout.adapters import read_length, read_seq_staleness, write_if_present
from reroll.rollout.checkout import unmark
from reroll.rollout.rules import write_same_staleness, write_staleness
from reroll.rollout.summary import Measure
from reroll.store import Blob

BOUND: Final = 1 << 62
"""Sums and differences of two smaller numbers fit into a column."""
Whole = Annotated[int, Meta(ge=0, lt=BOUND)]
Integer = Annotated[int, Meta(gt=-BOUND, lt=BOUND)]


class Applied(NamedTuple):
    """What a put wrote into its rollouts."""

    model_step: Integer | None = None
    staleness: tuple[Integer, ...] | None = None
    failed: bool = False

    def to(self, items: Sequence[Any]) -> None:
        """Write it."""
        if self.model_step is not None:
            for item in items:
                stamp(item, self.model_step)
        if self.staleness is not None:
            write_staleness(items, self.staleness)
        if self.failed:
            for item in items:
                if read_status(item.status) is not Status.COMPLETED:
                    write_status(item, Status.FAILED)


class Record(NamedTuple):
    """A group without its rollouts, as it is written down."""

    versions: tuple[Integer | None, ...]
    trainable: tuple[Integer | None, ...]
    version_tokens: dict[Integer, Integer]
    measure: Measure
    stale_at: Integer | None
    prompt_tokens: Integer
    applied: Applied
    emptied: dict[int, Integer]


_read_record = msgspec.msgpack.Decoder(Record, strict=False).decode


class Group:
    """The payload of a row. The row decides; rollouts follow when somebody gets to see them.

    So a refresh that expires thousands of groups stays quick: they are emptied when they are shown. Where groups are kept
    on disk, their rollouts may be there only: then `items` is empty until they are loaded. Those of a buffer that was resumed
    are bytes until somebody looks.
    """

    __slots__ = (
        "_is_frozen",
        "_items",
        "_packed",
        "_recorded",
        "_stale_at",
        "_told_at",
        "applied",
        "emptied",
        "measure",
        "prompts",
        "trainable",
        "uid",
        "version_tokens",
        "versions",
    )

    def __init__(self, uid: int, items: list[Any], summary: GroupSummary, told_at: int | None = None) -> None:
        self.uid = uid
        self._items = items
        self._packed: Blob | None = None
        self._stale_at: int | None = None
        # What was done to the rollouts since they were encoded; written down where they are kept on disk.
        self.applied = _NOTHING
        self.emptied: dict[int, int] | None = None
        self._recorded = _NEVER
        self.learn(summary, told_at)

    def learn(self, summary: GroupSummary, told_at: int | None = None) -> None:
        """Know the members as they are now; `told_at` is the step of the staleness that was written into them."""
        # Kept until somebody sees the rollouts: a trainer that is still at that step gets them without a look into
        # each, and a batch has hundreds.
        self._told_at = told_at
        self._recorded = _NEVER
        self._is_frozen = False
        self.prompts = summary.prompt_tokens  # None: not counted yet
        self.versions = summary.member_versions
        self.trainable = summary.member_newest_trainable
        self.version_tokens = summary.version_tokens
        self.measure = summary.measure

    @property
    def items(self) -> list[Any]:
        """The rollouts."""
        if self._packed is not None:
            self.load(decode(self._packed))
        return self._items

    @property
    def is_here(self) -> bool:
        """Whether the rollouts are in memory, as objects or as bytes."""
        return bool(self._packed is not None or self._items)

    @property
    def packed(self) -> Blob | None:
        """The rollouts as bytes, if nobody has looked at them yet."""
        return self._packed

    @property
    def stale_at(self) -> int | None:
        """The step at which all members expired, if they are not emptied yet."""
        return self._stale_at

    def prompt_tokens(self) -> int:
        """Return how many tokens are left when all members are emptied."""
        return count_prompts(self.items) if self.prompts is None else self.prompts

    def expire_later(self, step: int) -> None:
        """Let all members expire as of a step; they are emptied when they are shown."""
        self._stale_at = step

    def expire_now(self, staleness: Mapping[int, int]) -> None:
        """Empty these members, which expire with this staleness."""
        expired = [self.items[member] for member in staleness]
        for item in expired:
            expire(item)
        write_staleness(expired, staleness.values())
        self.emptied = {**(self.emptied or {}), **staleness}

    def shown(self, step: int | None, row_staleness: int) -> list[Any]:
        """Return the rollouts as `handed_over` does, in a list that the caller may change."""
        return list(self.handed_over(step, row_staleness))

    def handed_over(self, step: int | None, row_staleness: int) -> list[Any]:
        """Return the rollouts, brought up to date with their row: expired members emptied, staleness as it is now.

        The list is the group's own: for groups that leave.
        """
        if self._stale_at is not None:
            self.expire_now(
                {m: 0 if v is None else self._stale_at - v - 1 for m, v in enumerate(self.versions)}
            )
            self._stale_at = None
            self.versions = self.trainable = (None,) * len(self.items)
            self.version_tokens = {}
        elif self.version_tokens and step is not None:
            if step != self._told_at:
                versions, first = self.versions, self.versions[0]
                if first is not None and versions.count(first) == len(versions):
                    write_same_staleness(self.items, step - first - 1)
                else:
                    write_staleness(self.items, [None if v is None else step - v - 1 for v in versions])
            self._told_at = None
        elif not self.version_tokens and row_staleness == 0:  # a refresh forgets what they were told
            for item in self.items:
                if read_seq_staleness(item) > 0:
                    item.seq_staleness = 0
        return self.items

    def freeze(self) -> None:
        """Make the arrays of the rollouts read-only, since other samples share them; objects of other classes stay as they are."""
        if not self._is_frozen and self._packed is None:
            self._is_frozen = True
            for item in self._items:
                if isinstance(item, Rollout):
                    item.freeze()

    # --- on disk

    def record(self) -> bytes:
        """Return all but the rollouts, as bytes; the same ones as long as nothing of it was replaced."""
        # Rows of a batch are written when it is taken, and of these parts hardly ever one has changed since the put.
        written: bytes
        versions, trainable, tokens, measure, stale_at, applied, emptied, prompts, written = self._recorded
        if not (
            versions is self.versions
            and trainable is self.trainable
            and tokens is self.version_tokens
            and measure is self.measure
            and stale_at is self._stale_at
            and applied is self.applied
            and emptied is self.emptied
        ):
            if prompts is None:
                prompts = self.prompt_tokens()
            record = Record(
                self.versions,
                self.trainable,
                self.version_tokens,
                self.measure,
                self._stale_at,
                prompts,
                self.applied,
                self.emptied or {},
            )
            written = msgspec.msgpack.encode(record)
            self._recorded = (
                *(self.versions, self.trainable, self.version_tokens, self.measure, self._stale_at),
                *(self.applied, self.emptied, prompts, written),
            )
        known: bytes = written
        return known

    @classmethod
    def from_record(cls, uid: int, written: bytes) -> "Group":
        """Return the group that was written down, without its rollouts. Raises msgspec.DecodeError."""
        record = _read_record(written)
        self = cls.__new__(cls)
        self.uid = uid
        self._items, self._packed = [], None
        self._recorded = _NEVER
        self._is_frozen = False
        self.versions, self.trainable = record.versions, record.trainable
        self.version_tokens, self.measure = record.version_tokens, record.measure
        self._stale_at, self._told_at = record.stale_at, None
        self.prompts = record.prompt_tokens
        self.applied, self.emptied = record.applied, record.emptied or None
        return self

    def load(self, items: list[Any]) -> None:
        """Have the rollouts again, as they were encoded; what was done to them since is done once more."""
        self.applied.to(items)
        tell_uid(items, self.uid)
        self._items = items
        self._is_frozen = False
        self._packed = None  # last, for whoever saves reads this first, in another thread
        if self.emptied:
            self.expire_now(self.emptied)

    def pack(self, blob: Blob) -> None:
        """Have the rollouts as bytes, of which it is known that they can be decoded without any help."""
        self._packed = blob

    def unload(self) -> None:
        """Let go of the rollouts, which are on disk."""
        known = self._recorded[7]
        self.prompts = self.prompt_tokens() if known is None else known
        self._items, self._packed = [], None
        self._told_at = None

    def encoded(self) -> None:
        """Learn that the rollouts were encoded as they are now."""
        self.applied, self.emptied = _NOTHING, None


def count_prompts(rollouts: Iterable[Any]) -> int:
    """Return how many tokens the prompts have."""
    return sum(read_length("prompt_ids", getattr(item, "prompt_ids", None)) or 0 for item in rollouts)


def tell_uid(rollouts: Iterable[Any], uid: int) -> None:
    """Let rollouts know which group they are of, where they have a field for it; they are checked out no more."""
    for rollout in rollouts:
        if type(rollout) is Rollout:
            rollout.group_uid, rollout.checkout = uid, None
        else:
            write_if_present(rollout, "group_uid", uid)
            unmark(rollout)


_NOTHING = Applied()
_NEVER: Any = (*(object(),) * 7, None, b"")
