"""The bytes of a group: a head and a body, in memory, on disk and on the wire.

The head is a record of fixed size, then K rewards, lengths, statuses and finish reasons, then `Meta` in MessagePack for
everything that is unusual. The body holds columns of tokens, each at a multiple of 16 bytes: `prompt_ids` (once if all
members share it), `response_ids`, `logprobs`, `response_mask`, then further columns. docs/format.md has the tables.

`Head.read` trusts a head whose checksum is right; `Head.check` compares a head from outside with itself.
"""

import math
import struct
from collections.abc import Collection, Sequence
from copy import copy
from functools import cache
from itertools import accumulate
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from reroll.codec import checksum_of
from reroll.codec.arrays import read_dtype
from reroll.errors import CorruptData, RerollError, UnsupportedFormat
from reroll.rollout import Status, combine_statuses, mean_and_std, read_score
from reroll.rollout.adapters import MOST_TOKENS

Array = npt.NDArray[Any]
Bytes = bytes | memoryview

FORMAT: Final = 1
MAGIC: Final = b"rrgp"
ALIGNMENT: Final = 16
NO_VERSION: Final = -(1 << 63)
BOUND: Final = 1 << 62

SHARED_PROMPT, HAS_LOGPROBS, HAS_MASK, ONES_MASK = 1, 2, 4, 8
ONE_VERSION, TOKENS_DERIVED, INTEGER_REWARDS, HAS_OBJECTS = 16, 32, 64, 128
OWN_STALENESS, OWN_IDS = 256, 512
_ALL_FLAGS: Final = 1023

STATUSES: Final = tuple(Status)
STATUS_CODE: Final = {status: code for code, status in enumerate(STATUSES)}
_COMPLETED: Final = STATUS_CODE[Status.COMPLETED]
REASONS: Final = (
    *(None, "stop", "length", "tool_calls", "abort", "error", "eos", "eos_token", "end_turn"),
    *("stop_sequence", "max_tokens", "tool_use", "aborted", "cancelled"),
)
REASON_CODE: Final = {reason: code for code, reason in enumerate(REASONS)}
OTHER_REASON: Final = 255
"""The finish reason of a member is in the field `finish_reason`."""

ABSENT, DERIVED = -1, -2
FIELD_COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    **dict.fromkeys(("tokens", "input_ids", "labels"), np.dtype("<i4")),
    "logprobs": np.dtype("<f4"),
    "response_mask": np.dtype("|u1"),
}
"""Fields of Rollout that are stored as further columns where they do not follow the response."""
FIELD_NAMES: Final = frozenset(
    (
        *("group_uid", "group_id", "rollout_id", "session_id", "message", "response", "reward"),
        *("finish_reason", "error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields"),
        *("checkout", "num_tokens"),
    )
)

RECORD: Final = np.dtype(
    [
        *(("magic", "S4"), ("crc", "<u4"), ("format", "<u2"), ("flags", "<u2"), ("body_crc", "<u4")),
        *(("body_size", "<i8"), ("uid", "<i8"), ("version", "<i8"), ("newest", "<i8"), ("trainable", "<i8")),
        *(("staleness", "<i8"), ("num_tokens", "<i8"), ("response_tokens", "<i8"), ("prompt_tokens", "<i8")),
        *(("reward_mean", "<f8"), ("reward_std", "<f8"), ("members", "<u4"), ("meta_size", "<u4")),
        *(("status", "<u4"), ("reserved", "<u4")),
    ]
)
"""The fixed part of a head: the records of many heads are joined and read with one `np.frombuffer`."""
_UID_AT: Final = 24
_STALENESS_AT: Final = 56
_RECORD: Final = struct.Struct("<4sIHHIqqqqqqqqqddIIII")
_START: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<HHIqqqqqqqqqddIIII")
_CHECKED_FROM: Final = 8
_MEMBER_BYTES: Final = 14
_NUMBER: Final = struct.Struct("<q")
PADDING: Final = tuple(bytes(size) for size in range(ALIGNMENT))

_Integer = Annotated[int, msgspec.Meta(gt=-BOUND, lt=BOUND)]
_Count = Annotated[int, msgspec.Meta(ge=-2, lt=MOST_TOKENS)]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Column(msgspec.Struct, array_like=True):
    """A further column of the body."""

    name: str
    dtype: Any
    """As the codec writes it."""
    tail: tuple[_Size, ...]
    """The shape behind the token axis."""
    lengths: list[_Count] | None = None
    """Entries of each member, -1: none; None: one per response token. Of `tokens`, -2: prompt + response."""
    crc: int | None = None
    """None: not computed yet."""

    def entries_of(self, lengths: Sequence[int]) -> list[int]:
        """Return the entries of each member, of responses with these lengths."""
        return [max(0, size) for size in (lengths if self.lengths is None else self.lengths)]


class Meta(msgspec.Struct, array_like=True):
    """The unusual things of a group; the position of an entry is part of the format, and new ones come last."""

    group_id: Any = None
    task_name: str | None = None
    checkout: str | None = None
    prompts: list[_Count] | None = None
    """Tokens of each prompt, -1: none; None: the prompt is shared, or no member has one."""
    staleness: list[_Integer] | None = None
    """Of each member, where they differ."""
    versions: list[list[_Integer]] | None = None
    """[version, tokens, version, tokens, ...] of each member, where one version did not generate all tokens."""
    trainable: list[_Integer | None] | None = None
    """The newest version of a trainable token of each member, where it is not the member's newest version."""
    columns: list[Column] = []
    fields: dict[str, list[Any]] = {}
    """Other fields of Rollout: one value per member, or one for all."""
    segments: None = None
    prefixes: None = None
    blobs: None = None
    """Reserved: the segments of an agent's response, references to shared prefixes, a table of blobs."""


_write_meta: Final = msgspec.msgpack.Encoder().encode
_EMPTY: Final = _write_meta(Meta())


def _refuse_extension(code: int, _: memoryview) -> Any:
    raise ValueError(f"extension {code}")


_read_meta: Final = msgspec.msgpack.Decoder(Meta, ext_hook=_refuse_extension).decode


class Span(NamedTuple):
    """A column in the body."""

    start: int
    entries: int
    dtype: np.dtype[Any]
    tail: tuple[int, ...]

    @property
    def size(self) -> int:
        """The bytes of the column."""
        return self.entries * math.prod(self.tail) * self.dtype.itemsize


class Head(msgspec.Struct):
    """A head, taken apart. Members keep their order in every sequence. Groups may share a head: change only a copy.

    The fields from `flags` to `reward_std` are those of the record, in its order. `derive` sets those that follow from
    the rest: all sums, the status, and the versions unless ONE_VERSION is set.
    """

    lengths: tuple[int, ...]
    """Tokens of each response, -1: response_ids is None."""
    rewards: Sequence[float] = ()
    """NaN: no reward."""
    statuses: bytes = b""
    reasons: bytes = b""
    flags: int = 0
    body_crc: int | None = None
    """None: not computed yet, as those of new columns."""
    body_size: int = 0
    uid: int = 0
    """0: none."""
    version: int = NO_VERSION
    newest: int = NO_VERSION
    trainable: int = NO_VERSION
    """The smallest, over members, of the newest version of a trainable token."""
    staleness: int = 0
    """The largest of a member; of all, unless `meta` has one for each."""
    num_tokens: int = 0
    response_tokens: int = 0
    prompt_tokens: int = 0
    """Tokens of prompts in the body: those of one prompt if it is shared."""
    reward_mean: float = math.nan
    reward_std: float = math.nan
    status: int = 0
    meta: Meta = msgspec.field(default_factory=Meta)
    cached_spans: dict[str, Span] | None = None

    # --- what the members have

    def prompt_lengths(self) -> list[int]:
        """Return the tokens of each prompt, -1 for None."""
        if self.flags & SHARED_PROMPT:
            return [self.prompt_tokens] * len(self.lengths)
        return self.meta.prompts or [-1] * len(self.lengths)

    def values_of(self, name: str) -> list[Any] | None:
        """Return one value per member of another field, None if no member has it."""
        values = self.meta.fields.get(name)
        return values if values is None or len(values) == len(self.lengths) else values * len(self.lengths)

    def runs(self) -> list[list[int]]:
        """Return [version, tokens, ...] of each member."""
        if self.flags & ONE_VERSION:
            return [[self.version, length] if length > 0 else [] for length in self.lengths]
        return self.meta.versions or [[] for _ in self.lengths]

    def member_trainable(self) -> list[int | None]:
        """Return the newest version of a trainable token of each member, None for members that token expiry exempts."""
        return self.meta.trainable or [max(runs[::2], default=None) for runs in self.runs()]

    def member_staleness(self) -> list[int]:
        """Return the staleness that each member states."""
        return self.meta.staleness or [self.staleness] * len(self.lengths)

    def member_tokens(self) -> list[int]:
        """Return the tokens of each member: `num_tokens` if it is given, else as `Rollout.num_tokens` counts them."""
        prompts = self.prompt_lengths()
        if self.flags & SHARED_PROMPT and "num_tokens" not in self.meta.fields:
            return [
                length + self.prompt_tokens if length > 0 else self.prompt_tokens for length in self.lengths
            ]
        tokens = [
            max(0, length) + max(0, prompt) for length, prompt in zip(self.lengths, prompts, strict=True)
        ]
        if min(prompts) < 0:
            for column in self.meta.columns:
                if column.name in ("tokens", "input_ids"):
                    for place, size in enumerate(column.entries_of(self.lengths)):
                        if prompts[place] < 0:
                            tokens[place] = max(tokens[place], size)
        if (given := self.values_of("num_tokens")) is not None:
            tokens = [own if stated is None else stated for own, stated in zip(tokens, given, strict=True)]
        return tokens

    def scores(self) -> list[float | None]:
        """Return the score of each member, None without a reward."""
        if (given := self.values_of("reward")) is not None:
            return [read_score(reward) for reward in given]
        if not math.isnan(sum(self.rewards)):
            return list(self.rewards)
        return [None if math.isnan(reward) else reward for reward in self.rewards]

    def derive(self) -> None:
        """Set what follows from the rest. O(members)."""
        lengths, flags, meta = self.lengths, self.flags, self.meta
        self.response_tokens = sum(lengths) if min(lengths) >= 0 else sum([max(0, size) for size in lengths])
        if not flags & ONE_VERSION:
            found = [version for runs in meta.versions or () for version in runs[::2]]
            self.version, self.newest = min(found, default=NO_VERSION), max(found, default=NO_VERSION)
        else:
            self.newest = self.version
        self.trainable = self.newest
        if meta.trainable is not None or meta.versions is not None:
            kept = [version for version in self.member_trainable() if version is not None]
            self.trainable = min(kept, default=NO_VERSION)
        if meta.staleness is not None:
            self.staleness = max(meta.staleness)
        if flags & SHARED_PROMPT and "num_tokens" not in meta.fields:
            self.num_tokens = self.response_tokens + self.prompt_tokens * len(lengths)
        else:
            self.num_tokens = sum(self.member_tokens())
        mean, std = mean_and_std([score for score in self.scores() if score is not None])
        self.reward_mean = math.nan if mean is None else mean
        self.reward_std = math.nan if std is None else std
        codes = set(self.statuses)
        if codes != {_COMPLETED}:
            codes = {STATUS_CODE[combine_statuses([STATUSES[code] for code in codes])]}
        self.status = codes.pop()

    # --- the body

    def spans(self) -> dict[str, Span]:
        """Return where each column is in the body: those that all members have, then the further ones."""
        if self.cached_spans is None:
            spans, at = {}, 0
            for name, dtype, entries in self._usual():
                spans[name] = Span(at, entries, dtype, ())
                at += aligned(dtype.itemsize * entries)
            for each in self.meta.columns:
                entries = sum(each.entries_of(self.lengths))
                spans[each.name] = found = Span(at, entries, read_dtype(each.dtype), each.tail)
                at += aligned(found.size)
            self.cached_spans = spans
        return self.cached_spans

    def _usual(self) -> list[tuple[str, np.dtype[Any], int]]:
        """Return name, dtype and entries of the columns in the body that all members have."""
        tokens, flags = self.response_tokens, self.flags
        found = [("prompt_ids", _IDS, self.prompt_tokens), ("response_ids", _IDS, tokens)]
        if flags & HAS_LOGPROBS:
            found.append(("logprobs", FIELD_COLUMNS["logprobs"], tokens))
        if flags & HAS_MASK:
            found.append(("response_mask", FIELD_COLUMNS["response_mask"], tokens))
        return found

    def usual_columns(self, body: Bytes) -> dict[str, Array]:
        """Return the columns that all members have, by name, as read-only views of the body."""
        found, at = {}, 0
        for name, dtype, entries in self._usual():
            found[name] = np.frombuffer(body, dtype, entries, at)
            at += aligned(dtype.itemsize * entries)
        return found

    def has_column(self, name: str) -> bool:
        """Return whether the body has a column of this name."""
        if name == "logprobs" and self.flags & HAS_LOGPROBS:
            return True
        return any(column.name == name for column in self.meta.columns)

    def columns_at(self) -> int:
        """Return where the further columns begin."""
        columns = self.meta.columns
        return self.spans()[columns[0].name].start if columns else self.body_size

    def column(self, name: str, body: Bytes) -> Array:
        """Return a column as a read-only view of the body."""
        at = 0
        for usual, dtype, entries in self._usual():
            if usual == name:
                return np.frombuffer(body, dtype, entries, at)
            at += aligned(dtype.itemsize * entries)
        span = self.spans()[name]
        start, entries, dtype, tail = span
        if not tail and dtype.isbuiltin == 1:
            return np.frombuffer(body, dtype, entries, start)
        flat = np.frombuffer(body, np.uint8, span.size, start) if span.size else np.empty(0, np.uint8)
        found = flat.view(dtype).reshape(entries, *tail)
        found.flags.writeable = False
        return found

    def checksums(self, body: Bytes) -> list[int]:
        """Return the checksums of a body: up to its further columns, and of each of them. O(bytes)."""
        spans = [self.spans()[column.name] for column in self.meta.columns]
        with memoryview(body) as view:
            return [
                checksum_of(view[: self.columns_at()]),
                *(checksum_of(view[span.start : span.start + aligned(span.size)]) for span in spans),
            ]

    def seal(self, body: Bytes) -> None:
        """Set the checksums of a body, unless they are known."""
        columns = self.meta.columns
        if self.body_crc is None or any(column.crc is None for column in columns):
            self.body_crc, *others = self.checksums(body)
            pairs = zip(columns, others, strict=True)
            found = [msgspec.structs.replace(column, crc=crc) for column, crc in pairs]
            self.meta = msgspec.structs.replace(self.meta, columns=found)

    # --- bytes

    def write(self) -> bytes:
        """Return the head as bytes. Raises OverflowError, UnicodeError for values that MessagePack cannot hold."""
        meta = self._meta()
        count, numbers = len(self.lengths), msgspec.structs.astuple(self)[_RECORD_FIELDS]
        record = _REST.pack(FORMAT, *numbers, count, len(meta), self.status, 0)
        members = _members(count).pack(*self.rewards, *self.lengths, *self.statuses, *self.reasons)
        rest = record + members + meta
        return _START.pack(MAGIC, checksum_of(rest)) + rest

    def _meta(self) -> bytes:
        meta = _write_meta(self.meta)
        return b"" if meta == _EMPTY else meta

    def size(self) -> int:
        """Return the bytes of the head. Raises as `write`."""
        return RECORD.itemsize + _MEMBER_BYTES * len(self.lengths) + len(self._meta())

    @classmethod
    def read(cls, data: Bytes) -> "Head":
        """Take a head apart whose checksum is right. Raises CorruptData for one that reroll did not write."""
        _, _, _, *numbers, count, meta_size, status, _ = _RECORD.unpack_from(data)
        end = RECORD.itemsize + _MEMBER_BYTES * count
        if count < 1 or end + meta_size != len(data):
            raise CorruptData(f"head of a group has {len(data)} bytes, but {count} members need another size")
        found = _members(count).unpack_from(data, RECORD.itemsize)
        try:
            meta = _read_meta(memoryview(data)[end:]) if meta_size else Meta()
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
            raise CorruptData(f"head of a group cannot be read: {error}; use another copy") from None
        rewards, lengths, statuses, reasons = (found[at * count : (at + 1) * count] for at in range(4))
        fields: Any = (lengths, rewards, bytes(statuses), bytes(reasons), *numbers, status, meta)
        return cls(*fields)

    def check(self) -> None:
        """Compare a head from outside with itself: counts, names, types, sums, bytes. Raises CorruptData. O(members)."""
        if problem := self._find_problem():
            raise CorruptData(f"head of a group disagrees with itself about its {problem}; use another copy")
        derived = copy(self)
        derived.cached_spans = None
        try:
            derived.derive()
            spans = derived.spans()
        except RerollError as error:  # a reward that is no number, a dtype that is none
            raise CorruptData(f"head of a group disagrees with itself: {error}") from None
        end = max([aligned(span.start + span.size) for span in spans.values()])
        if any(not span.dtype.itemsize or span.dtype.subdtype for span in spans.values()):
            raise CorruptData("head of a group has a column without bytes; use another copy")
        self.cached_spans = derived.cached_spans = None
        if repr(derived) != repr(self) or end != self.body_size:
            raise CorruptData(
                "head of a group has sums that do not follow from its members; use another copy"
            )

    def _find_problem(self) -> str | None:
        """Return what is wrong about the sequences of a head, None if each has one valid entry per member."""
        count, lengths, meta, flags = len(self.lengths), self.lengths, self.meta, self.flags
        fields, names = meta.fields, [column.name for column in meta.columns]
        own = [meta.prompts, meta.staleness, meta.versions, meta.trainable]
        own += [column.lengths for column in meta.columns]
        given = {name: set(map(type, fields.get(name, ()))) - {type(None)} for name in FIELD_NAMES}
        if not (
            all(each is None or len(each) == count for each in own)
            and all(len(values) in (1, count) for values in fields.values())
            and min(lengths) >= -1
        ):
            return "members"
        if not (
            FIELD_NAMES.issuperset(fields)
            and given["finish_reason"] <= {str}
            and given["checkout"] <= {str}
            and given["num_tokens"] <= {int}
            and all(0 <= size < MOST_TOKENS for size in fields.get("num_tokens", ()) if size is not None)
            and max(self.statuses) < len(STATUSES)
            and all(
                code < len(REASONS) or (code == OTHER_REASON and "finish_reason" in fields)
                for code in self.reasons
            )
            and 0 <= self.uid < BOUND
            and abs(self.staleness) < BOUND
        ):
            return "fields"
        held = sum([size for size in meta.prompts or () if size > 0])
        if (
            not 0 <= self.prompt_tokens < MOST_TOKENS
            or (flags & SHARED_PROMPT and meta.prompts is not None)
            or (not flags & SHARED_PROMPT and held != self.prompt_tokens)
        ):
            return "prompts"
        has_ids = meta.checkout is not None or not fields.keys().isdisjoint(("group_uid", "checkout"))
        if (
            bool(flags & OWN_STALENESS) != (meta.staleness is not None)
            or (has_ids and not flags & OWN_IDS)
            or (flags & HAS_MASK and flags & ONES_MASK)
        ):
            return "flags"
        if flags & ONE_VERSION and (
            meta.versions is not None or max(lengths) < 1 or abs(self.version) >= BOUND
        ):
            return "versions"
        for length, runs in zip(lengths, meta.versions or (), strict=False):
            tokens = runs[1::2]
            if len(runs) % 2 or min(tokens, default=1) < 1 or 0 <= length < sum(tokens):
                return "versions"
        base = {"prompt_ids", "response_ids"}
        base |= {
            name for name, flag in (("logprobs", HAS_LOGPROBS), ("response_mask", HAS_MASK)) if flags & flag
        }
        if len(set(names)) != len(names) or not base.isdisjoint(names):
            return "columns"
        return next((f"column {each.name!r}" for each in meta.columns if not self._is_valid(each)), None)

    def _is_valid(self, column: Column) -> bool:
        dtype, sizes, name = FIELD_COLUMNS.get(column.name), column.lengths or (), column.name
        if dtype is not None and (column.tail or read_dtype(column.dtype) != dtype):
            return False
        if len(column.tail) > 31 or min(sizes, default=0) < (DERIVED if name == "tokens" else ABSENT):
            return False
        if dtype is not None or name == "routed_experts":
            return True
        pairs = zip(sizes, self.lengths, self.prompt_lengths(), strict=False)
        return all(
            min(size, length) < 0 or size in (length, length + max(0, prompt))
            for size, length, prompt in pairs
        )


_IDS: Final = np.dtype("<i4")
_RECORD_FIELDS: Final = slice(4, 17)
"""The fields of `Head` that are in the record."""


def check_frames(head: Bytes, body: Bytes, *, check_body: bool) -> int:
    """Check format, size and checksums without taking the head apart where it can; return the flags. O(bytes).

    Raises CorruptData, UnsupportedFormat.
    """
    if len(head) < RECORD.itemsize or head[:4] != MAGIC:
        raise CorruptData("not the head of a group; pass the bytes that RolloutGroup.head gave")
    _, crc, version, flags, body_crc, body_size, *_, tokens, prompt, _, _, _, _, _, reserved = (
        _RECORD.unpack_from(head)
    )
    with memoryview(head) as view:
        if checksum_of(view[_CHECKED_FROM:]) != crc:
            raise CorruptData(
                "checksum of a group's head does not fit: it was cut or altered; use another copy"
            )
    if version != FORMAT:
        raise UnsupportedFormat(
            f"a group in format {version}, this reroll reads format {FORMAT}; use the same reroll"
        )
    if flags & ~_ALL_FLAGS or reserved:
        raise UnsupportedFormat(
            "a group with flags that this reroll does not know; upgrade reroll to read it"
        )
    if len(body) != body_size:
        raise CorruptData(
            f"body of a group has {len(body)} bytes, its head says {body_size}; use another copy"
        )
    if check_body:
        usual = aligned(4 * prompt) + aligned(4 * tokens) * (2 if flags & HAS_LOGPROBS else 1)
        usual += aligned(tokens) if flags & HAS_MASK else 0
        if usual != body_size:  # it has further columns
            found = Head.read(head)
            is_same = found.checksums(body) == [body_crc, *(column.crc for column in found.meta.columns)]
        else:
            is_same = checksum_of(body) == body_crc
        if not is_same:
            raise CorruptData(
                "checksum of a group's body does not fit: it was cut or altered; use another copy"
            )
    return int(flags)


def select_columns(data: Bytes, columns: Collection[str]) -> tuple[bytes, list[tuple[int, int]]] | None:
    """Return a head without the further columns that are not named, and the ranges of the body that it describes.

    None if no column goes.
    """
    head = Head.read(data)
    kept = [column for column in head.meta.columns if column.name in columns or column.name in FIELD_COLUMNS]
    if len(kept) == len(head.meta.columns):
        return None
    spans = head.spans()
    ranges = [
        (0, head.columns_at()),
        *((at := spans[each.name].start, at + aligned(spans[each.name].size)) for each in kept),
    ]
    chosen = copy(head)
    chosen.meta, chosen.cached_spans = copy(head.meta), None
    chosen.meta.columns, chosen.body_size = kept, sum(end - start for start, end in ranges)
    return chosen.write(), ranges


def body_size_of(head: Bytes) -> int:
    """Return the bytes of the body that belongs to a head. Raises CorruptData."""
    if len(head) < RECORD.itemsize:
        raise CorruptData("not the head of a group; pass the bytes that RolloutGroup.head gave")
    size: int = _RECORD.unpack_from(head)[5]
    return size


def with_numbers(head: Bytes, uid: int, staleness: int) -> bytes:
    """Return the head with another uid and staleness, without taking it apart."""
    changed = bytearray(head)
    _NUMBER.pack_into(changed, _UID_AT, uid)
    _NUMBER.pack_into(changed, _STALENESS_AT, staleness)
    rest = bytes(changed)[_CHECKED_FROM:]
    return _START.pack(MAGIC, checksum_of(rest)) + rest


def read_records(heads: Sequence[Bytes]) -> Array:
    """Return the fixed records of many heads as one array of RECORD, read-only."""
    size = RECORD.itemsize
    return np.frombuffer(b"".join([head[:size] for head in heads]), RECORD)


def aligned(size: int) -> int:
    """Return the next multiple of 16."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def bounds_of(lengths: Sequence[int]) -> list[int]:
    """Return where each member begins in a flat column, and where the last one ends."""
    if min(lengths) < 0:
        lengths = [max(0, length) for length in lengths]
    return list(accumulate(lengths, initial=0))


@cache
def _members(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}d{count}i{count}B{count}B")
