"""A buffer as rows, facts and one small state: what is written down of it, and how it comes back.

Rows change a few at a time, uses, leases and put ids are added and dropped, and the small rest is written as a whole.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from reroll.buffer.group import Group
from reroll.codec import decode, encode
from reroll.engine.columns import PLACES, IntArray
from reroll.engine.engine import Engine
from reroll.engine.state import small_state_of
from reroll.engine.task import STATUSES
from reroll.engine.uses import Used
from reroll.errors import CorruptData
from reroll.store import COLUMNS, Row

KIND: Final = "replay buffer"

_NUMBERS: Final = COLUMNS[4 : COLUMNS.index("group_id")]
"""The columns that are written as the engine has them."""
_STATUS_NAMES: Final = [status.value for status in STATUSES]


class Source(Protocol):
    """Where a buffer comes back from: a store, or something saved."""

    @property
    def state(self) -> bytes | None: ...
    def rows(self) -> Iterator[Row]: ...
    def facts(self, kind: str) -> Iterator[tuple[int | str | bytes, bytes]]: ...


class Memory(NamedTuple):
    """What a buffer was: its small state, its engine's state, its groups by row, and what else it remembers."""

    small: dict[str, Any]
    engine: dict[str, Any]
    groups: list[Group]
    leases: dict[int, bytes]
    put_ids: dict[Any, int | None]


def write_rows(engine: Engine, slots: IntArray, groups: Sequence[Group]) -> list[Row]:
    """Return rows as they are written down."""
    if not len(slots):
        return []
    return rows_of_columns(engine.columns.rows(slots), list(engine.tasks), [g.record() for g in groups])


def rows_of_columns(columns: Mapping[str, Any], tasks: Sequence[str], records: Sequence[bytes]) -> list[Row]:
    """Return rows as they are written down, from columns and what is known of their groups."""
    named = (
        [tasks[code] for code in columns["task"].tolist()],
        [_STATUS_NAMES[code] for code in columns["status"].tolist()],
        [PLACES[code] for code in columns["place"].tolist()],
    )
    numbers = (columns[name].tolist() for name in _NUMBERS)
    ids = [None if known is None else encode(known, root="group_id") for known in columns["group_id"]]
    tags = [None if known is None else json.dumps(known) for known in columns["tags"]]
    return list(zip(columns["uid"].tolist(), *named, *numbers, ids, tags, records, strict=True))


def write_small(engine: Engine, others: Mapping[str, Any]) -> bytes:
    """Return the small state."""
    return msgspec.msgpack.encode({"kind": KIND, "engine": small_state_of(engine), **others})


def write_use(task_name: str, used: Used) -> bytes:
    return msgspec.msgpack.encode([task_name, used.step, *(part.tolist() for part in used[1:])])


def write_put_id(put_id: Any) -> bytes:
    """Return the key of a put id. Raises NotStorable."""
    return encode(put_id, root="put_id")


def read(source: Source) -> Memory | None:
    """Return what a buffer was, without the rollouts; None if nothing was ever written. Raises CorruptData."""
    if source.state is None:
        return None
    small = msgspec.msgpack.decode(source.state, strict=False)
    if not isinstance(small, dict) or small.get("kind") != KIND:
        raise CorruptData("the state is not that of a replay buffer; name what a buffer was saved to")
    engine = small.pop("engine")
    rows = list(source.rows())
    engine["rows"] = _read_rows(rows, list(engine["tasks"]))
    engine["uses"] = _read_uses(source.facts("uses"))
    return Memory(
        small,
        engine,
        [Group.from_record(row[0], row[-1]) for row in rows],
        {int(lease): record for lease, record in source.facts("lease")},
        {decode(key): msgspec.msgpack.decode(uid) for key, uid in source.facts("put_id")},  # type: ignore[arg-type]
    )


def _read_rows(rows: Sequence[Row], tasks: Sequence[str]) -> dict[str, Any]:
    columns: dict[str, Any] = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    codes = {
        "task": {name: code for code, name in enumerate(tasks)},
        "status": {name: code for code, name in enumerate(_STATUS_NAMES)},
        "place": {name: code for code, name in enumerate(PLACES)},
    }
    read: dict[str, Any] = {name: np.array(columns.get(name, ())) for name in ("uid", *_NUMBERS)}
    try:
        for name, code in codes.items():
            read[name] = np.array([code[value] for value in columns.get(name, ())], np.int64)
    except KeyError as error:
        raise CorruptData(f"a row names {error}, which this buffer does not have") from None
    read["group_id"] = [None if blob is None else decode(blob) for blob in columns.get("group_id", ())]
    read["tags"] = [None if text is None else json.loads(text) for text in columns.get("tags", ())]
    return read


def _read_uses(facts: Iterable[tuple[Any, bytes]]) -> dict[str, dict[int, Used]]:
    uses: dict[str, dict[int, Used]] = {}
    for number, record in facts:
        task_name, step, *parts = msgspec.msgpack.decode(record)
        uses.setdefault(task_name, {})[number] = Used(step, *(np.array(part, np.int64) for part in parts))
    return uses
