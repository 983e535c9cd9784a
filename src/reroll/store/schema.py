"""The tables of the file, the number of its format, and the check that a file holds exactly these.

Rows and payloads are apart, so that the update of a row does not rewrite a blob. A file with anything else in it (a
trigger, a view, an index that computes) is refused before a statement runs on its tables.
"""

import sqlite3
from functools import cache
from pathlib import Path

from reroll.errors import CorruptData, UnsupportedFormat

FILE_NAME = "replay_buffer.sqlite"
"""The file's name in the directory that a user names, of a durable store and of a checkpoint."""

KIND = "reroll replay buffer"
APPLICATION_ID = 0x5265726C  # "Rerl", in the header of the file
FORMAT, IN_USE = 1, 2
"""Raised by whoever changes the tables or what a checksum covers. A store in use may hold amended rows besides."""

PAGE_BYTES = 32768
"""With 64 KB payloads quicker than 16 KB, and than 64 KB for the update of a row; a file is 7 % larger than its blobs."""

TYPES = {
    "uid": "INTEGER PRIMARY KEY",
    "task": "TEXT",
    "status": "TEXT",
    "place": "TEXT",
    "timestamp": "INTEGER",
    "touched": "INTEGER",
    "version": "INTEGER",
    "newest": "INTEGER",
    "trainable": "INTEGER",
    "staleness": "INTEGER",
    "priority": "REAL",
    "uses": "INTEGER",
    "attempts": "INTEGER",
    "deliveries": "INTEGER",
    "pending": "INTEGER",
    "num_rollouts": "INTEGER",
    "num_tokens": "INTEGER",
    "num_bytes": "INTEGER",
    "reward_mean": "REAL",
    "reward_std": "REAL",
    "trained": "INTEGER",
    "trained_tokens": "INTEGER",
    "used_at": "INTEGER",
    "patched_at": "INTEGER",
    "sampler_position": "INTEGER",
    "remover_position": "INTEGER",
    "group_id": "BLOB",
    "tags": "TEXT",
    "members": "BLOB",
}
COLUMNS: tuple[str, ...] = tuple(TYPES)
"""The columns of a row, in order. The table has one more: the row's checksum."""

_TABLES = (
    f"CREATE TABLE rows ({', '.join(f'{name} {kind}' for name, kind in TYPES.items())}, crc INTEGER)",
    "CREATE TABLE payloads (uid INTEGER PRIMARY KEY, seal INTEGER, blob BLOB)",
    # seq: the order in which facts came. A key has no type of its own: 1 and "1" are two keys.
    "CREATE TABLE facts (seq INTEGER PRIMARY KEY, kind TEXT, key, value BLOB, crc INTEGER, UNIQUE (kind, key))",
    "CREATE TABLE state (id INTEGER PRIMARY KEY, value BLOB, crc INTEGER)",
    "CREATE TABLE about (name TEXT PRIMARY KEY, value, crc INTEGER)",
)


def create(connection: sqlite3.Connection) -> None:
    """Make the empty tables and mark the file as ours."""
    for table in _TABLES:
        connection.execute(table)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    mark(connection, FORMAT)


def mark(connection: sqlite3.Connection, version: int) -> None:
    """Say which format the file has from this transaction on."""
    connection.execute(f"PRAGMA user_version = {version}")


def is_in_use(connection: sqlite3.Connection) -> bool:
    """Return whether the file may hold amended rows."""
    return _number(connection, "user_version") == IN_USE


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `UnsupportedFormat` for a file of another kind or of a newer format, `CorruptData` for other tables."""
    application = _number(connection, "application_id")
    version = _number(connection, "user_version")
    is_schema_ours = _schema(connection) == _our_schema()
    if application != APPLICATION_ID and not is_schema_ours:
        raise UnsupportedFormat(
            f"{path} is a SQLite file of another application, no {KIND}; name the directory that a buffer was saved to"
        )
    if version > IN_USE:
        raise UnsupportedFormat(
            f"{path} has format {version}, and this reroll reads formats up to {IN_USE}: upgrade reroll"
        )
    if application != APPLICATION_ID or version not in (FORMAT, IN_USE) or not is_schema_ours:
        raise CorruptData(
            f"{path} was altered: its tables are not those that reroll writes; restore the file from a copy"
        )


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    (number,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return int(number)


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str, str, str | None]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name LIMIT 100"
    return connection.execute(query).fetchall()


@cache
def _our_schema() -> list[tuple[str, str, str, str | None]]:
    # SQLite words the entries of sqlite_master, so it is asked.
    connection = sqlite3.connect(":memory:")
    try:
        create(connection)
        return _schema(connection)
    finally:
        connection.close()
