"""Rows, payloads and changes to store, and what is read back."""

import math
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from zlib import crc32

from reroll.errors import CorruptData
from reroll.store import COLUMNS, Change, Saved, Store

SRC = Path(__file__).parents[2] / "src"


def row(uid: int, **values: Any) -> tuple[Any, ...]:
    """Return a row whose values tell which it is."""
    row = {name: uid * 100 + number for number, name in enumerate(COLUMNS)}
    row |= {"uid": uid, "task": f"task {uid % 3}", "status": "completed", "place": "pool"}
    row |= {"priority": uid / 7, "reward_mean": math.nan, "reward_std": 0.25}
    row |= {
        "group_id": None if uid % 2 else b"group",
        "tags": '{"källa": "math"}',
        "members": bytes([uid % 256]),
    }
    assert values.keys() <= row.keys()
    return tuple((row | values).values())


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
        rows=[row(uid)],
        payloads=[(uid, blob(uid, num_bytes))],
        facts=[("put_id", f"put {uid}", b"%d" % uid), ("lease", uid, b"")],
        state=b"state %d" % uid,
    )


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
    """Read everything there is, verified; comparable, with NaN as text."""
    return {
        "state": saved.state,
        "rows": [tuple("nan" if value != value else value for value in row) for row in saved.rows()],  # noqa: PLR0124
        "payloads": {uid: checked(payload) for uid, payload in saved.all_payloads()},
        "facts": {kind: list(saved.facts(kind)) for kind in sorted(saved.kinds())},
    }


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a Python script that can import what the tests import."""
    paths = f"import sys; sys.path[:0] = [{str(SRC)!r}, {str(SRC.parent / 'tests')!r}]\n"
    return subprocess.Popen(
        [sys.executable, "-c", paths + script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
