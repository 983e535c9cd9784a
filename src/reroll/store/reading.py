"""SQL to rows, facts, payloads and state. All of it is verified: what is returned is what was written."""

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from reroll.errors import CorruptData, UnknownUid
from reroll.store import seals
from reroll.store.amending import AMENDED, read_amended
from reroll.store.change import Row
from reroll.store.commits import LastCommit, Mark
from reroll.store.connections import reading
from reroll.store.schema import COLUMNS, KIND
from reroll.store.writing import COMMITS, FACTS, IN_USE, PAYLOADS, ROWS, STAMP, STATES

Damaged: TypeAlias = Callable[[int], None]
"""Is told the uid of what was altered, and passed over."""

_ALL_ROWS = f"SELECT {', '.join(COLUMNS)}, crc FROM rows ORDER BY uid"  # noqa: S608  (our own names)


class Reading:
    """Reads in the transaction that its owner has begun, so that all it returns is of one moment."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def counts(self) -> dict[str, int]:
        """Return how much of everything is there. O(kinds of facts)."""
        return {name: value for name, value in self._about().items() if name not in (COMMITS, STAMP, IN_USE)}

    def last_commit(self) -> LastCommit:
        """Return the last commit of a durable store; number 0 in a checkpoint, which has none."""
        about = self._about()
        return LastCommit(Mark(about.get(COMMITS, 0), about.get(STAMP, 0)), bool(about.get(IN_USE, 0)))

    def _about(self) -> dict[str, int]:
        with reading(self._path):
            about = {}
            for name, value, crc in self._connection.execute("SELECT name, value, crc FROM about"):
                if crc != seals.seal_of(name, value):
                    raise self._altered(f"what it says about its {name}")
                about[name] = value
            if about.pop("kind", None) != KIND or not {ROWS, PAYLOADS, STATES} <= about.keys():
                raise self._altered("what it says about itself")
            return about

    def state(self) -> bytes | None:
        """Return the state blob, or None if none was ever written."""
        with reading(self._path):
            found = self._connection.execute("SELECT value, crc FROM state").fetchall()
            if len(found) != self.counts()[STATES]:
                raise self._altered("its state")
            if not found:
                return None
            value: bytes
            value, crc = found[0]
            if not isinstance(value, bytes) or crc != seals.seal_of(value):
                raise self._altered("its state")
            return value

    def rows(self, damaged: Damaged | None = None) -> Iterator[Row]:
        """Yield every row, by uid; those that were altered are told to `damaged`, if given."""
        with reading(self._path):
            expected, number, last = self.counts()[ROWS], 0, None
            amended = {row[0]: row for _, rows in self.amended() for row in rows}
            for *values, crc in self._connection.execute(_ALL_ROWS):
                row = amended.get(values[0]) or seals.restored(tuple(values))
                is_whole = values[0] in amended or _is_sealed(row, crc)
                if (damaged is None and not is_whole) or (last is not None and row[0] <= last):
                    raise self._altered(f"the row of uid {row[0]}")
                last = row[0]
                number += 1
                if is_whole:
                    yield row
                elif damaged is not None:
                    damaged(row[0])
            if number != expected:
                raise self._altered(f"its rows ({number} of {expected} are there)")

    def amended(self) -> Iterator[tuple[int, list[Row]]]:
        """Yield number and rows of every fact that has changed rows, the oldest first; some rows may be gone since."""
        with reading(self._path):
            for number, value in self.facts(AMENDED):
                if not isinstance(number, int):
                    raise self._altered(f"the {AMENDED} {number!r}")
                yield number, read_amended(value)

    def facts(self, kind: str) -> Iterator[tuple[int | str | bytes, bytes]]:
        """Yield key and value of every fact of a kind, in the order in which the keys came."""
        statement = "SELECT seq, kind, key, value, crc FROM facts WHERE kind = ? ORDER BY seq"
        with reading(self._path):
            expected, number, last = self.counts().get(FACTS + kind, 0), 0, None
            for seq, stored, key, value, crc in self._connection.execute(statement, (kind,)):
                if crc != seals.seal_of(stored, key, value) or (last is not None and seq <= last):
                    raise self._altered(f"the {kind} fact {key!r}")
                last = seq
                number += 1
                yield key, value
            if number != expected:
                raise self._altered(f"its {kind} facts ({number} of {expected} are there)")

    def fact(self, kind: str, key: int | str | bytes) -> bytes:
        """Return the value of one fact; raises `KeyError` for one that is not there. O(log facts)."""
        statement = "SELECT value, crc FROM facts WHERE kind = ? AND key = ?"
        with reading(self._path):
            found = self._connection.execute(statement, (kind, key)).fetchone()
            if found is not None and found[1] != seals.seal_of(kind, key, found[0]):
                raise self._altered(f"the {kind} fact {key!r}")
        if found is None:
            raise KeyError(key)
        value: bytes = found[0]
        return value

    def kinds(self) -> list[str]:
        """Return the kinds of facts that are or were there."""
        kinds = [name.removeprefix(FACTS) for name in self.counts() if name.startswith(FACTS)]
        return [kind for kind in kinds if kind != AMENDED]

    def payloads(self, uids: Iterable[int]) -> Iterator[bytes]:
        """Yield the blobs in the order of the uids; raises `UnknownUid` for one that was never here or is gone."""
        with reading(self._path):
            for uid in uids:
                yield self._payload(uid)

    def all_payloads(self, damaged: Damaged | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield every uid and its blob, by uid, in one pass; those that were altered are told to `damaged`, if given."""
        with reading(self._path):
            expected, number, last = self.counts()[PAYLOADS], 0, None
            for uid, seal, blob in self._connection.execute(
                "SELECT uid, seal, blob FROM payloads ORDER BY uid"
            ):
                is_whole = isinstance(blob, bytes) and seal == seals.payload_seal(uid, blob)
                if (damaged is None and not is_whole) or (last is not None and uid <= last):
                    raise self._altered(f"the payload of uid {uid}")
                last = uid
                number += 1
                if is_whole:
                    yield uid, blob
                elif damaged is not None:
                    damaged(uid)
            if number != expected:
                raise self._altered(f"its payloads ({number} of {expected} are there)")

    def payload_uids(self) -> list[int]:
        """Return the uids of all payloads."""
        with reading(self._path):
            return [uid for (uid,) in self._connection.execute("SELECT uid FROM payloads")]

    def _payload(self, uid: int) -> bytes:
        found = self._connection.execute("SELECT seal, blob FROM payloads WHERE uid = ?", (uid,)).fetchone()
        if found is None:
            if self._connection.execute("SELECT 1 FROM rows WHERE uid = ?", (uid,)).fetchone():
                raise self._altered(f"the payload of uid {uid} (it is missing)")
            raise UnknownUid(f"{self._path} holds no payload of uid {uid}: it was never here, or is gone")
        blob: bytes
        seal, blob = found
        if not isinstance(blob, bytes) or seal != seals.payload_seal(uid, blob):
            raise self._altered(f"the payload of uid {uid}")
        return blob

    def _altered(self, what: str) -> CorruptData:
        return CorruptData(f"{self._path} is damaged: {what} was altered; restore the file from a copy")


def _is_sealed(row: Row, crc: object) -> bool:
    try:
        return crc == seals.row_seal(row)
    except (struct.error, TypeError, ValueError):  # values of other types than those that were written
        return False
