"""The bytes of a group: a head and a body, in memory, on disk and on the wire.

The head is a record of fixed size, then K rewards, lengths, statuses and finish reasons, then `Meta` in MessagePack for
everything that is unusual. The body holds columns of tokens, each at a multiple of 16 bytes: `prompt_ids` (once if all
members share it), `response_ids`, `logprobs`, `response_mask`, then further columns. docs/format.md has the tables.

`Head.write` derives every sum from the arrays, and `Head.read` compares them: bytes that disagree with themselves raise
CorruptData, also if their checksums are right. Nothing here makes a `Rollout`.
"""

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from reroll.codec import checksum_of, decode, encode
from reroll.errors import CorruptData, InvalidArgument, NotStorable, RerollError, UnsupportedFormat, shown
from reroll.rollout import Status, combine_statuses, mean_and_std, read_score

Array = npt.NDArray[Any]
Bytes = bytes | memoryview

FORMAT: Final = 1
MAGIC: Final = b"rrgp"
ALIGNMENT: Final = 16
NO_VERSION: Final = -(1 << 63)
BOUND: Final = 1 << 62
MOST_TOKENS: Final = 1 << 40

SHARED_PROMPT, HAS_LOGPROBS, HAS_MASK, ONES_MASK = 1, 2, 4, 8
ONE_VERSION, TOKENS_DERIVED, INTEGER_REWARDS, HAS_OBJECTS = 16, 32, 64, 128
OWN_STALENESS, OWN_IDS = 256, 512
_ALL_FLAGS: Final = 1023

STATUSES: Final = tuple(Status)
STATUS_CODE: Final = {status: code for code, status in enumerate(STATUSES)}
_COMPLETED: Final = bytes([STATUS_CODE[Status.COMPLETED]])
REASONS: Final = (
    *(None, "stop", "length", "tool_calls", "abort", "error", "eos", "eos_token", "end_turn"),
    *("stop_sequence", "max_tokens", "tool_use", "aborted", "cancelled"),
)
REASON_CODE: Final = {reason: code for code, reason in enumerate(REASONS)}
OTHER_REASON: Final = 255
"""The finish reason of a member is in the field `finish_reason`."""

TOKENS_ABSENT, TOKENS_ARE_DERIVED = -1, -2
FIELD_COLUMNS: Final = {
    **dict.fromkeys(("tokens", "input_ids", "labels"), "<i4"),
    "logprobs": "<f4",
    "response_mask": "|u1",
}
"""Fields of Rollout that are stored as further columns where they do not follow the response."""
FIELD_NAMES: Final = frozenset(
    (
        *(
            "group_uid",
            "group_id",
            "rollout_id",
            "session_id",
            "message",
            "response",
            "reward",
            "finish_reason",
        ),
        *("error_msg", "routed_experts", "mm_info", "tool_calls", "extra_fields", "checkout", "num_tokens"),
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
_RECORD: Final = struct.Struct("<4sIHHIqqqqqqqqqddIIII")
_CRC_AT: Final = 4
_CHECKED_FROM: Final = 8
UID_AT: Final = 24
STALENESS_AT: Final = 56
_FLAGS_AT: Final = 10
_MEMBER_BYTES: Final = 14
_CRC: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<q")
_FLAGS: Final = struct.Struct("<H")
PADDING: Final = tuple(bytes(size) for size in range(ALIGNMENT))

_Integer = Annotated[int, msgspec.Meta(gt=-BOUND, lt=BOUND)]
_Count = Annotated[int, msgspec.Meta(ge=-2, lt=MOST_TOKENS)]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Column(msgspec.Struct, array_like=True, frozen=True):
    """A further column of the body."""

    name: str
    dtype: str
    """As numpy writes it; for other types "=" and an empty array as the codec writes it, in hexadecimal digits."""
    tail: tuple[_Size, ...]
    """The shape behind the token axis."""
    lengths: list[_Count] | None = None
    """Entries of each member, -1: none; None: one per response token. Of `tokens`, -2: prompt + response."""
    crc: int = 0

    def entries_of(self, lengths: Sequence[int]) -> list[int]:
        """Return the entries of each member, of responses with these lengths."""
        return [max(0, size) for size in (lengths if self.lengths is None else self.lengths)]

    def entry_bytes(self) -> int:
        """Return the bytes of one entry."""
        return math.prod(self.tail) * read_dtype(self.dtype).itemsize


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


class Sums(NamedTuple):
    """The numbers of a record that follow from the rest of the head."""

    version: int
    newest: int
    trainable: int
    """The smallest, over members, of the newest version of a trainable token."""
    staleness: int
    num_tokens: int
    response_tokens: int
    reward_mean: float
    reward_std: float
    status: int


class Spans(NamedTuple):
    """Where the columns of a body begin; a column that is absent has no bytes."""

    response: int
    logprobs: int
    mask: int
    others: int


@dataclass(slots=True)
class Head:
    """A head, taken apart. Members keep their order in every sequence."""

    lengths: tuple[int, ...]
    """Tokens of each response, -1: response_ids is None."""
    statuses: bytes = b""
    rewards: tuple[float, ...] = ()
    """NaN: no reward."""
    reasons: bytes = b""
    flags: int = 0
    uid: int = 0
    """0: none."""
    version: int | None = None
    """The version that generated all tokens; with ONE_VERSION."""
    staleness: int = 0
    """Of all members, unless `meta` has one for each."""
    prompt_tokens: int = 0
    """Tokens of prompts in the body: those of one prompt if it is shared."""
    body_crc: int = 0
    body_size: int = 0
    meta: Meta = field(default_factory=Meta)

    # --- what the members have

    def prompt_lengths(self) -> list[int]:
        """Return the tokens of each prompt, -1 for None."""
        if self.flags & SHARED_PROMPT:
            return [self.prompt_tokens] * len(self.lengths)
        return [-1] * len(self.lengths) if self.meta.prompts is None else self.meta.prompts

    def values_of(self, name: str) -> list[Any] | None:
        """Return one value per member of another field, None if no member has it."""
        values = self.meta.fields.get(name)
        return values if values is None or len(values) == len(self.lengths) else values * len(self.lengths)

    def column(self, name: str) -> Column | None:
        """Return a further column of the body."""
        return next((column for column in self.meta.columns if column.name == name), None)

    def runs(self) -> list[list[int]]:
        """Return [version, tokens, ...] of each member."""
        if self.flags & ONE_VERSION and self.version is not None:
            return [[self.version, length] if length > 0 else [] for length in self.lengths]
        return [[] for _ in self.lengths] if self.meta.versions is None else self.meta.versions

    def trainable(self) -> list[int | None]:
        """Return the newest version of a trainable token of each member, None for members that token expiry exempts."""
        if self.meta.trainable is not None:
            return self.meta.trainable
        if self.flags & ONE_VERSION:
            return [self.version if length > 0 else None for length in self.lengths]
        return [max(runs[::2], default=None) for runs in self.runs()]

    def member_tokens(self) -> list[int]:
        """Return the tokens of each member: `num_tokens` if it is given, else as `Rollout.num_tokens` counts them."""
        given, prompts = self.values_of("num_tokens"), self.prompt_lengths()
        tokens = [
            (max(0, length)) + (max(0, prompt)) for length, prompt in zip(self.lengths, prompts, strict=True)
        ]
        if min(prompts) < 0:
            for name in ("tokens", "input_ids"):
                column = self.column(name)
                for place, size in enumerate(() if column is None else column.entries_of(self.lengths)):
                    if prompts[place] < 0:
                        tokens[place] = max(tokens[place], size)
        if given is not None:
            tokens = [own if stated is None else stated for own, stated in zip(tokens, given, strict=True)]
        return tokens

    def scores(self) -> list[float | None]:
        """Return the score of each member, None without a reward."""
        given = self.values_of("reward")
        if given is not None:
            return [read_score(reward) for reward in given]
        return [None if math.isnan(reward) else reward for reward in self.rewards]

    def sums(self) -> Sums:
        """Return the numbers that follow from the rest. O(members)."""
        lengths, flags, meta = self.lengths, self.flags, self.meta
        response_tokens = sum(lengths)
        if min(lengths) < 0:
            response_tokens = sum([length for length in lengths if length > 0])
        version = newest = trainable = NO_VERSION
        if flags & ONE_VERSION and self.version is not None:
            version = newest = self.version
        elif meta.versions is not None:
            found = [version for runs in meta.versions for version in runs[::2]]
            version, newest = min(found, default=NO_VERSION), max(found, default=NO_VERSION)
        if newest != NO_VERSION:
            if meta.trainable is None and flags & ONE_VERSION:
                trainable = newest
            else:
                kept = [version for version in self.trainable() if version is not None]
                trainable = min(kept, default=NO_VERSION)
        if flags & SHARED_PROMPT and "num_tokens" not in meta.fields:
            num_tokens = response_tokens + self.prompt_tokens * len(lengths)
        else:
            num_tokens = sum(self.member_tokens())
        mean, std = mean_and_std([score for score in self.scores() if score is not None])
        if self.statuses == _COMPLETED * len(lengths):
            status = _COMPLETED[0]
        else:
            status = STATUS_CODE[combine_statuses([STATUSES[code] for code in self.statuses])]
        return Sums(
            *(version, newest, trainable),
            self.staleness if meta.staleness is None else max(meta.staleness),
            *(num_tokens, response_tokens),
            *(math.nan if mean is None else mean, math.nan if std is None else std),
            status,
        )

    # --- the body

    def spans(self) -> Spans:
        """Return where each column of the body begins."""
        tokens = sum([length for length in self.lengths if length > 0])
        response = aligned(4 * self.prompt_tokens)
        logprobs = response + aligned(4 * tokens)
        mask = logprobs + (aligned(4 * tokens) if self.flags & HAS_LOGPROBS else 0)
        return Spans(response, logprobs, mask, mask + (aligned(tokens) if self.flags & HAS_MASK else 0))

    def column_spans(self) -> dict[str, tuple[int, int]]:
        """Return where the bytes of each further column begin and end in the body."""
        spans, at = {}, self.spans().others
        for column in self.meta.columns:
            end = at + sum(column.entries_of(self.lengths)) * column.entry_bytes()
            spans[column.name] = at, end
            at = aligned(end)
        return spans

    def expected_body_size(self) -> int:
        """Return the bytes that the columns take."""
        ends = [end for _, end in self.column_spans().values()]
        return aligned(ends[-1]) if ends else self.spans().others

    def check_body(self, body: Bytes) -> None:
        """Compare size and checksums of a body with the head. Raises CorruptData. O(bytes)."""
        if len(body) != self.body_size:
            raise CorruptData(
                f"body of a group has {len(body)} bytes, its head says {self.body_size}; use another copy"
            )
        with memoryview(body) as view:
            found = [(self.body_crc, checksum_of(view[: self.spans().others]))]
            spans = self.column_spans()
            for column in self.meta.columns:
                start, end = spans[column.name]
                found.append((column.crc, checksum_of(view[start : aligned(end)])))
        if any(stored != computed for stored, computed in found):
            raise CorruptData(
                "checksum of a group's body does not fit: it was cut or altered; use another copy"
            )

    def read_column(self, column: Column, body: Bytes, start: int) -> Array:
        """Return a further column as a read-only view of the body. Raises CorruptData."""
        entries = sum(column.entries_of(self.lengths))
        size = entries * column.entry_bytes()
        try:
            flat = np.frombuffer(body, np.uint8, size, start) if size else np.empty(0, np.uint8)
            found = flat.view(read_dtype(column.dtype)).reshape(entries, *column.tail)
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptData(f"column {column.name!r} of a group cannot be read: {error}") from error
        found.flags.writeable = False
        return found

    # --- bytes

    def write(self) -> bytes:
        """Return the head as bytes. Raises OverflowError, UnicodeError for values that MessagePack cannot hold."""
        count = len(self.lengths)
        meta = _write_meta(self.meta)
        if meta == _EMPTY:
            meta = b""
        sums = self.sums()
        head = bytearray(
            b"".join(
                (
                    _RECORD.pack(
                        *(MAGIC, 0, FORMAT, self.flags, self.body_crc, self.body_size, self.uid),
                        *(sums.version, sums.newest, sums.trainable, sums.staleness, sums.num_tokens),
                        *(sums.response_tokens, self.prompt_tokens, sums.reward_mean, sums.reward_std),
                        *(count, len(meta), sums.status, 0),
                    ),
                    _members(count).pack(*self.rewards, *self.lengths, *self.statuses, *self.reasons),
                    meta,
                )
            )
        )
        _CRC.pack_into(head, _CRC_AT, checksum_of(memoryview(head)[_CHECKED_FROM:]))
        return bytes(head)

    @classmethod
    def read(cls, head: Bytes) -> "Head":
        """Take a head apart. Raises CorruptData for bytes that disagree with themselves, UnsupportedFormat."""
        check_head(head)
        *start, members, meta_size, status, _ = _RECORD.unpack_from(head)
        _, _, _, flags, body_crc, body_size, uid, *numbers = start
        staleness, prompt_tokens = numbers[3], numbers.pop(6)
        end = RECORD.itemsize + _MEMBER_BYTES * members
        if members < 1 or end + meta_size != len(head):
            raise CorruptData(
                f"head of a group has {len(head)} bytes, but {members} members need another size"
            )
        found = _members(members).unpack_from(head, RECORD.itemsize)
        try:
            meta = _read_meta(memoryview(head)[end:]) if meta_size else Meta()
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
            raise CorruptData(f"head of a group cannot be read: {error}") from None
        made = cls(
            found[members : 2 * members],
            bytes(found[2 * members : 3 * members]),
            found[:members],
            bytes(found[3 * members :]),
            flags,
            uid,
            numbers[0] if flags & ONE_VERSION else None,
            staleness,
            prompt_tokens,
            body_crc,
            body_size,
            meta,
        )
        made._check()
        try:
            sums, stored = made.sums(), Sums._make((*numbers, status))
            is_sound = (repr(sums), made.expected_body_size()) == (repr(stored), body_size)
        except RerollError as error:  # a reward that is no number
            raise CorruptData(f"head of a group disagrees with itself: {error}") from None
        if not is_sound:
            raise CorruptData(
                "head of a group disagrees with itself: sums do not follow from its members; use another copy"
            )
        return made

    def _check(self) -> None:
        """Raise CorruptData unless every sequence has one valid entry per member."""
        count, lengths, meta, flags = len(self.lengths), self.lengths, self.meta, self.flags
        own = [meta.prompts, meta.staleness, meta.versions, meta.trainable]
        own += [column.lengths for column in meta.columns]
        reasons, names = meta.fields.get("finish_reason"), [column.name for column in meta.columns]
        texts = [] if reasons is None else reasons
        if not (
            all(each is None or len(each) == count for each in own)
            and all(len(values) in (1, count) for values in meta.fields.values())
            and FIELD_NAMES.issuperset(meta.fields)
            and set(map(type, texts)) <= {str, type(None)}
            and set(map(type, meta.fields.get("num_tokens", ()))) <= {int, type(None)}
            and all(0 <= size < MOST_TOKENS for size in meta.fields.get("num_tokens", ()) if size is not None)
            and set(map(type, meta.fields.get("checkout", ()))) <= {str, type(None)}
            and min(lengths) >= -1
            and max(self.statuses) < len(STATUSES)
            and all(code < len(REASONS) or (code == OTHER_REASON and reasons) for code in self.reasons)
            and 0 <= self.uid < BOUND
            and abs(self.staleness) < BOUND
            and 0 <= self.prompt_tokens < MOST_TOKENS
            and self.body_size >= 0
            and len(set(names)) == len(names)
        ):
            raise CorruptData("head of a group has values that no group has; use another copy")
        self._check_versions()
        if meta.prompts is not None:
            held = sum([size for size in meta.prompts if size > 0])
        else:
            held = self.prompt_tokens if flags & SHARED_PROMPT else 0
        if held != self.prompt_tokens or (flags & SHARED_PROMPT and meta.prompts is not None):
            raise CorruptData("head of a group disagrees with itself about its prompts; use another copy")
        has_ids = meta.checkout is not None or not meta.fields.keys().isdisjoint(("group_uid", "checkout"))
        if bool(flags & OWN_STALENESS) != (meta.staleness is not None) or (has_ids and not flags & OWN_IDS):
            raise CorruptData("head of a group disagrees with itself about its flags; use another copy")
        if flags & HAS_MASK and flags & ONES_MASK:
            raise CorruptData("head of a group has two masks; use another copy")
        for column in meta.columns:
            dtype = FIELD_COLUMNS.get(column.name)
            if (dtype is not None and (column.dtype != dtype or column.tail)) or len(column.tail) > 31:
                raise CorruptData(f"column {column.name!r} of a group has the wrong type; use another copy")
            if min(column.lengths or (0,)) < (
                TOKENS_ARE_DERIVED if column.name == "tokens" else TOKENS_ABSENT
            ):
                raise CorruptData(f"column {column.name!r} of a group has a wrong length; use another copy")
            if dtype is None and column.name != "routed_experts":
                for size, length, prompt in zip(
                    column.lengths or (), self.lengths, self.prompt_lengths(), strict=False
                ):
                    if length >= 0 and size >= 0 and size not in (length, length + max(0, prompt)):
                        raise CorruptData(
                            f"column {column.name!r} of a group has a wrong length; use another copy"
                        )
            if not read_dtype(column.dtype).itemsize:
                raise CorruptData(
                    f"column {column.name!r} of a group has entries without bytes; use another copy"
                )

    def _check_versions(self) -> None:
        meta, one = self.meta, self.flags & ONE_VERSION
        if one and (meta.versions is not None or max(self.lengths) < 1 or abs(self.version or 0) >= BOUND):
            raise CorruptData("head of a group disagrees with itself about its versions; use another copy")
        for length, runs in zip(self.lengths, meta.versions or (), strict=False):
            counts = runs[1::2]
            if len(runs) % 2 or min(counts, default=1) < 1 or (0 <= length < sum(counts)):
                raise CorruptData(
                    "head of a group has versions that do not fit its responses; use another copy"
                )


def check_head(head: Bytes) -> None:
    """Raise CorruptData unless these bytes are a whole head, UnsupportedFormat for another format. O(bytes)."""
    if len(head) < RECORD.itemsize or head[:4] != MAGIC:
        raise CorruptData("not the head of a group; pass the bytes that RolloutGroup.head gave")
    _, crc, version, flags, *_, reserved = _RECORD.unpack_from(head)
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


def check_frames(head: Bytes, body: Bytes, *, check_body: bool) -> int:
    """Check a head, and its body without taking the head apart where it can; return the flags. O(bytes).

    Raises CorruptData, UnsupportedFormat.
    """
    check_head(head)
    _, _, _, flags, body_crc, body_size, *_, tokens, prompt_tokens, _, _, _, _, _, _ = _RECORD.unpack_from(
        head
    )
    if len(body) != body_size:
        raise CorruptData(
            f"body of a group has {len(body)} bytes, its head says {body_size}; use another copy"
        )
    others = aligned(4 * prompt_tokens) + aligned(4 * tokens) * (2 if flags & HAS_LOGPROBS else 1)
    others += aligned(tokens) if flags & HAS_MASK else 0
    if not check_body:
        return int(flags)
    if others != body_size:  # it has further columns
        Head.read(head).check_body(body)
    elif checksum_of(memoryview(body)) != body_crc:
        raise CorruptData("checksum of a group's body does not fit: it was cut or altered; use another copy")
    return int(flags)


def with_number(head: Bytes, at: int, number: int) -> bytes:
    """Return the head with another uid or staleness, without taking it apart."""
    changed = bytearray(head)
    _NUMBER.pack_into(changed, at, number)
    _CRC.pack_into(changed, _CRC_AT, checksum_of(memoryview(changed)[_CHECKED_FROM:]))
    return bytes(changed)


def flags_of(head: Bytes) -> int:
    """Return the flags of a head."""
    flags: int = _FLAGS.unpack_from(head, _FLAGS_AT)[0]
    return flags


def read_records(heads: Sequence[Bytes]) -> Array:
    """Return the fixed records of many heads as one array of RECORD, read-only."""
    size = RECORD.itemsize
    return np.frombuffer(b"".join([head[:size] for head in heads]), RECORD)


def aligned(size: int) -> int:
    """Return the next multiple of 16."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def bounds_of(lengths: Sequence[int]) -> list[int]:
    """Return where each member begins in a flat column, and where the last one ends."""
    return list(accumulate([max(0, length) for length in lengths], initial=0))


@cache
def _members(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}d{count}i{count}B{count}B")


_SIMPLE: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUV]\d{1,9}"
    r"|[mM]8(?:\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)",
    re.ASCII,
)


def write_dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype as `Column` has it. Raises InvalidArgument for one that cannot be stored."""
    text = dtype.str
    if _SIMPLE.fullmatch(text) and np.dtype(text) == dtype:
        return text
    try:
        written = encode(np.empty(0, dtype))
        if decode(written).dtype == dtype:
            return f"={written.hex()}"
    except NotStorable:
        pass
    raise InvalidArgument(f"column of dtype {dtype} cannot be stored; convert it to a numeric dtype")


@lru_cache(256)
def read_dtype(written: str) -> np.dtype[Any]:
    """Return the dtype that `write_dtype` wrote. Raises CorruptData."""
    try:
        if _SIMPLE.fullmatch(written):
            return np.dtype(written)
        if written.startswith("="):
            found = decode(bytes.fromhex(written[1:]))
            if isinstance(found, np.ndarray):
                dtype: np.dtype[Any] = found.dtype
                return dtype
    except (TypeError, ValueError):
        pass
    raise CorruptData(
        f"a group has a column of dtype {shown(written)}, which reroll never writes; use another copy"
    )
