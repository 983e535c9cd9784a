"""A buffer as rows, facts and one small state: what is written down of it, and how it comes back.

Rows change a few at a time, uses, leases and put ids are added and dropped, and the small rest is written as a whole.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import GenericAlias
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from reroll.buffer import written
from reroll.buffer.group import BOUND, Group, Whole
from reroll.buffer.leases import Held
from reroll.buffer.written import KIND, trusting_nothing
from reroll.codec import RefReader, count_plain_rollouts, decode, encode
from reroll.engine.engine import Engine
from reroll.engine.rows import LEASED, PLACES, IntArray
from reroll.engine.state import small_state_of
from reroll.engine.task import STATUSES
from reroll.engine.uses import Use
from reroll.errors import CorruptData, NotStorable, UnsupportedFormat
from reroll.store import COLUMNS, ROW, Reader, Record

_NUMBERS: Final = COLUMNS[4 : COLUMNS.index("group_id")]
"""The columns that are written as the engine has them."""
STATE: Final = "state"
"""The kind of the one record of the small state, whose key is 0."""
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
PUT_ID: Final = "put_id"
GIVEN_UP: Final = "given_up"
"""The kind of facts of groups that were deleted while a producer may have had them."""
_write_json: Final = msgspec.json.Encoder().encode
_STATUS_NAMES: Final = [status.value for status in STATUSES]


class Memory(NamedTuple):
    """What a buffer was: its small state, its engine's state, its groups by row, and what else it remembers."""

    small: dict[str, Any]
    engine: dict[str, Any]
    groups: list[Group]
    leases: dict[int, Held | None]
    put_ids: dict[Any, tuple[int, int | None]]
    given_up: list[int]
    leftovers: list[int]
    """Uids of rows that are none of its groups: they are damaged, or of a resume that did not come to its end."""

    def lent(self) -> list[int]:
        """Return the groups that only holders of leases had."""
        rows = self.engine["rows"]
        uids: list[int] = rows["uid"][rows["place"] == LEASED].tolist()
        return uids


def write_rows(
    engine: Engine, slots: IntArray, groups: Sequence[Group], *, allow_pickle: bool
) -> list[Record]:
    """Return the records of rows."""
    if not len(slots):
        return []
    columns, records = engine.columns.rows(slots), [group.record() for group in groups]
    return rows_of_columns(columns, list(engine.tasks), records, allow_pickle=allow_pickle)


def rows_of_columns(
    columns: Mapping[str, Any], tasks: Sequence[str], records: Sequence[bytes], *, allow_pickle: bool
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
    rows = zip(*named, *numbers, ids, tags, records, strict=True)
    return [(ROW, uid, _write_json(row)) for uid, row in zip(uids, rows, strict=True)]


def write_small(engine: Engine, others: Mapping[str, Any]) -> bytes:
    """Return the small state. Every call of a buffer writes it, so one value that cannot be written must not fail it."""
    state = {"kind": KIND, "engine": small_state_of(engine), **others}
    try:
        return msgspec.msgpack.encode(state)
    except (TypeError, ValueError, OverflowError):
        return msgspec.msgpack.encode(_encodable(state))


def _encodable(value: Any) -> Any:
    """Return a value with everything replaced that MessagePack cannot hold."""
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
    """Raise NotStorable if the row of a group could not be written."""
    try:
        group.record()  # which is kept for when it is written
        if tags is not None:
            json.dumps(tags).encode()
        if group_id is not None:
            write_group_id(group_id, allow_pickle=allow_pickle)
    except NotStorable:
        raise
    except Exception as error:
        raise NotStorable(f"group {group.uid} cannot be written: {error}; it was not stored") from error


def write_use(task_name: str, used: Use) -> bytes:
    return msgspec.msgpack.encode([task_name, used.step, *(part.tolist() for part in used[1:])])


def write_group_id(group_id: Any, root: str = "group_id", *, allow_pickle: bool) -> _Id:
    """Return the id that a user gave a group, for JSON. Raises NotStorable."""
    if (type(group_id) is int and abs(group_id) < BOUND) or (type(group_id) is str and _is_utf8(group_id)):
        found: int | str = group_id
        return found
    return {"encoded": encode(group_id, root=root, allow_pickle=allow_pickle)}


def _read_group_id(written: _Id, allow_pickle: bool) -> Any:
    return decode(written["encoded"], allow_pickle=allow_pickle) if isinstance(written, dict) else written


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_put(put_id: Any, uid: int | None, *, allow_pickle: bool) -> bytes:
    """Return the record of a put: its id, and the uid that it returned. Raises NotStorable."""
    return msgspec.msgpack.encode((encode(put_id, root="put_id", allow_pickle=allow_pickle), uid))


def read(reader: Reader, *, skip: bool = False, allow_pickle: bool = False) -> Memory | None:
    """Return what a buffer was, without the rollouts; None if nothing was ever written.

    Raises CorruptData, also for a row that was altered, unless such are to be skipped; UnsupportedFormat.
    """
    try:
        state = reader.record(STATE, 0)
    except KeyError:
        return None
    with trusting_nothing(reader.path):
        small = written.small_state(state)
        engine = small.pop("engine")
        damaged: list[int] = []
        rows = list(read_rows(reader, damaged.append))
        if damaged and not skip:
            raise CorruptData(
                f"the row of group {damaged[0]} was altered; restore the file from a copy, or leave such groups out with "
                'on_corrupt="skip"'
            )
        known = dict(
            written.held(key, record, small["last_lease"]) for key, record in reader.records("lease")
        )
        engine["rows"] = _read_columns(rows, list(engine["tasks"]), allow_pickle)
        written.check_rows(engine["rows"], engine["last_uid"], known.values())
        engine["uses"] = _read_uses(reader.records("uses"), engine["tasks"])
        groups = [Group.from_record(row[0], row[-1]) for row in rows]
        for group in groups:
            written.check_group(group)
        puts = ((number, *_read_put(record)) for number, record in reader.records(PUT_ID))
        put_ids = {
            decode(put_id, allow_pickle=allow_pickle): (written.uid(number), uid)
            for number, put_id, uid in puts
        }
        given_up = [written.uid(key) for key, _ in reader.records(GIVEN_UP)]
        return Memory(small, engine, groups, known, put_ids, given_up, damaged)


def read_rows(reader: Reader, on_damaged: Callable[[int], None] | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a tuple of `COLUMNS`, by uid. Raises CorruptData, unless `on_damaged` receives the uid."""
    for uid, record in reader.records(ROW, on_damaged):
        yield uid, *_read_row(record)


def _read_columns(
    rows: Sequence[tuple[Any, ...]], tasks: Sequence[str], allow_pickle: bool
) -> dict[str, Any]:
    columns: dict[str, Any] = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    codes = {
        "task": {name: code for code, name in enumerate(tasks)},
        "status": {name: code for code, name in enumerate(_STATUS_NAMES)},
        "place": {name: code for code, name in enumerate(PLACES)},
    }
    for name in ("reward_mean", "reward_std"):
        columns[name] = [math.nan if value is None else float(value) for value in columns.get(name, ())]
    read: dict[str, Any] = {name: np.array(columns.get(name, ())) for name in ("uid", *_NUMBERS)}
    try:
        for name, code in codes.items():
            read[name] = np.array([code[value] for value in columns.get(name, ())], np.int64)
    except KeyError as error:
        raise CorruptData(
            f"a row names {error}, which this buffer does not have; restore it from a copy"
        ) from None
    read["group_id"] = [_read_group_id(known, allow_pickle) for known in columns.get("group_id", ())]
    read["tags"] = [None if text is None else written.tags(text) for text in columns.get("tags", ())]
    return read


def _read_uses(facts: Iterable[tuple[Any, bytes]], tasks: Iterable[str]) -> dict[str, dict[int, Use]]:
    uses: dict[str, dict[int, Use]] = {}
    for number, record in facts:
        if not isinstance(number, int):
            raise CorruptData(f"a use has the number {number!r}")
        task_name, step, parts = written.use(record, tasks)
        uses.setdefault(task_name, {})[number] = Use(step, *parts)
    return uses


def check_rollouts(blob: bytes, group: Group, path: Path, *, refs: RefReader, allow_pickle: bool) -> Any:
    """Return the same, or the bytes themselves if they can be decoded later, without help and without fail."""
    try:
        count = count_plain_rollouts(blob, partial=group.applied.model_step is not None)
    except (CorruptData, UnsupportedFormat):
        count = None
    if count == len(group.versions):
        return blob
    return read_rollouts(blob, group, path, refs=refs, allow_pickle=allow_pickle)


def read_rollouts(blob: bytes, group: Group, path: Path, *, refs: RefReader, allow_pickle: bool) -> Any:
    """Return the rollouts of a group, or a CorruptData that tells why they cannot be. Raises UnsupportedFormat."""
    try:
        return written.rollouts(decode(blob, refs=refs, allow_pickle=allow_pickle), group)
    except CorruptData as error:
        return error
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"group {group.uid} in {path}: {error}") from error
    except MemoryError as error:
        return CorruptData(f"its rollouts say that they need more memory than there is ({error})")
