"""Changes to SQL, and counts of what is there, by which a reader finds out that something is missing.

Many rows are one statement: Python's lock is given away and taken back for each statement that runs, and where an event
loop is busy that takes far longer than to insert a row.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from reroll.store import amending, schema, seals
from reroll.store.amending import AMENDED, Amended, read_amended, write_amended
from reroll.store.change import Fact, Net, Row
from reroll.store.schema import COLUMNS, KIND

ROWS, PAYLOADS, STATES, FACTS = "rows", "payloads", "states", "facts "
"""What is counted; facts by their kind."""
COMMITS, STAMP, IN_USE = "commits", "stamp", "in use"
"""About the last commit of a durable store, which checkpoints do not have; see `store.commits`."""

_WIDTHS = {ROWS: len(COLUMNS) + 1, PAYLOADS: 3}
_MAX_AT_ONCE = 64
"""Rows of one statement."""
_MAX_BYTES_AT_ONCE = 4 << 20
"""Of payloads in one statement: SQLite copies them all before it begins."""


class Writing:
    """Writes into the transaction that its owner has begun."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        counts: dict[str, int],
        amended: Iterable[tuple[int, list[int]]] = (),
    ) -> None:
        self._connection = connection
        self._counts = counts
        self._counted: set[str] = set()
        """Names whose count has changed in this transaction."""
        self._uids = {uid for (uid,) in connection.execute("SELECT uid FROM rows")}
        self._highest = {name: self._highest_uid(name) for name in (ROWS, PAYLOADS)}
        self.is_in_use = schema.is_in_use(connection)
        """Whether the file may hold amended rows, and says so."""
        self._amended = Amended()
        for number, uids in amended:
            self._amended.add([uid for uid in uids if uid in self._uids], number)
        self._max_variables = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)

    @classmethod
    def anew(cls, connection: sqlite3.Connection) -> "Writing":
        """Return a writing into empty tables, within a transaction."""
        writing = cls(connection, {})
        writing._describe({"kind": KIND})
        for name in (ROWS, PAYLOADS, STATES):
            writing._count(name, 0)
        return writing

    def apply(self, net: Net) -> None:
        """Write. O(what has changed)."""
        if net.rows:
            self._delete_rows([uid for uid, row in net.rows.items() if row is None])
            self._write_rows([row for row in net.rows.values() if row is not None])
        if net.payloads:
            self._delete(PAYLOADS, [uid for uid, blob in net.payloads.items() if blob is None])
            payloads = [
                (uid, seals.payload_seal(uid, blob), blob)
                for uid, blob in net.payloads.items()
                if blob is not None
            ]
            largest = max((len(memoryview(blob).cast("B")) for *_, blob in payloads), default=0)
            present = self._count_present(PAYLOADS, [uid for uid, *_ in payloads])
            self._insert(PAYLOADS, payloads, _MAX_BYTES_AT_ONCE // max(largest, 1), present)
        by_kind = sorted(net.facts, key=itemgetter(0))  # the order of one kind is kept
        for (kind, is_gone), facts in groupby(by_kind, lambda fact: (fact[0], fact[2] is None)):
            self._write_facts(kind, is_gone, list(facts))
        if net.state is not None:
            self._write_state(net.state)

    def write_in_place(self, *, but: int = 0) -> None:
        """Write changed rows that are kept together to where they belong, the oldest first, until this many are left."""
        while (number := self._amended.oldest(but=but)) is not None:
            (value,) = self._connection.execute(_AMENDED_ROWS, (AMENDED, number)).fetchone()
            rows = self._amended.last_of(number, read_amended(value))
            self._amended.forget(row[0] for row in rows)
            self._insert_rows(rows)
            self._delete_unneeded()

    def finish(self, about: Mapping[str, int] | None = None) -> None:
        """Write the counts, and what else there is to say about the file; the owner commits."""
        entries = {**{name: self._counts[name] for name in self._counted}, **(about or {})}
        if entries:
            self._describe(entries)
            self._counted.clear()

    def _write_rows(self, rows: Sequence[Row]) -> None:
        uids, amended, highest = self._uids, self._amended, self._highest[ROWS]
        new = [row for row in rows if row[0] not in uids]
        changed = [row for row in rows if row[0] in uids]
        # What a fact has already must come in a later one; also of a row that went and is here again.
        again = [row for row in new if amended and row[0] <= highest]
        if again or len(changed) > amending.FEW or any(row[0] in amended for row in changed):
            if not self.is_in_use:  # not sooner: a store on a full disk can be opened
                schema.mark(self._connection, schema.IN_USE)
                self.is_in_use = True
            changed += again
            number = amended.add([row[0] for row in changed])
            self._write_facts(AMENDED, is_gone=False, facts=[(AMENDED, number, write_amended(changed))])
            changed = []
        self._insert_rows([*new, *changed])
        self._delete_unneeded()
        self.write_in_place(but=amending.MAX_ROWS)

    def _insert_rows(self, rows: Sequence[Row]) -> None:
        uids = {row[0] for row in rows}
        sealed = [(*row, seals.row_seal(row)) for row in rows]
        self._insert(ROWS, sealed, _MAX_AT_ONCE, present=len(uids & self._uids))
        self._uids |= uids

    def _delete_rows(self, uids: Sequence[int]) -> None:
        self._delete(ROWS, uids)
        self._uids.difference_update(uids)
        self._amended.forget(uids)

    def _delete_unneeded(self) -> None:
        if unneeded := self._amended.unneeded():
            self._write_facts(AMENDED, is_gone=True, facts=[(AMENDED, number, None) for number in unneeded])

    def _highest_uid(self, table: str) -> int:
        (highest,) = self._connection.execute(f"SELECT max(uid) FROM {table}").fetchone()  # noqa: S608
        return -(1 << 63) if highest is None else int(highest)

    def _delete(self, table: str, uids: Sequence[int]) -> None:
        before = self._connection.total_changes
        for some in _parts(uids, _MAX_AT_ONCE):
            self._connection.execute(_deletion(table, len(some)), some)
        self._count(table, before - self._connection.total_changes)

    def _count_present(self, table: str, uids: Iterable[int]) -> int:
        # Most uids are new, and higher than all that were ever here.
        highest, present = self._highest[table], 0
        for some in _parts([uid for uid in uids if uid <= highest], _MAX_AT_ONCE):
            (found,) = self._connection.execute(_search(table, len(some)), some).fetchone()
            present += found
        return present

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]], at_once: int, present: int) -> None:
        if rows:
            at_once = min(at_once, _MAX_AT_ONCE, self._max_variables // _WIDTHS[table])
            for some in _parts(rows, at_once):
                self._connection.execute(_insertion(table, len(some)), [*chain.from_iterable(some)])
            self._count(table, len(rows) - present)
            self._highest[table] = max(self._highest[table], *(row[0] for row in rows))

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

    def _describe(self, entries: Mapping[str, int | str]) -> None:
        values = [(name, value, seals.seal_of(name, value)) for name, value in entries.items()]
        statement = f"INSERT OR REPLACE INTO about VALUES {', '.join(['(?, ?, ?)'] * len(values))}"  # noqa: S608
        self._connection.execute(statement, [*chain.from_iterable(values)])


_AMENDED_ROWS = "SELECT value FROM facts WHERE kind = ? AND key = ?"


def _parts(values: Sequence[Any], at_once: int) -> Iterator[Sequence[Any]]:
    """Yield parts whose lengths are powers of two, the largest first: so there are few different statements."""
    start, size = 0, 1 << (max(at_once, 1).bit_length() - 1)
    while start < len(values):
        while size > len(values) - start:
            size //= 2
        yield values[start : start + size]
        start += size


@cache
def _insertion(table: str, rows: int) -> str:
    row = f"({', '.join('?' * _WIDTHS[table])})"
    return f"INSERT OR REPLACE INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608  (our own names)


@cache
def _search(table: str, rows: int) -> str:
    return f"SELECT count(*) FROM {table} WHERE uid IN ({', '.join('?' * rows)})"  # noqa: S608  (our own names)


@cache
def _deletion(table: str, rows: int) -> str:
    return f"DELETE FROM {table} WHERE uid IN ({', '.join('?' * rows)})"  # noqa: S608  (our own names)
