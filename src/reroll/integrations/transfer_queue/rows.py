"""Rows of one storage unit in a reroll store.

A row has a record (partition, key, tags, and which payload holds which fields) and one payload for each put that wrote to it.
Nothing is pickled: a value that the codec cannot write raises NotStorable, and nothing changes.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
from tensordict import NonTensorData

from reroll.codec import decode, encode
from reroll.store import Change, Reader, copy_of, open_saved, open_store, write_snapshot

_ROW: Final = "transfer_queue_row"
_UNIT: Final = "transfer_queue_unit"
_NUMPY: Final = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
)
"""Tensors of these dtypes are written as arrays, which takes a third of the time."""

Values = dict[str, Any]
"""The fields of a row."""


class Info(NamedTuple):
    """What TransferQueue's controller knows of a row; a row that was put without a key has none."""

    partition_id: str
    key: str | None
    tags: dict[str, Any]


class _Part(NamedTuple):
    uid: int
    fields: tuple[str, ...]


class _Row(NamedTuple):
    info: Info
    parts: tuple[_Part, ...]


class Rows:
    """The rows of a unit, open for their only writer. Each change is on disk, as a whole, when its call returns."""

    def __init__(self, directory: str | PathLike[str], sync: Literal["os", "disk"] = "os") -> None:
        self._store = open_store(directory, sync=sync)
        with self._store.reader() as reader:
            self._rows = _read_rows(reader)
        self._next_uid = 1 + max((part.uid for row in self._rows.values() for part in row.parts), default=0)

    def indexes(self) -> list[int]:
        """Return the numbers of all rows."""
        return list(self._rows)

    def info(self, index: int) -> Info:
        """Return what is known of a row."""
        return self._rows[index].info

    def values(self) -> Iterator[tuple[int, Values]]:
        """Yield the number and the fields of every row."""
        for index, row in self._rows.items():
            blobs = self._store.read([part.uid for part in row.parts])
            yield index, {name: value for blob in blobs for name, value in _decoded(blob).items()}

    def plan_put(
        self, infos: Mapping[int, Info], indexes: Sequence[int], columns: Mapping[str, Sequence[Any]]
    ) -> tuple[Change, dict[int, _Row]]:
        """Encode rows and return what `write` takes: new fields, and new values of fields that are there. O(bytes)."""
        change = Change()
        rows: dict[int, _Row] = {}
        fields = tuple(columns)
        for position, index in enumerate(indexes):
            row = rows.get(index) or self._rows.get(index)
            parts = () if row is None else row.parts
            if fields:
                blob = _encoded({name: columns[name][position] for name in fields}, infos[index])
                change.payloads.append((self._next_uid, blob))
                replaced = {part for part in parts if set(part.fields) <= set(fields)}
                change.payloads += [(part.uid, None) for part in replaced]
                parts = (*(part for part in parts if part not in replaced), _Part(self._next_uid, fields))
                self._next_uid += 1
            rows[index] = _Row(infos[index], parts)
        change.records = [(_ROW, index, encode(row, root=f"row {index}")) for index, row in _plain(rows)]
        return change, rows

    def write(self, change: Change, rows: Mapping[int, _Row]) -> None:
        """Commit a planned put. Raises StoreFailed."""
        self._commit(change, rows)

    def clear(self, indexes: Iterable[int]) -> None:
        """Delete rows; their space in the file is used again. Unknown rows are ignored. Raises StoreFailed."""
        gone = {index: self._rows[index] for index in indexes if index in self._rows}
        change = Change(
            records=[(_ROW, index, None) for index in gone],
            payloads=[(part.uid, None) for row in gone.values() for part in row.parts],
        )
        if gone:
            self._commit(change, {}, gone)

    def save(self, path: str | PathLike[str]) -> None:
        """Copy all rows to another directory."""
        with self._store.begin_copy() as saved:
            write_snapshot(path, copy_of(saved, None, threading.Event()))

    def load(self, path: str | PathLike[str]) -> None:
        """Replace all rows by a copy that `save` made. A damaged copy changes nothing. Raises SavedNotFound, CorruptData."""
        with open_saved(path) as saved:
            rows = _read_rows(saved)
            change = Change(records=[(_ROW, index, None) for index in self._rows])
            change.payloads = [(part.uid, None) for row in self._rows.values() for part in row.parts]
            renamed = {}
            for index, row in rows.items():
                blobs = saved.payloads([part.uid for part in row.parts])
                parts = tuple(_Part(self._next_uid + n, part.fields) for n, part in enumerate(row.parts))
                change.payloads += zip((part.uid for part in parts), blobs, strict=True)
                self._next_uid += len(parts)
                renamed[index] = _Row(row.info, parts)
        change.records += [(_ROW, index, encode(row)) for index, row in _plain(renamed)]
        self._commit(change, renamed, set(self._rows))

    def remember(self, name: str, value: dict[str, Any]) -> None:
        """Keep values of the unit itself."""
        self._commit(Change(records=[(_UNIT, name, encode(value))]), {})

    def recall(self, name: str) -> dict[str, Any]:
        """Return values of the unit itself; nothing if it has none yet."""
        with self._store.reader() as reader:
            return dict(next((decode(blob) for key, blob in reader.records(_UNIT) if key == name), {}))

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()

    def _commit(self, change: Change, put: Mapping[int, _Row], gone: Collection[int] = ()) -> None:
        """Write a change, then delete and put rows in memory. O(change)."""
        kept = sum(index in self._rows and index not in gone for index in put)
        change.totals = {_ROW: len(self._rows) - len(gone) + len(put) - kept}
        written: Future[None] = Future()

        def done(error: BaseException | None) -> None:
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self._store.write(change, done)
        written.result()
        for index in gone:
            del self._rows[index]
        self._rows.update(put)


def _plain(rows: Mapping[int, _Row]) -> Iterator[tuple[int, list[Any]]]:
    return (
        (index, [*row.info, [[part.uid, *part.fields] for part in row.parts]]) for index, row in rows.items()
    )


def _read_rows(reader: Reader) -> dict[int, _Row]:
    rows = {}
    for index, blob in reader.records(_ROW):
        partition_id, key, tags, parts = decode(blob)
        found = tuple(_Part(uid, tuple(fields)) for uid, *fields in parts)
        rows[index] = _Row(Info(partition_id, key, tags), found)
    return rows


def _encoded(values: Values, info: Info) -> bytes:
    arrays, others = {}, {}
    for name, value in values.items():
        if type(value) is torch.Tensor and value.dtype in _NUMPY and value.layout is torch.strided:
            arrays[name] = value.detach().cpu().numpy()
        else:
            others[name] = value.data if isinstance(value, NonTensorData) else value
    return encode((arrays, others), root=f"row {info.key!r}")


def _decoded(blob: bytes) -> Values:
    arrays, others = decode(blob)
    return {**{name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, **others}
