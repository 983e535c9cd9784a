"""Changes to SQL, and counts of what is there, by which a reader finds out that something is missing."""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from reroll.store import seals
from reroll.store.change import Fact, Net
from reroll.store.schema import COLUMNS, KIND

ROWS, PAYLOADS, STATES, FACTS = "rows", "payloads", "states", "facts "
"""What is counted; facts by their kind."""

_INSERT_ROW = f"INSERT INTO rows VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"  # noqa: S608  (our own names)


class Writing:
    """Writes into the transaction that its owner has begun."""

    def __init__(self, connection: sqlite3.Connection, counts: dict[str, int]) -> None:
        self._connection = connection
        self._counts = counts
        self._counted: set[str] = set()
        """Names whose count has changed in this transaction."""
        self._highest = {name: self._highest_uid(name) for name in (ROWS, PAYLOADS)}

    @classmethod
    def anew(cls, connection: sqlite3.Connection) -> "Writing":
        """Return a writing into empty tables, within a transaction."""
        writing = cls(connection, {})
        writing._describe("kind", KIND)
        for name in (ROWS, PAYLOADS, STATES):
            writing._count(name, 0)
        return writing

    def apply(self, net: Net) -> None:
        """Write. O(what has changed)."""
        if net.rows:
            self._delete(ROWS, net.rows)
            rows = [(*row, seals.row_seal(row)) for row in net.rows.values() if row is not None]
            self._insert(ROWS, _INSERT_ROW, rows)
        if net.payloads:
            self._delete(PAYLOADS, net.payloads)
            payloads = [
                (uid, seals.payload_seal(uid, blob), blob)
                for uid, blob in net.payloads.items()
                if blob is not None
            ]
            self._insert(PAYLOADS, "INSERT INTO payloads VALUES (?, ?, ?)", payloads)
        by_kind = sorted(net.facts, key=itemgetter(0))  # the order of one kind is kept
        for (kind, is_gone), facts in groupby(by_kind, lambda fact: (fact[0], fact[2] is None)):
            self._write_facts(kind, is_gone, list(facts))
        if net.state is not None:
            self._write_state(net.state)

    def finish(self) -> None:
        """Write the counts; the owner commits."""
        for name in self._counted:
            self._describe(name, self._counts[name])
        self._counted.clear()

    def _highest_uid(self, table: str) -> int:
        (highest,) = self._connection.execute(f"SELECT max(uid) FROM {table}").fetchone()  # noqa: S608
        return -(1 << 63) if highest is None else int(highest)

    def _delete(self, table: str, uids: Iterable[int]) -> None:
        # Most uids are new, and higher than all that were ever here.
        highest = self._highest[table]
        old = [(uid,) for uid in uids if uid <= highest]
        if old:
            before = self._connection.total_changes
            self._connection.executemany(f"DELETE FROM {table} WHERE uid = ?", old)  # noqa: S608
            self._count(table, before - self._connection.total_changes)

    def _insert(self, name: str, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        if values:
            self._connection.executemany(statement, values)
            self._count(name, len(values))
            self._highest[name] = max(self._highest[name], *(uid for uid, *_ in values))

    def _write_facts(self, kind: str, is_gone: bool, facts: list[Fact]) -> None:
        before = self._connection.total_changes
        if is_gone:
            statement = "DELETE FROM facts WHERE kind = ? AND key = ?"
            self._connection.executemany(statement, [(kind, key) for _, key, _ in facts])
            self._count(FACTS + kind, before - self._connection.total_changes)
            return
        values = [(kind, key, value, seals.seal_of(kind, key, value or b"")) for _, key, value in facts]
        statement = "INSERT OR IGNORE INTO facts (kind, key, value, crc) VALUES (?, ?, ?, ?)"
        self._connection.executemany(statement, values)
        added = self._connection.total_changes - before
        self._count(FACTS + kind, added)
        if added < len(values):  # some were there: they keep their place
            statement = "UPDATE facts SET value = ?3, crc = ?4 WHERE kind = ?1 AND key = ?2"
            self._connection.executemany(statement, values)

    def _write_state(self, state: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (state, seals.seal_of(state))
        )
        self._count(STATES, 1 - self._counts[STATES])

    def _count(self, name: str, more: int) -> None:
        if more or name not in self._counts:
            self._counts[name] = self._counts.get(name, 0) + more
            self._counted.add(name)

    def _describe(self, name: str, value: int | str) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO about VALUES (?, ?, ?)", (name, value, seals.seal_of(name, value))
        )
