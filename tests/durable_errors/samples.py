"""Groups to keep, buffers as plain calls, and files that somebody altered."""

import base64
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from reroll import ReplayBufferConfig, Rollout
from reroll.engine.ledger import closes
from reroll.store import COLUMNS, FILE_NAME, ROW
from reroll.store.records import payload_crc, record_crc

TASK = "math"


def group(number: int, size: int = 4, tokens: int = 5, **fields: Any) -> list[Rollout]:
    """Return a group that can be told from others by its tokens."""
    return [
        Rollout(
            status="completed",
            prompt_ids=[1, 2],
            response_ids=[number] * tokens,
            reward=float(member % 2),
            group_id=f"prompt {number}",
            **fields,
        )
        for member in range(size)
    ]


def numbers(groups: list[list[Any]]) -> list[int]:
    """Return which groups these are."""
    return sorted(int(rollouts[0].response_ids[0]) for rollouts in groups)


class Plain:
    """The verbs of a buffer as plain calls, whatever it is."""

    def __init__(self, buffer: Any, run: Callable[[Any], Any]) -> None:
        self.target = buffer
        self._run = run

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.target, name)
        return lambda *args, **options: self._run(verb(*args, **options))

    def __len__(self) -> int:
        return len(self.target)

    def uids(self) -> list[int]:
        return [row.uid for row in self.query({})]

    def take_all(self) -> list[int]:
        return numbers(self.get(1000, TASK, "completed"))


def filled(make: Callable[..., Any], count: int = 6, **config: Any) -> Any:
    """Return a buffer with groups 1, 2, ..., with something of everything that is written down."""
    buffer = make(**config)
    for number in range(1, count + 1):
        uid = buffer.put(group(number), TASK, put_id=("producer", number), tags={"part": "a"}, model_step=3)
        assert uid == number
    buffer.advance(4)
    return buffer


def saved(make: Callable[..., Any], path: Path, **config: Any) -> Path:
    """Save such a buffer, and return where."""
    buffer = filled(make, **config)
    buffer.save(path)
    buffer.close()
    return path


def kept(make: Callable[..., Any], path: Path, **config: Any) -> Path:
    """Return the directory of such a buffer that was durable, and is closed."""
    filled(make, store=path, **config).close()
    return path


def check_books(buffer: Any) -> dict[str, Any]:
    """Return the ledger of the task, which closes."""
    ledger = buffer.ledger()[TASK]
    assert closes(ledger), ledger
    assert ledger["resident"].groups == len(buffer)
    return ledger


def config(**options: Any) -> ReplayBufferConfig:
    return ReplayBufferConfig(**{"sampler": "fifo", "seed": 1, **options})


# --- files that somebody altered


@contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        yield connection


def flip(directory: Path, old: bytes, at: int = 0) -> None:
    """Alter one byte of the file, in the only place where these bytes are."""
    path = directory / FILE_NAME
    data = bytearray(path.read_bytes())
    assert data.count(old) == 1
    data[data.index(old) + at] ^= 0xFF
    path.write_bytes(data)


def payload(directory: Path, uid: int) -> bytes:
    with opened(directory) as connection:
        (blob,) = connection.execute("SELECT blob FROM payloads WHERE uid = ?", (uid,)).fetchone()
    return bytes(blob)


def alter_payload(directory: Path, uid: int, at: int = -1) -> None:
    """Alter one byte of a payload; the first 64 are covered by its checksum in the table, all by its own checksum."""
    blob = bytearray(payload(directory, uid))
    blob[at] ^= 0xFF
    with opened(directory) as connection:
        connection.execute("UPDATE payloads SET blob = ? WHERE uid = ?", (bytes(blob), uid))


def alter_row(directory: Path, uid: int, column: str, value: Any) -> None:
    """Write a value into a row, whose checksum stays as it was."""
    with opened(directory) as connection:
        _change_row(connection, uid, {column: value})


def replace_payload(directory: Path, uid: int, blob: bytes) -> None:
    """Write another payload, with its checksum."""
    with opened(directory) as connection:
        values = (blob, payload_crc(uid, blob), uid)
        connection.execute("UPDATE payloads SET blob = ?, crc = ? WHERE uid = ?", values)


def row_of(directory: Path, uid: int) -> dict[str, Any]:
    """Return a row as it is written."""
    with opened(directory) as connection:
        return _row(connection, uid)


def replace_in_row(directory: Path, uid: int, /, **values: Any) -> None:
    """Write values into a row, with the checksum that fits."""
    with opened(directory) as connection:
        uid, value = _change_row(connection, uid, values)
        crc = record_crc(ROW, uid, value)
        connection.execute("UPDATE records SET crc = ? WHERE kind = ? AND key = ?", (crc, ROW, uid))


def _row(connection: sqlite3.Connection, uid: int) -> dict[str, Any]:
    query = "SELECT value FROM records WHERE kind = ? AND key = ?"
    (value,) = connection.execute(query, (ROW, uid)).fetchone()
    return dict(zip(COLUMNS, [uid, *json.loads(value)], strict=True))


def _change_row(connection: sqlite3.Connection, uid: int, values: dict[str, Any]) -> tuple[Any, bytes]:
    row = _row(connection, uid) | values
    assert tuple(row) == COLUMNS
    new, *rest = row.values()
    value = json.dumps(rest, default=lambda data: base64.b64encode(data).decode()).encode()
    statement = "UPDATE records SET key = ?, value = ? WHERE kind = ? AND key = ?"
    connection.execute(statement, (new, value, ROW, uid))
    return new, value


def state(directory: Path) -> Any:
    ((_, blob),) = records(directory, "state")
    return msgspec.msgpack.decode(blob)


def replace_state(directory: Path, new: Any) -> None:
    replace_record(directory, "state", 0, new if isinstance(new, bytes) else msgspec.msgpack.encode(new))


def replace_record(directory: Path, kind: str, key: Any, value: Any) -> None:
    """Write other bytes in place of the first record of a kind, with their checksum."""
    first = records(directory, kind)[0][0]
    with opened(directory) as connection:
        if key != first:
            connection.execute("DELETE FROM records WHERE kind = ? AND key = ?", (kind, key))
        values = (key, value, record_crc(kind, key, value), kind, first)
        statement = "UPDATE records SET key = ?, value = ?, crc = ? WHERE kind = ? AND key = ?"
        connection.execute(statement, values)


def records(directory: Path, kind: str) -> list[tuple[Any, bytes]]:
    with opened(directory) as connection:
        query = "SELECT key, value FROM records WHERE kind = ? ORDER BY key"
        return connection.execute(query, (kind,)).fetchall()
