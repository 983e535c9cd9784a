"""Rows, payloads and changes to store, and what is read back."""

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

from reroll.errors import CorruptData
from reroll.store import COLUMNS, ROW, Change, Reader, Record, Saved, Store, copy_of, write_snapshot

SRC = Path(__file__).parents[2] / "src"


def row(uid: int, **values: Any) -> Record:
    """Return a row record whose values tell which it is."""
    row: dict[str, Any] = {name: uid * 100 + number for number, name in enumerate(COLUMNS[1:])}
    row |= {"task": f"task {uid % 3}", "status": "completed", "place": "pool", "priority": uid / 7}
    row |= {"group_id": None if uid % 2 else "group", "tags": '{"källa": "math"}', "members": "AA=="}
    assert values.keys() <= row.keys()
    return ROW, uid, json.dumps(list((row | values).values())).encode()


def gone(*uids: int) -> Change:
    """Return a change by which rows and payloads go."""
    return Change(records=[(ROW, uid, None) for uid in uids], payloads=[(uid, None) for uid in uids])


def blob(seed: object, num_bytes: int = 3000) -> bytes:
    """Return a payload with its own checksum in front, as a codec makes it."""
    body = random.Random(str(seed)).randbytes(num_bytes)
    return crc32(body).to_bytes(4, "little") + body


def checked(payload: bytes) -> bytes:
    """Verify a payload as a codec does."""
    if crc32(payload[4:]) != int.from_bytes(payload[:4], "little"):
        raise CorruptData("the payload was altered")
    return payload


def change(uid: int, num_bytes: int = 3000) -> Change:
    """Return a change with something of everything."""
    return Change(
        records=[
            row(uid),
            ("put_id", f"put {uid:06}", b"%d" % uid),
            ("lease", uid, b""),
            ("state", 0, b"state %d" % uid),
        ],
        payloads=[(uid, blob(uid, num_bytes))],
    )


def counted(changes: list[Change]) -> list[Change]:
    """Let the last of changes that only add say how many records there are."""
    keys = {(kind, key) for one in changes for kind, key, _ in one.records}
    changes[-1].totals = Counter(kind for kind, _ in keys)
    return changes


def keys(reader: Reader, kind: str = ROW) -> list[Any]:
    """Return the keys of the records of a kind."""
    return [key for key, _ in reader.records(kind)]


def stored_keys(store: Store, kind: str = ROW) -> list[Any]:
    """Return the keys of the committed records of a kind."""
    with store.reader() as reader:
        return keys(reader, kind)


def copy_to(store: Store, directory: Path) -> None:
    """Write the committed data as a snapshot."""
    with store.begin_copy() as copy:
        write_snapshot(directory, copy_of(copy, None, threading.Event()))


def written(store: Store, *changes: Change) -> None:
    """Write, and return when all is acknowledged."""
    answers: list[BaseException | None] = []
    told = threading.Semaphore(0)
    for one in changes:
        store.write(one, lambda error: (answers.append(error), told.release())[0])
    for _ in changes:
        assert told.acquire(timeout=60)
    for error in answers:
        if error is not None:
            raise error


def contents(saved: Saved) -> dict[str, Any]:
    """Read everything there is, verified; each row has its payload."""
    found = {
        "records": {kind: list(saved.records(kind)) for kind in saved.kinds()},
        "payloads": {uid: checked(payload) for uid, payload in saved.all_payloads()},
    }
    for uid, _ in found["records"].get(ROW, ()):
        if uid not in found["payloads"]:
            raise CorruptData(f"the payload of {uid} is missing")
    return found


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a Python script that can import what the tests import."""
    paths = f"import sys; sys.path[:0] = [{str(SRC)!r}, {str(SRC.parent / 'tests')!r}]\n"
    return subprocess.Popen(
        [sys.executable, "-c", paths + script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
