"""Durable buffers in tests: opened again as after a crash, and what can be seen of them."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from reroll import ReplayBuffer, ReplayBufferConfig
from reroll.engine.ledger import closes
from reroll.store import FILE_NAME
from reroll.testing.probe import probe

_numbers = count()


def fifo(store: Path, **options: Any) -> ReplayBuffer:
    return ReplayBufferConfig(**{"sampler": "fifo", "seed": 3, "store": store, **options}).build()


def copy_of(store: Path) -> Path:
    """Return a copy of a store as a crash would leave it now: the file and its log, without a last word."""
    copy = store.parent / f"crashed-{next(_numbers)}"
    copy.mkdir()
    for file in (
        f"{FILE_NAME}-commits",
        FILE_NAME,
        f"{FILE_NAME}-wal",
    ):  # the count of commits is never ahead
        if (store / file).exists():
            shutil.copyfile(store / file, copy / file)
    return copy


def crashed(buffer: ReplayBuffer, config: ReplayBufferConfig | None = None, **options: Any) -> ReplayBuffer:
    """Return a buffer that finds what a crash would leave of this one now; this one goes on."""
    store = copy_of(probe(buffer).disk.store.path.parent)
    if config is not None:
        return config.model_copy(update={"store": store}).build()
    return fifo(store, **options)


async def picture(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return what is there, after a check that the books close and agree with the rows."""
    rows = await buffer.query({})
    ledger = await buffer.ledger()
    for task, books in ledger.items():
        assert closes(books), (task, books)
        mine = [row for row in rows if row.task_name == task]
        assert books["resident"][:2] == (len(mine), sum(row.num_tokens for row in mine))
    assert len(buffer) == len(rows)
    return {
        "rows": rows,
        "ledger": {task: books for task, books in ledger.items() if any(map(any, books.values()))},
    }


async def passed(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return what statistics tell of what was put and trained."""
    stats = await buffer.stats()
    return {name: (task.puts, task.produced, task.trained) for name, task in stats.tasks.items()}


@contextmanager
def stalled(buffer: ReplayBuffer) -> Iterator[None]:
    """Let the disk be slow: no commit ends inside."""
    store, go_on = probe(buffer).disk.store, threading.Event()
    commit = store._commit

    def wait_and_commit(changes: Any) -> None:
        go_on.wait(60)
        commit(changes)

    store._commit = wait_and_commit
    try:
        yield
    finally:
        go_on.set()
        store._commit = commit


async def cancelled(call: "asyncio.Task[Any]") -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def while_writing(call: Any) -> "asyncio.Task[Any]":
    """Start a call, and return when it waits for the disk at the latest."""

    async def made() -> Any:
        return await call

    task = asyncio.ensure_future(made())
    await asyncio.sleep(0)
    return task
