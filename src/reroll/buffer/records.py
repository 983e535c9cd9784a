"""The persisted state of a buffer as records: rows, entries of tracked maps, uses, and one small state.

Commit, save and restore iterate over one list of parts. New persisted state is one more entry in `entries_of`.
"""

import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict

import msgspec
import numpy as np
from msgspec import Meta

from reroll.buffer.group import BOUND, Group, Integer, Payload, Whole
from reroll.buffer.groups import Groups
from reroll.buffer.leases import Held, Leases
from reroll.buffer.tracked import PutIds, Tracked
from reroll.codec import RefReader, RefWriter, decode, encode
from reroll.codec.frame import split
from reroll.engine.engine import Engine
from reroll.engine.rows import LEASED, NO_VERSION, PLACES
from reroll.engine.state import FORMAT, small_state_of
from reroll.engine.task import STATUSES
from reroll.engine.uses import Use
from reroll.errors import CorruptData, InvalidConfig, NotStorable, StoreError, UnsupportedFormat
from reroll.group import RolloutGroup
from reroll.group.layout import check_frames, select_columns
from reroll.query import Scalar
from reroll.rollout.summary import check
from reroll.store import COLUMNS, ROW, Blob, Reader, Record
from reroll.telemetry.counters import TaskCounters

STATE: Final = "state"
"""The kind of the one record of the small state, whose key is 0."""
_USES: Final = "uses"
_KIND: Final = "replay buffer"
_NUMBERS: Final = COLUMNS[4 : COLUMNS.index("group_id")]
"""The columns that are written as the engine has them."""
_STATUS_NAMES: Final = [status.value for status in STATUSES]
_Id: TypeAlias = int | str | dict[str, bytes] | None
_TYPES: Final = {
    **dict.fromkeys(("task", "status", "place"), str),
    **dict.fromkeys(("reward_mean", "reward_std"), float | str | None),  # JSON has no infinity
    "priority": float,
    "group_id": _Id,
    "tags": str | None,
    "members": bytes,
}
_read_row: Final = msgspec.json.Decoder(
    GenericAlias(tuple, tuple(_TYPES.get(name, int) for name in COLUMNS[1:]))
).decode
_read_put: Final = msgspec.msgpack.Decoder(tuple[bytes, Whole | None]).decode
_read_lease: Final = msgspec.msgpack.Decoder(Held | None).decode
_read_use: Final = msgspec.msgpack.Decoder(tuple[str, Whole, list[Whole], list[Whole], list[Whole]]).decode
_write_json: Final = msgspec.json.Encoder().encode
_write: Final = msgspec.msgpack.Encoder().encode


# --- the parts of the persisted state


class Part(Protocol):
    """A part of the persisted state, as records."""

    @property
    def has_changed(self) -> bool:
        """Whether records must be written."""

    def records(self, gone: Sequence[int]) -> Iterable[Record]:
        """Return the records to write since the last call, as these groups go."""

    def totals(self) -> dict[str, int]:
        """Return the number of records by kind, after the last call of `records`."""


@dataclass(frozen=True, slots=True)
class Entries:
    """A tracked map as records of one kind."""

    kind: str
    entries: Tracked[int, Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    restore: Callable[[dict[int, Any]], None]
    """Receives the committed entries when a buffer is opened or resumed."""
    are_mutable: bool = False

    @property
    def has_changed(self) -> bool:
        return bool(self.entries.dirty)

    def records(self, _gone: Sequence[int]) -> list[Record]:
        dirty = sorted(self.entries.dirty or ())
        self.entries.track()
        return [
            (self.kind, key, self.write(self.entries[key]) if key in self.entries else None) for key in dirty
        ]

    def totals(self) -> dict[str, int]:
        return {self.kind: len(self.entries)}

    def copy(self) -> Callable[[], list[Record]]:
        """Fix the entries as they are now; the result encodes them later, in any thread."""
        if self.are_mutable:
            written = [(self.kind, key, self.write(value)) for key, value in self.entries.items()]
            return lambda: list(written)
        items = list(self.entries.items())
        return lambda: [(self.kind, key, self.write(value)) for key, value in items]

    def load(self, reader: Reader) -> dict[int, Any]:
        """Return the committed entries. Raises CorruptData."""
        found = {key: self.read(value) for key, value in reader.records(self.kind)}
        if not all(isinstance(key, int) for key in found):
            raise CorruptData(
                f"a {self.kind} record has a key that is no number; restore the file from a copy"
            )
        return found


def entries_of(groups: Groups, leases: Leases, put_ids: PutIds, *, allow_pickle: bool) -> list[Entries]:
    """Return the persisted maps of a buffer. Add new persisted state here."""
    out = groups.out
    return [
        Entries("lease", leases.entries, _write, _read_lease, leases.restore, are_mutable=True),
        Entries(
            "put_id",
            put_ids.entries,
            lambda put: write_put(*put, allow_pickle=allow_pickle),
            lambda written: _read_put_id(written, allow_pickle),
            put_ids.restore,
        ),
        Entries("given_up", out.given_up, lambda _: b"", lambda _: None, out.given_up.load),
    ]


class Rows:
    """Rows of groups as records."""

    def __init__(self, groups: Groups, *, allow_pickle: bool) -> None:
        self._groups = groups
        self._allow_pickle = allow_pickle

    @property
    def has_changed(self) -> bool:
        columns = self._groups.engine.columns
        return bool(columns.dirty or columns.gone)

    def records(self, gone: Sequence[int]) -> list[Record]:
        engine = self._groups.engine
        slots = np.array(sorted(engine.columns.dirty or ()), np.int64)
        engine.columns.dirty, engine.columns.gone = set(), []
        members = [group.record() for group in self._groups.groups(slots)]
        rows = engine.columns.rows(slots) if len(slots) else {}
        return [
            *(write_rows(rows, list(engine.tasks), members, allow_pickle=self._allow_pickle) if rows else ()),
            *((ROW, uid, None) for uid in gone),
        ]

    def totals(self) -> dict[str, int]:
        return {ROW: len(self._groups.engine.columns)}


class Uses:
    """Uses that may be undone, of all tasks, as records."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def has_changed(self) -> bool:
        return any(task.log.new or task.log.old for task in self._engine.tasks.values())

    def records(self, _gone: Sequence[int]) -> Iterator[Record]:
        for name, task in self._engine.tasks.items():
            for number, used in task.log.new.items():
                yield _USES, number, write_use(name, used)
            for number in task.log.old:
                yield _USES, number, None
            task.log.new, task.log.old = {}, []

    def totals(self) -> dict[str, int]:
        return {_USES: sum(task.log.num_records for task in self._engine.tasks.values())}

    def copy(self) -> Callable[[], list[Record]]:
        """Fix the uses as they are now; the result encodes them later, in any thread."""
        uses = [(name, task.log.records()) for name, task in self._engine.tasks.items()]
        return lambda: [
            (_USES, number, write_use(name, used)) for name, known in uses for number, used in known.items()
        ]


# --- writing


def write_rows(
    columns: Mapping[str, Any], tasks: Sequence[str], members: Sequence[bytes], *, allow_pickle: bool
) -> list[Record]:
    """Return the records of rows, from columns and the metadata of their groups. Raises NotStorable."""
    named = (
        [tasks[code] for code in columns["task"].tolist()],
        [_STATUS_NAMES[code] for code in columns["status"].tolist()],
        [PLACES[code] for code in columns["place"].tolist()],
    )
    numbers = [columns[name].tolist() for name in _NUMBERS]
    for name in ("reward_mean", "reward_std"):
        if np.isinf(columns[name]).any():
            place = _NUMBERS.index(name)
            numbers[place] = [str(value) if math.isinf(value) else value for value in numbers[place]]
    uids = columns["uid"].tolist()
    ids = [
        None if known is None else write_group_id(known, f"group {uid}: group_id", allow_pickle=allow_pickle)
        for uid, known in zip(uids, columns["group_id"], strict=True)
    ]
    tags = [None if known is None else json.dumps(known) for known in columns["tags"]]
    rows = zip(*named, *numbers, ids, tags, members, strict=True)
    return [(ROW, uid, _write_json(row)) for uid, row in zip(uids, rows, strict=True)]


def write_use(task_name: str, used: Use) -> bytes:
    """Return the record of a use."""
    return _write([task_name, used.step, *(part.tolist() for part in used[1:])])


def write_put(put_id: Hashable, uid: int | None, *, allow_pickle: bool) -> bytes:
    """Return the record of a put: its id, and the uid that it returned. Raises NotStorable."""
    return _write((encode(put_id, root="put_id", allow_pickle=allow_pickle), uid))


def write_group_id(group_id: Any, root: str = "group_id", *, allow_pickle: bool) -> _Id:
    """Return the id that a user gave a group, for JSON. Raises NotStorable."""
    if (type(group_id) is int and abs(group_id) < BOUND) or (type(group_id) is str and _is_utf8(group_id)):
        found: int | str = group_id
        return found
    return {"encoded": encode(group_id, root=root, allow_pickle=allow_pickle)}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_state(engine: Engine, others: Mapping[str, Any]) -> bytes:
    """Return the small state. Every commit writes it: a value that cannot be written is replaced, and fails no call."""
    state = {"kind": _KIND, "engine": small_state_of(engine), **others}
    try:
        return _write(state)
    except (TypeError, ValueError, OverflowError):
        return _write(_encodable(state))


def _encodable(value: Any) -> Any:
    """Return a value in which MessagePack can hold every part."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-BOUND + 1, min(value, BOUND - 1))
    if isinstance(value, float):
        return float(value)
    if value is None or isinstance(value, bool | bytes):
        return value
    if isinstance(value, np.generic):
        return _encodable(value.item())
    if is_dataclass(value):
        return {field.name: _encodable(getattr(value, field.name)) for field in fields(value)}
    return _encodable(str(value))


def check_row(group: Group, group_id: Any, tags: Mapping[str, Any] | None, *, allow_pickle: bool) -> None:
    """Raise NotStorable if the row of a group cannot be written."""
    try:
        group.record()  # which the group keeps for its commit
        if tags is not None:
            json.dumps(tags).encode()
        if group_id is not None:
            write_group_id(group_id, allow_pickle=allow_pickle)
    except NotStorable:
        raise
    except Exception as error:
        raise NotStorable(f"group {group.uid} cannot be written: {error}; it was not stored") from error


# --- reading


class _Counters(TypedDict):
    inserts: Integer
    samples: Integer
    deletes: Integer
    forgone: float


class _Pool(TypedDict):
    sampler: dict[str, Any]
    remover: dict[str, Any] | None


class _Limiter(TypedDict):
    set: dict[str, Any]
    instead_of: dict[str, Any] | None


class _Task(TypedDict):
    sampler: str
    remover: str | None
    limiter: NotRequired[_Limiter | None]
    counters: _Counters
    ledger: dict[str, tuple[Integer, Integer, Integer, Integer]]
    step: Whole | None
    final: Whole | None
    rewound: Whole
    admission: tuple[Whole, Whole, Whole]
    pools: Annotated[list[_Pool], Meta(min_length=len(STATUSES), max_length=len(STATUSES))]


class _Random(TypedDict):
    state: str
    inc: str
    has_uint32: Literal[0, 1]
    uinteger: Annotated[int, Meta(ge=0, lt=1 << 32)]


class _Engine(TypedDict):
    format: int
    last_uid: Whole
    last_tick: Whole
    last_use: Whole
    advanced: tuple[Whole, Whole | None]
    version: NotRequired[Whole | None]
    rng: _Random
    tasks: dict[str, _Task]


class _Rules(TypedDict):
    thresholds: dict[str, tuple[Whole | None, Whole | None, bool]]
    refreshes: dict[str, Whole]


class _Small(TypedDict):
    kind: str
    engine: _Engine
    flow: dict[str, TaskCounters]
    rules: _Rules
    last_lease: Whole
    last_reservation: Whole
    returned: list[Whole]
    name: tuple[str, dict[str, tuple[Whole, Whole]]]


class SavedState(NamedTuple):
    """The persisted state of a buffer, without its rollouts."""

    small: dict[str, Any]
    engine: dict[str, Any]
    groups: list[Group]
    """By row."""
    entries: dict[str, dict[int, Any]]
    """The entries of tracked maps, by kind."""
    damaged: list[int]
    """Uids of damaged rows, which are left out."""

    def leased(self) -> list[int]:
        """Return the groups that only lease holders had."""
        rows = self.engine["rows"]
        uids: list[int] = rows["uid"][rows["place"] == LEASED].tolist()
        return uids


@contextmanager
def as_corrupt_data(path: Path) -> Iterator[None]:
    """Raise CorruptData for any error of using the content of a file, with its path.

    A file that was altered together with its checksums may hold anything.
    """
    try:
        yield
    except (InvalidConfig, StoreError):
        raise
    except (CorruptData, UnsupportedFormat) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        raise CorruptData(
            f"{path} is corrupt although its checksums match ({type(error).__name__}: {error}); restore it from a copy"
        ) from error


def read_state(
    reader: Reader, entries: Sequence[Entries], *, skip: bool = False, allow_pickle: bool = False
) -> SavedState | None:
    """Return the persisted state, without the rollouts; None if no commit was ever made.

    Raises CorruptData, also for a damaged row unless such are to be skipped; UnsupportedFormat.
    """
    try:
        written = reader.record(STATE, 0)
    except KeyError:
        return None
    with as_corrupt_data(reader.path):
        small = _read_small(written)
        engine = small.pop("engine")
        damaged: list[int] = []
        rows = list(read_rows(reader, damaged.append))
        if damaged and not skip:
            raise CorruptData(
                f"the row of group {damaged[0]} was altered; restore the file from a copy, or leave such groups out with "
                'on_corrupt="skip"'
            )
        engine["rows"] = _read_columns(rows, list(engine["tasks"]), allow_pickle)
        _check_columns(engine["rows"], engine["last_uid"])
        engine["uses"] = _read_uses(reader, engine["tasks"])
        groups = [Group.from_record(row[0], row[-1]) for row in rows]
        return SavedState(small, engine, groups, {each.kind: each.load(reader) for each in entries}, damaged)


def read_rows(reader: Reader, on_damaged: Callable[[int], None] | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a tuple of `COLUMNS`, by uid. Raises CorruptData, unless `on_damaged` receives the uid."""
    for uid, record in reader.records(ROW, on_damaged):
        yield uid, *_read_row(record)


def _read_small(written: bytes) -> dict[str, Any]:
    small = msgspec.msgpack.decode(written)
    if not isinstance(small, dict) or small.get("kind") != _KIND:
        raise CorruptData("its state is not that of a replay buffer; pass the directory given to save()")
    version = small["engine"]["format"]
    if version != FORMAT:
        raise UnsupportedFormat(
            f"its state has format {version}, this reroll reads format {FORMAT}: upgrade reroll"
        )
    checked = msgspec.convert(small, _Small)
    for task in checked["engine"]["tasks"].values():
        for pool in task["pools"]:
            for selector in (pool["sampler"], pool["remover"] or {}):
                _check_capacity(selector, checked["engine"]["last_uid"])
    return small


def _check_capacity(selector: Mapping[str, Any], last_uid: int) -> None:
    """Refuse room for more rows than were ever put: it would be allocated."""
    for name, value in selector.items():
        if isinstance(value, dict):
            _check_capacity(value, last_uid)
        elif name.endswith("_capacity") and abs(value) >= 4 * (last_uid + 64):
            raise CorruptData(f"selector state out of range: {name}={value}; restore the file from a copy")


def _read_columns(
    rows: Sequence[tuple[Any, ...]], tasks: Sequence[str], allow_pickle: bool
) -> dict[str, Any]:
    columns: dict[str, Any] = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    for name in ("reward_mean", "reward_std"):
        columns[name] = [math.nan if value is None else float(value) for value in columns.get(name, ())]
    read: dict[str, Any] = {name: np.array(columns.get(name, ())) for name in ("uid", *_NUMBERS)}
    for name, names in {"task": tasks, "status": _STATUS_NAMES, "place": PLACES}.items():
        codes = {known: code for code, known in enumerate(names)}
        read[name] = np.array([codes[value] for value in columns.get(name, ())], np.int64)
    read["group_id"] = [
        decode(known["encoded"], allow_pickle=allow_pickle) if isinstance(known, dict) else known
        for known in columns.get("group_id", ())
    ]
    read["tags"] = [
        None
        if text is None
        else msgspec.convert(json.loads(text), dict[str, Scalar])  # msgspec's JSON has no NaN
        for text in columns.get("tags", ())
    ]
    return read


def _check_columns(columns: Mapping[str, Any], last_uid: int) -> None:
    """Raise CorruptData for numbers out of range, by which the engine would address other rows."""
    uids, signed = columns["uid"], ("staleness", "version", "newest", "trainable", "used_at", "patched_at")
    if len(uids) and (uids.min() < 1 or uids.max() > last_uid):
        raise CorruptData(
            f"its rows have uids that are not among 1 to {last_uid}; restore the file from a copy"
        )
    for name in ("priority", *_NUMBERS):
        column = columns[name]
        if name == "priority":
            is_right = np.isfinite(column) & (column >= 0)
        elif name in signed:
            is_right = (abs(column) < BOUND) | (column == NO_VERSION)
        else:
            is_right = (column >= 0) & (column < BOUND)
        if name not in ("reward_mean", "reward_std") and not is_right.all():
            uid = uids[np.flatnonzero(~is_right)[0]]
            raise CorruptData(
                f"row of group {uid}: column {name!r} is out of range; restore the file from a copy"
            )


def _read_uses(reader: Reader, tasks: Iterable[str]) -> dict[str, dict[int, Use]]:
    uses: dict[str, dict[int, Use]] = {}
    for number, record in reader.records(_USES):
        task_name, step, *parts = _read_use(record)
        if not isinstance(number, int) or task_name not in tasks or len(set(map(len, parts))) != 1:
            raise CorruptData(f"use {number!r} is corrupt; restore the file from a copy")
        uses.setdefault(task_name, {})[number] = Use(step, *(np.array(part, np.int64) for part in parts))
    return uses


def _read_put_id(written: bytes, allow_pickle: bool) -> tuple[Hashable, int | None]:
    put_id, uid = _read_put(written)
    decoded = decode(put_id, allow_pickle=allow_pickle)
    hash(decoded)
    return decoded, uid


# --- payloads


def encode_payload(payload: Payload, refs: RefWriter, *, allow_pickle: bool, root: str = "rollouts") -> Blob:
    """Return a payload as bytes: the body of columns and their values that are not plain; objects through the codec.

    Raises NotStorable with the path to a value that cannot be stored.
    """
    if not isinstance(payload, RolloutGroup):
        return encode(list(payload), refs=refs, root=root, allow_pickle=allow_pickle)
    _, body, objects = payload.frames(refs=refs, root=root, allow_pickle=allow_pickle)
    return body if objects is None else b"".join((body, objects))


def check_payload(reader: Reader, uid: int, blob: bytes) -> None:
    """Compare a payload with its checksums, without decoding it. Raises CorruptData, UnsupportedFormat."""
    try:
        head = Group.from_record(uid, _read_row(reader.record(ROW, uid))[-1]).head
    except (KeyError, msgspec.MsgspecError):
        return  # the row is reported as missing or damaged
    size = 0 if head is None else RolloutGroup.body_size(head)
    if head is not None:
        check_frames(head, memoryview(blob)[:size], check_body=True)
    if head is None or len(blob) > size:
        split(blob[size:])


def read_columns(
    reader: Reader,
    group: Group,
    columns: Collection[str],
    *,
    refs: RefReader | None,
    allow_pickle: bool,
) -> RolloutGroup | None:
    """Return a group on disk with these further columns, without reading the others; None if none can be left out.

    Raises CorruptData, UnsupportedFormat.
    """
    chosen = None if group.head is None else select_columns(group.head, columns)
    if group.head is None or chosen is None:
        return None
    head, ranges = chosen
    *body, objects = reader.payload_parts(group.uid, [*ranges, (RolloutGroup.body_size(group.head), None)])
    return RolloutGroup.open(head, b"".join(body), objects or None, refs=refs, allow_pickle=allow_pickle)


def read_payload(blob: bytes, group: Group, path: Path, *, refs: RefReader, allow_pickle: bool) -> Any:
    """Return the payload of a group, or the CorruptData that explains why not. Raises UnsupportedFormat."""
    try:
        if group.head is not None:
            size = RolloutGroup.body_size(group.head)
            objects = blob[size:] if len(blob) > size else None
            return RolloutGroup.open(
                group.head, memoryview(blob)[:size], objects, refs=refs, allow_pickle=allow_pickle
            )
        rollouts = decode(blob, refs=refs, allow_pickle=allow_pickle)
        if not isinstance(rollouts, list) or len(rollouts) != len(group.versions):
            return CorruptData(f"{len(group.versions)} rollouts were expected")
        # As they were put, without the edits of the put: tokens may lack a version until those are applied again.
        check(rollouts, model_step=group.applied.model_step)
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"group {group.uid} in {path}: {error}") from error
    except CorruptData as error:
        return error
    except MemoryError as error:
        return CorruptData(f"decoding its rollouts would exceed the available memory ({error})")
    except Exception as error:  # noqa: BLE001  (the payload was altered together with its checksums)
        return CorruptData(f"its payload is not a list of valid rollouts: {error}")
    return rollouts
