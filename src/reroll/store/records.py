"""Records and payloads in a database: how a change is written, and how all of it is read back, verified.

A record is bytes under a kind and a key; a payload is a blob under a uid. The store knows nothing else about them, and
nothing that it reads is ever run. Each has a checksum, and the commit record says how many records of a kind there are.
"""

import os
import sqlite3
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from zlib import crc32

import msgspec

from reroll.errors import CorruptData, UnknownUid
from reroll.store.commits import Commit, find_missing, read_marker
from reroll.store.files import ROW, connect_to_read, find_saved, read_errors

Blob: TypeAlias = bytes | bytearray | memoryview
Key: TypeAlias = int | str | bytes
Record: TypeAlias = tuple[str, Key, bytes | None]
"""Kind, key, value; None deletes the record."""
OnDamaged: TypeAlias = Callable[[Any], None]
"""Receives the key or uid of each damaged entry that a read passes over."""
OnMissing: TypeAlias = Literal["raise", "skip"]
"""What to do if acknowledged commits are missing."""

MAX_PAYLOAD_BYTES: Final = 999_999_000
"""SQLite holds values of at most 10^9 bytes."""
COMMIT: Final = "commit"
"""The kind of the record of the last commit, which the store itself writes."""
HEAD_BYTES: Final = 64
"""The bytes of a payload that its checksum here covers."""

_MAX_AT_ONCE: Final = 64
"""Records of one statement: Python releases its lock for each statement, which costs more than to insert a record."""
_MAX_BYTES_AT_ONCE: Final = 4 << 20
"""Payload bytes of one statement: SQLite copies them all before it begins."""
_LABEL: Final = struct.Struct("<qq")
_read_commit: Final = msgspec.json.Decoder(Commit).decode


@dataclass(slots=True)
class Change:
    """The content of one commit, as a whole or not at all. Do not alter the values until it is written."""

    records: list[Record] = field(default_factory=list)
    """New, replaced or deleted records."""
    payloads: list[tuple[int, Blob | None]] = field(default_factory=list)
    """Uid and blob, None to delete it. A blob carries a checksum of its own within its first 64 bytes."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """By kind: how many records there are after this change. A reader raises CorruptData for any other number."""


def record_crc(kind: str, key: Key, value: bytes) -> int:
    """Return the checksum of a record."""
    return crc32(value, crc32(f"{kind} {key!r}".encode()))


def payload_crc(uid: int, blob: Blob) -> int:
    """Return the checksum of a payload's uid, length and first bytes, which hold its own checksum. O(1).

    A second pass over all of its bytes would take a third of the time of a write.
    """
    with memoryview(blob).cast("B") as view:
        return crc32(view[:HEAD_BYTES], crc32(_LABEL.pack(uid, len(view))))


# --- writing


def write_changes(
    connection: sqlite3.Connection, changes: Iterable[Change], commit: Commit | None = None
) -> None:
    """Write changes in the transaction that the caller has begun; later ones win. O(size of the changes)."""
    records: dict[tuple[str, Key], bytes | None] = {}
    payloads: dict[int, Blob | None] = {}
    for change in changes:
        for kind, key, value in change.records:
            records[kind, key] = value
        payloads.update(change.payloads)
    if commit is not None:
        records[COMMIT, 0] = msgspec.json.encode(commit)
    deleted: dict[str, list[Key]] = {}
    for (kind, key), value in records.items():
        if value is None:
            deleted.setdefault(kind, []).append(key)
    for kind, keys in deleted.items():
        _delete(connection, "records WHERE kind = ? AND key", keys, kind)
    written = [
        (kind, key, value, record_crc(kind, key, value))
        for (kind, key), value in records.items()
        if value is not None
    ]
    _insert(connection, "records", written, _MAX_AT_ONCE)
    if payloads:
        _delete(connection, "payloads WHERE uid", [uid for uid, blob in payloads.items() if blob is None])
        blobs = [(uid, payload_crc(uid, blob), blob) for uid, blob in payloads.items() if blob is not None]
        largest = max((memoryview(blob).nbytes for *_, blob in blobs), default=0)
        _insert(connection, "payloads", blobs, max(1, _MAX_BYTES_AT_ONCE // max(largest, 1)))


def _insert(
    connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]], at_once: int
) -> None:
    for some in _parts(rows, min(at_once, _MAX_AT_ONCE)):
        connection.execute(_insertion(table, len(some), len(some[0])), [*chain.from_iterable(some)])


def _delete(connection: sqlite3.Connection, where: str, keys: Sequence[Key], *first: str) -> None:
    for some in _parts(keys, _MAX_AT_ONCE):
        connection.execute(_deletion(where, len(some)), [*first, *some])


def _parts(values: Sequence[Any], at_once: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + at_once] for start in range(0, len(values), at_once))


@cache
def _insertion(table: str, rows: int, width: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"INSERT OR REPLACE INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608  (our own names)


@cache
def _deletion(where: str, keys: int) -> str:
    return f"DELETE FROM {where} IN ({', '.join('?' * keys)})"  # noqa: S608  (our own names)


# --- reading


class Reader:
    """Reads within the transaction of a connection, so that all results are of one moment."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    def commit(self) -> Commit:
        """Return the record of the last commit."""
        with read_errors(self.path):
            return _read_commit(self.record(COMMIT, 0))

    def record(self, kind: str, key: Key) -> bytes:
        """Return the value of one record. O(log records). Raises KeyError, CorruptData."""
        with read_errors(self.path):
            query = "SELECT value, crc FROM records WHERE kind = ? AND key = ?"
            found = self._connection.execute(query, (kind, key)).fetchone()
            if found is not None and not _is_record(kind, key, *found):
                raise self._altered(f"the {kind} record {key!r}")
        if found is None:
            if kind == COMMIT:
                raise self._altered("the record of its last commit")
            raise KeyError(key)
        value: bytes = found[0]
        return value

    def records(self, kind: str, on_damaged: OnDamaged | None = None) -> Iterator[tuple[Any, bytes]]:
        """Yield key and value of each record of a kind, by key.

        Raises CorruptData for a damaged record, unless `on_damaged` receives its key; and at the end if some are missing.
        """
        query = "SELECT key, value, crc FROM records WHERE kind = ? ORDER BY key"
        with read_errors(self.path):
            expected, number = self.commit().totals.get(kind), 0
            last: Any = None
            for key, value, crc in self._connection.execute(query, (kind,)):
                if type(key) is type(last) and key <= last:
                    raise self._altered(f"the {kind} record {key!r}")
                last = key
                number += 1
                if _is_record(kind, key, value, crc):
                    yield key, value
                elif on_damaged is None:
                    raise self._altered(f"the {kind} record {key!r}")
                else:
                    on_damaged(key)
            if expected is not None and number != expected:
                raise self._altered(f"its {kind} records ({number} of {expected} are there)")

    def kinds(self) -> list[str]:
        """Return the kinds of records, without that of the last commit."""
        with read_errors(self.path):
            found = {kind for (kind,) in self._connection.execute("SELECT DISTINCT kind FROM records")}
            return sorted(found.union(self.commit().totals) - {COMMIT})

    def payloads(self, uids: Iterable[int]) -> Iterator[bytes]:
        """Yield blobs in the order of the uids; ascending order is fastest. Raises UnknownUid, CorruptData."""
        with read_errors(self.path):
            for uid in uids:
                query = "SELECT blob, crc FROM payloads WHERE uid = ?"
                found = self._connection.execute(query, (uid,)).fetchone()
                if found is None:
                    query = "SELECT 1 FROM records WHERE kind = ? AND key = ?"
                    if self._connection.execute(query, (ROW, uid)).fetchone():
                        raise self._altered(f"the payload of uid {uid} (it is missing)")
                    raise UnknownUid(
                        f"{self.path} holds no payload of uid {uid}: it was deleted or never stored"
                    )
                if not _is_payload(uid, *found):
                    raise self._altered(f"the payload of uid {uid}")
                yield found[0]

    def payload_parts(self, uid: int, ranges: Iterable[tuple[int, int | None]]) -> list[bytes]:
        """Return ranges of a payload, up to its end where that is None; the rest is not read. Raises UnknownUid, CorruptData."""
        with read_errors(self.path):
            query = "SELECT crc FROM payloads WHERE uid = ?"
            found = self._connection.execute(query, (uid,)).fetchone()
            if found is None:
                list(self.payloads([uid]))  # raises
            with self._connection.blobopen("payloads", "blob", uid, readonly=True) as blob:
                if found[0] != crc32(blob.read(HEAD_BYTES), crc32(_LABEL.pack(uid, len(blob)))):
                    raise self._altered(f"the payload of uid {uid}")
                parts = []
                for start, end in ranges:
                    blob.seek(start)
                    parts.append(blob.read((len(blob) if end is None else end) - start))
                return parts

    def all_payloads(self, on_damaged: OnDamaged | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield each uid and its blob, by uid, in one pass. Raises CorruptData, unless `on_damaged` receives the uid."""
        with read_errors(self.path):
            last = None
            for uid, blob, crc in self._connection.execute(
                "SELECT uid, blob, crc FROM payloads ORDER BY uid"
            ):
                is_whole = _is_payload(uid, blob, crc)
                if (last is not None and uid <= last) or (on_damaged is None and not is_whole):
                    raise self._altered(f"the payload of uid {uid}")
                last = uid
                if is_whole:
                    yield uid, blob
                elif on_damaged is not None:
                    on_damaged(uid)

    def payload_uids(self) -> list[int]:
        """Return the uids of all payloads."""
        with read_errors(self.path):
            return [uid for (uid,) in self._connection.execute("SELECT uid FROM payloads")]

    def _altered(self, what: str) -> CorruptData:
        return CorruptData(f"{self.path} is damaged: {what} was altered; restore the file from a copy")


def _is_record(kind: str, key: Key, value: object, crc: object) -> bool:
    return isinstance(value, bytes) and crc == record_crc(kind, key, value)


def _is_payload(uid: int, blob: object, crc: object) -> bool:
    return isinstance(blob, bytes) and crc == payload_crc(uid, blob)


class Saved(Reader):
    """A database as it was when it was opened, whatever is written meanwhile. Not for several threads at once.

    Close it: while it is open, a store in use keeps all that it has written since in its log.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(connect_to_read(path), path)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_saved(path: str | os.PathLike[str], *, on_corrupt: OnMissing = "raise") -> Saved:
    """Open a snapshot, or a durable store that is closed, in use, or left behind by a crash.

    Args:
        path: The directory, or the file in it.
        on_corrupt: With "skip", missing acknowledged commits are a warning instead of an error.

    Raises:
        SavedNotFound: There is no such file.
        CorruptData: The file is truncated or altered, or lacks acknowledged commits.
        UnsupportedFormat: The file has another format, or belongs to another application.
        StoreFailed: The disk or the permissions refused to read it.

    """
    file = find_saved(path)
    acknowledged = read_marker(file)
    while True:
        saved = Saved(file)
        try:
            problem = find_missing(file, saved.commit(), acknowledged)
            before, acknowledged = acknowledged, acknowledged if problem is None else read_marker(file)
            if acknowledged == before:  # else a store was opened or closed between the two reads
                if problem is not None and on_corrupt == "raise":
                    raise CorruptData(problem)  # noqa: TRY301  (as any other)
                if problem is not None:
                    warnings.warn(problem, UserWarning, stacklevel=2)
                return saved
        except BaseException:
            saved.close()
            raise
        saved.close()
