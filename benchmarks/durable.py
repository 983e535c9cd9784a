"""A buffer that keeps everything on disk: puts from many tasks beside plain SQLite, and batches for a trainer."""

import asyncio
import copy
import gc
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from checkpoints import directory, distinct_groups
from groups import TASK, Group
from measure import Timing
from reroll import AsyncReplayBufferConfig, ReplayBufferConfig
from reroll.codec import encode
from reroll.store.durable import LOG_BYTES
from reroll.store.files import PAGE_BYTES
from reroll.testing.probe import probe

PRODUCERS = 8
BATCH = 64
ROW_BYTES = 400
TAKE_STEP, TAKE = "take_batch of 64, for a training step", "take_batch of 64, without one"
TAKE_UNIFORM = "take_batch of 64 at random, for a training step"


class Puts(NamedTuple):
    """Puts a second."""

    ours: Timing
    unwritten: Timing
    """The same puts into a store that takes all and writes nothing: what Python needs for the rest."""
    plain: Timing
    batch: float
    """How many puts shared a commit, on average."""


def measure_puts(count: int, rounds: int) -> Puts:
    """Put from several tasks, and write the same bytes in as many commits with plain sqlite3, by turns."""
    groups = distinct_groups(64)
    blobs = [encode(group) for group in groups]
    ours, unwritten, plain, batches = [], [], [], []
    for _ in range(rounds):
        gc.collect()
        with directory() as where:
            seconds, commits = asyncio.run(_put(where, groups, count))
            ours.append(count / seconds)
            batches.append(count / commits)
        with directory() as where:
            unwritten.append(count / asyncio.run(_put(where, groups, count, writes=False))[0])
        with directory() as where:
            plain.append(count / _put_plain(where, blobs, count, max(1, round(batches[-1]))))
    return Puts(Timing.of(ours), Timing.of(unwritten), Timing.of(plain), Timing.of(batches).median)


async def _put(where: Path, groups: Sequence[Group], count: int, *, writes: bool = True) -> tuple[float, int]:
    buffer = ReplayBufferConfig(store=where, seed=0).build()
    if not writes:
        probe(buffer).disk.store.write = lambda _, done: done(None)
    fresh = [[copy.copy(member) for member in groups[number % len(groups)]] for number in range(count)]
    waiting = iter(fresh)

    async def produce() -> None:
        for group in waiting:  # all tasks draw from one
            await buffer.put(group, TASK, model_step=1, current_train_step=2)

    os.sync()
    before, start = probe(buffer).disk.store.commits, perf_counter()
    await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
    seconds, commits = perf_counter() - start, probe(buffer).disk.store.commits - before
    await buffer.close()
    return seconds, commits


def _put_plain(where: Path, blobs: Sequence[bytes], count: int, batch: int) -> float:
    connection = sqlite3.connect(where / "plain.sqlite", isolation_level=None)
    pragmas = {"page_size": PAGE_BYTES, "secure_delete": "OFF", "journal_mode": "WAL"}
    pragmas |= {"synchronous": "NORMAL", "journal_size_limit": LOG_BYTES}
    pragmas |= {"wal_autocheckpoint": LOG_BYTES // PAGE_BYTES}
    for name, value in pragmas.items():
        connection.execute(f"PRAGMA {name} = {value}")
    connection.execute("CREATE TABLE rows (uid INTEGER PRIMARY KEY, value BLOB)")
    connection.execute("CREATE TABLE payloads (uid INTEGER PRIMARY KEY, blob BLOB)")
    row, statement = bytes(ROW_BYTES), "INSERT INTO rows VALUES (?, ?)"
    os.sync()
    start = perf_counter()
    for first in range(0, count, batch):
        uids = range(first, min(first + batch, count))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, [(uid, row) for uid in uids])
        connection.executemany(
            "INSERT INTO payloads VALUES (?, ?)", [(uid, blobs[uid % len(blobs)]) for uid in uids]
        )
        connection.execute("COMMIT")
    seconds = perf_counter() - start
    connection.close()
    return seconds


def measure_takes(count: int, rounds: int) -> dict[str, Timing]:
    """Take batches whose rollouts are in memory; the call returns when the disk knows that they were taken.

    By staleness and age, as asynchronous training does; and at random, which writes rows all over the file.
    """
    ordered, uniform = AsyncReplayBufferConfig, ReplayBufferConfig
    return {
        TAKE_STEP: asyncio.run(_take(ordered, count, rounds, has_step=True)),
        TAKE: asyncio.run(_take(ordered, count, rounds, has_step=False)),
        TAKE_UNIFORM: asyncio.run(_take(uniform, count, rounds, has_step=True)),
    }


async def _take(config: type[ReplayBufferConfig], count: int, rounds: int, *, has_step: bool) -> Timing:
    with directory() as where:
        buffer = config(store=where, seed=0).build()
        some = distinct_groups(64)

        async def put(number: int) -> None:
            for place in range(number):
                group = [copy.copy(member) for member in some[place % len(some)]]
                await buffer.put(group, TASK, model_step=1, current_train_step=2)

        await asyncio.gather(*(put(count // PRODUCERS) for _ in range(PRODUCERS)))
        taken = []
        gc.collect()
        gc.freeze()
        for step in range(2, rounds + 2):
            start = perf_counter()
            groups, _ = await buffer.take_batch({TASK: BATCH}, train_step=step if has_step else None)
            taken.append(perf_counter() - start)
            if len(groups[TASK]) != BATCH:
                raise AssertionError("a batch is complete")
            del groups  # else the next take would be charged for the memory of this one
            if has_step:
                await buffer.commit(step)
            await asyncio.gather(*(put(BATCH // PRODUCERS) for _ in range(PRODUCERS)))
        gc.unfreeze()
        await buffer.close()
    return Timing.of(taken)
