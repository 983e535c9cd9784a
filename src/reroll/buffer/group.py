"""One group of a buffer: its payload, and the summary of its members."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from reroll.group import RolloutGroup
from reroll.group.layout import Bytes
from reroll.rollout import GroupSummary, Rollout, Status, expire, read_status, stamp, write_status
from reroll.rollout.adapters import read_length, read_seq_staleness, write_if_present
from reroll.rollout.checkout import unmark
from reroll.rollout.rules import write_same_staleness, write_staleness
from reroll.rollout.summary import Measure

Payload = RolloutGroup | list[Any]
"""Columns, or the objects of the caller's own class."""
BOUND: Final = 1 << 62
"""Sums and differences of two smaller numbers fit into a column."""
Whole = Annotated[int, Meta(ge=0, lt=BOUND)]
Integer = Annotated[int, Meta(gt=-BOUND, lt=BOUND)]


class Applied(NamedTuple):
    """The edits that a put makes to its rollouts."""

    model_step: Integer | None = None
    staleness: tuple[Integer, ...] | None = None
    failed: bool = False

    def to(self, items: Sequence[Any]) -> None:
        """Edit rollouts."""
        if self.model_step is not None:
            for item in items:
                if type(item) is Rollout:
                    item.extend_versions(self.model_step)
                else:
                    stamp(item, self.model_step)
        if self.staleness is not None:
            write_staleness(items, self.staleness)
        if self.failed:
            for item in items:
                if read_status(item.status) is not Status.COMPLETED:
                    write_status(item, Status.FAILED)

    def to_columns(self, group: RolloutGroup, uid: int) -> RolloutGroup:
        """Give a group of the buffer the edits and its uid; its tokens have versions already."""
        if self.failed:
            statuses = [s if s is Status.COMPLETED else Status.FAILED for s in group.statuses]
            group = group.replaced(status=statuses)
        if self.staleness is not None:
            group = group.with_staleness(self.staleness)
        group.assign(uid)
        return group


class Record(NamedTuple):
    """A group without its payload, as it is stored."""

    versions: tuple[Integer | None, ...]
    trainable: tuple[Integer | None, ...]
    version_tokens: dict[Integer, Integer]
    measure: Measure
    stale_at: Integer | None
    prompt_tokens: Integer
    applied: Applied
    emptied: dict[int, Integer]
    head: bytes | None = None
    """The head of a group of columns."""


_read_record = msgspec.msgpack.Decoder(Record, strict=False).decode


class Group:
    """The payload of a row: columns for groups of `Rollout`, the caller's objects for other classes.

    The row decides; the payload follows when it is delivered. So a refresh that expires thousands of groups stays quick: their
    responses are removed on delivery. Columns never change in place. The payload of a durable group may be on disk only.
    """

    __slots__ = (
        "_head",
        "_is_frozen",
        "_payload",
        "_recorded",
        "_stale_at",
        "_stated_at",
        "applied",
        "emptied",
        "is_columns",
        "measure",
        "prompts",
        "trainable",
        "uid",
        "version_tokens",
        "versions",
    )

    def __init__(
        self, uid: int, payload: Payload, summary: GroupSummary, stated_at: int | None = None
    ) -> None:
        self.uid = uid
        self._stale_at: int | None = None
        # Edits of the objects since they were encoded, which are repeated when they are loaded; the members that expired.
        self.applied = _NOTHING
        self.emptied: dict[int, int] | None = None
        self.replace(payload, summary, stated_at)

    def replace(self, payload: Payload, summary: GroupSummary, stated_at: int | None = None) -> None:
        """Hold another payload; `stated_at` is the step of the staleness that its members state."""
        self._payload: Payload | None = payload
        self.is_columns = isinstance(payload, RolloutGroup)
        self._head: Bytes | None = None
        self.learn(summary, stated_at)

    def learn(self, summary: GroupSummary, stated_at: int | None = None) -> None:
        """Hold the summary of the members as they are now."""
        self._stated_at = stated_at
        self._recorded = _NEVER
        self._is_frozen = False
        self.prompts = summary.prompt_tokens  # None: not counted yet
        self.versions = summary.member_versions
        self.trainable = summary.member_newest_trainable
        self.version_tokens = summary.version_tokens
        self.measure = summary.measure

    @property
    def payload(self) -> Payload:
        """The payload, which is in memory."""
        assert self._payload is not None  # noqa: S101  (the caller has loaded it)
        return self._payload

    @property
    def head(self) -> Bytes | None:
        """The head of a group of columns, written when it is first needed."""
        if self._head is None and isinstance(self._payload, RolloutGroup):
            self._head = self._payload.head
        return self._head

    @property
    def is_here(self) -> bool:
        """Whether the payload is in memory."""
        return self._payload is not None

    @property
    def objects(self) -> list[Any]:
        """The caller's objects; empty for columns, and for a payload on disk."""
        return self._payload if isinstance(self._payload, list) else []

    @property
    def stale_at(self) -> int | None:
        """The step at which all members expired, if the group was not delivered since."""
        return self._stale_at

    def prompt_tokens(self) -> int:
        """Return the number of tokens that stay when all members expire."""
        if self.prompts is None:
            self.prompts = count_prompts(self.payload)
        return self.prompts

    def expire_later(self, step: int) -> None:
        """Expire all members as of a step; their responses are removed on delivery."""
        self._stale_at = step

    def expire_now(self, staleness: Mapping[int, int]) -> None:
        """Expire these members with this staleness."""
        if isinstance(self._payload, list):
            expired = [self._payload[member] for member in staleness]
            for item in expired:
                expire(item)
            write_staleness(expired, staleness.values())
        self.emptied = {**(self.emptied or {}), **staleness}

    def current(self, part: RolloutGroup | None = None) -> Payload:
        """Return the payload, or a part of its columns, without the responses of expired members."""
        payload = self.payload if part is None else part
        return (
            payload.expired(self.emptied) if self.emptied and isinstance(payload, RolloutGroup) else payload
        )

    def delivered(
        self,
        step: int | None,
        row_staleness: int,
        *,
        is_final: bool,
        leaves: bool,
        part: RolloutGroup | None = None,
    ) -> Payload:
        """Return the group for its receiver, as its row is now: expired members without response, staleness as of `step`.

        Args:
            step: the training step of the task.
            row_staleness: the staleness that the row states.
            is_final: whether the group is delivered as it was chosen, although it has expired since.
            leaves: whether no other receiver can get the group: then a list of objects is not copied.
            part: the payload with a part of its columns, if only these were read.

        """
        if not is_final and self._stale_at is not None:
            self._expire_stale()
        payload, versions = self.current(part), self.versions
        stated: int | list[int | None] | None = None
        if not is_final and self.version_tokens and step is not None and step != self._stated_at:
            first = versions[0]
            if first is not None and versions.count(first) == len(versions):
                stated = step - first - 1
            else:
                stated = [None if version is None else step - version - 1 for version in versions]
        is_cleared = not is_final and not self.version_tokens and row_staleness == 0  # by a refresh
        if isinstance(payload, RolloutGroup):
            if is_cleared and payload.staleness > 0:
                stated = 0
            return copy.copy(payload) if stated is None else payload.with_staleness(stated)
        if is_cleared:
            for item in payload:
                if read_seq_staleness(item) > 0:
                    item.seq_staleness = 0
        elif isinstance(stated, int):
            write_same_staleness(payload, stated)
        elif stated is not None:
            write_staleness(payload, stated)
        self._stated_at = None  # the receiver may write to the objects
        return payload if leaves else list(payload)

    def _expire_stale(self) -> None:
        if self._stale_at is not None:
            self.expire_now(
                {m: 0 if v is None else self._stale_at - v - 1 for m, v in enumerate(self.versions)}
            )
            self._stale_at = None
            self.versions = self.trainable = (None,) * len(self.versions)
            self.version_tokens = {}

    def freeze(self) -> None:
        """Make arrays of `Rollout` subclasses read-only, since other samples share them; other objects stay as they are."""
        if not self._is_frozen:
            self._is_frozen = True
            for item in self.objects:
                if isinstance(item, Rollout):
                    item.freeze()

    # --- on disk

    def record(self) -> bytes:
        """Return all but the payload as bytes; the same bytes as long as nothing of it was replaced."""
        # Rows of a batch are written when it is taken, and these parts have rarely changed since the put.
        versions, trainable, tokens, measure, stale_at, applied, emptied, head, written = self._recorded
        if not (
            versions is self.versions
            and trainable is self.trainable
            and tokens is self.version_tokens
            and measure is self.measure
            and stale_at is self._stale_at
            and applied is self.applied
            and emptied is self.emptied
            and head is self.head
        ):
            parts = (self.versions, self.trainable, self.version_tokens, self.measure, self._stale_at)
            record = Record(
                *parts,
                self.prompt_tokens(),
                self.applied,
                self.emptied or {},
                None if self.head is None else bytes(self.head),
            )
            written = msgspec.msgpack.encode(record)
            self._recorded = (*parts, self.applied, self.emptied, self.head, written)
        known: bytes = written
        return known

    @classmethod
    def from_record(cls, uid: int, written: bytes) -> "Group":
        """Return the group of a record, without its payload. Raises msgspec.DecodeError."""
        record = _read_record(written)
        self = cls.__new__(cls)
        self.uid = uid
        self._payload, self._recorded, self._is_frozen = None, _NEVER, False
        self.versions, self.trainable = record.versions, record.trainable
        self.version_tokens, self.measure = record.version_tokens, record.measure
        self._stale_at, self._stated_at = record.stale_at, None
        self.prompts, self._head, self.is_columns = record.prompt_tokens, record.head, record.head is not None
        self.applied, self.emptied = record.applied, record.emptied or None
        return self

    def load(self, payload: Payload) -> None:
        """Hold the payload as it was encoded; the edits of objects since then are repeated."""
        if isinstance(payload, list):
            self.applied.to(payload)
            assign_uid(payload, self.uid)
        self._payload = payload
        self._is_frozen = False
        if self.emptied and isinstance(payload, list):
            self.expire_now(self.emptied)

    def unload(self) -> None:
        """Drop the payload, which is on disk."""
        self.prompt_tokens()
        if self.head is None:
            self._stated_at = None
        self._payload = None

    def encoded(self) -> None:
        """Note that the payload was encoded as it is now."""
        self.applied, self.emptied = _NOTHING, None


def count_prompts(rollouts: Payload) -> int:
    """Return the number of prompt tokens of all members."""
    if isinstance(rollouts, RolloutGroup):
        return int(rollouts.prompt_lengths.sum())
    return sum(read_length("prompt_ids", getattr(item, "prompt_ids", None)) or 0 for item in rollouts)


def assign_uid(rollouts: Iterable[Any], uid: int) -> None:
    """Write the uid of their group to rollouts that have a field for it, and remove their checkout."""
    for rollout in rollouts:
        if type(rollout) is Rollout:
            rollout.group_uid, rollout.checkout = uid, None
        else:
            write_if_present(rollout, "group_uid", uid)
            unmark(rollout)


_NOTHING = Applied()
_NEVER: Any = (*(object(),) * 8, b"")
