"""Measure the store beside plain files and plain SQLite, on the disk that holds the working directory.

    python benchmarks/store.py              2,000 payloads of 64 KB, five rounds
    python benchmarks/store.py --quick      500 payloads, three rounds
    python benchmarks/store.py --check      a claim that is missed makes the exit code 1

The clock is that on the wall, since a disk is part of what is measured; contenders take turns, and what counts is the
median of each. What is read was written a moment before, and comes from the page cache on both sides.
"""

import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from measure import print_table
from reporting import Claim, arguments, conclude, print_title, versions
from reroll.store import ROW, Change, open_saved, open_store, write_snapshot
from reroll.store.durable import LOG_BYTES
from reroll.store.files import PAGE_BYTES

BLOB_BYTES = 65_536
VALUE = bytes(400)
IN_FLIGHT = 64
"""How many changes producers have queued at a time, and how many plain SQLite writes in a commit."""
BLOBS = [os.urandom(BLOB_BYTES) for _ in range(16)]
PLAIN_WRITE, PLAIN_READ, PLAIN_SQLITE = "plain file, fsync", "plain file", "plain sqlite3"


def changes(number: int) -> Iterator[Change]:
    for uid in range(number):
        yield Change(records=[(ROW, uid, VALUE)], payloads=[(uid, BLOBS[uid % len(BLOBS)])])


def _expect(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} instead of {expected}")


def write_plain(directory: Path, number: int) -> None:
    with (directory / "plain").open("wb", buffering=0) as file:
        for uid in range(number):
            file.write(BLOBS[uid % len(BLOBS)])
        os.fsync(file.fileno())


def read_plain(directory: Path, number: int) -> None:
    with (directory / "plain").open("rb", buffering=0) as file:
        for _ in range(number):
            _expect(len(file.read(BLOB_BYTES)), BLOB_BYTES)


def write_ours(directory: Path, number: int) -> None:
    write_snapshot(directory, changes(number))


def read_ours(directory: Path, number: int) -> None:
    with open_saved(directory) as saved:
        _expect(sum(1 for _ in saved.all_payloads()), number)


def read_by_uid(directory: Path, number: int) -> None:
    with open_saved(directory) as saved:
        _expect(sum(1 for _ in saved.payloads(range(number))), number)


def put_ours(directory: Path, number: int, sync: str = "os") -> None:
    free = threading.Semaphore(IN_FLIGHT)
    store = open_store(directory, sync="disk" if sync == "disk" else "os")
    for change in changes(number):
        free.acquire()
        store.write(change, lambda _: free.release())
    for _ in range(IN_FLIGHT):
        free.acquire()
    store.close()
    if store.error is not None:
        raise store.error


def put_plain(directory: Path, number: int, sync: str = "os") -> None:
    connection = sqlite3.connect(directory / "plain.sqlite", isolation_level=None)
    pragmas = {"page_size": PAGE_BYTES, "secure_delete": "OFF", "journal_mode": "WAL"}
    pragmas |= {"synchronous": "FULL" if sync == "disk" else "NORMAL", "journal_size_limit": LOG_BYTES}
    pragmas |= {"wal_autocheckpoint": LOG_BYTES // PAGE_BYTES}
    for name, value in pragmas.items():
        connection.execute(f"PRAGMA {name} = {value}")
    connection.execute("CREATE TABLE rows (uid INTEGER PRIMARY KEY, value BLOB)")
    connection.execute("CREATE TABLE payloads (uid INTEGER PRIMARY KEY, blob BLOB)")
    for first in range(0, number, IN_FLIGHT):
        uids = range(first, min(first + IN_FLIGHT, number))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO rows VALUES (?, ?)", [(uid, VALUE) for uid in uids])
        blobs = [(uid, BLOBS[uid % len(BLOBS)]) for uid in uids]
        connection.executemany("INSERT INTO payloads VALUES (?, ?)", blobs)
        connection.execute("COMMIT")
    connection.close()


Act = Callable[[Path, int], None]


def rates(cases: dict[str, Act], number: int, rounds: int, *, keep: Path | None = None) -> dict[str, float]:
    """Return MB/s of each case, by turns; each in an empty directory, or in the one to read from."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds):
        for name in list(cases)[:: -1 if turn % 2 else 1]:
            directory = keep or Path(tempfile.mkdtemp(prefix=".store-benchmark-", dir="."))
            os.sync()  # what the others have left is not ours to write
            try:
                start = perf_counter()
                cases[name](directory, number)
                seconds[name].append(perf_counter() - start)
            finally:
                if keep is None:
                    shutil.rmtree(directory)
    return {name: number * BLOB_BYTES / 1e6 / statistics.median(values) for name, values in seconds.items()}


def main() -> int:
    options = arguments("Measure the store.", "store.json").parse_args()
    number, rounds = (500, 3) if options.quick else (2000, 5)
    start = perf_counter()
    print_title("reroll store benchmark")
    found = {"write": rates({PLAIN_WRITE: write_plain, "write_snapshot": write_ours}, number, rounds)}
    directory = Path(tempfile.mkdtemp(prefix=".store-benchmark-", dir="."))
    try:
        write_plain(directory, number)
        write_ours(directory, number)
        cases = {PLAIN_READ: read_plain, "all_payloads": read_ours, "payloads(uids)": read_by_uid}
        found["read"] = rates(cases, number, rounds, keep=directory)
    finally:
        shutil.rmtree(directory)
    found["put"] = rates({PLAIN_SQLITE: put_plain, "Store.write": put_ours}, number, rounds)
    found["put, sync=disk"] = rates(
        {
            PLAIN_SQLITE: lambda where, count: put_plain(where, count, "disk"),
            "Store.write": lambda where, count: put_ours(where, count, "disk"),
        },
        number,
        rounds,
    )
    rows = [(what, name, f"{rate:,.0f}") for what, cases in found.items() for name, rate in cases.items()]
    print_table(f"{number:,} payloads of 64 KB with their rows", ("what", "how", "MB/s"), rows)
    claims = [
        _claim("a snapshot at least half as fast as a plain file", found["write"], "write_snapshot", 0.5),
        _claim("reading at least a third as fast as a plain file", found["read"], "all_payloads", 1 / 3),
        _claim("Store.write at least 90 % of plain sqlite3", found["put"], "Store.write", 0.9),
        _claim("the same with sync=disk", found["put, sync=disk"], "Store.write", 0.9),
    ]
    report = {"versions": versions(), "payloads": number, "rounds": rounds, "mb_per_s": found}
    return conclude(claims, report, perf_counter() - start, options)


def _claim(text: str, found: dict[str, float], ours: str, bound: float) -> Claim:
    ratio = found[ours] / next(iter(found.values()))
    return Claim(text, f"{ratio:.0%}", ratio >= bound)


if __name__ == "__main__":
    sys.exit(main())
