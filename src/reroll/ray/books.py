"""The books of a shard, kept with the cluster: when the shard is lost, they tell what was lost with it.

They are a small record in the key-value store of Ray's head, written before a call that changes them is answered; calls
that come while one is written share the next. A shard that comes back with its store does not need them.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec
import ray.experimental.internal_kv as kv

from reroll.engine.engine import Engine

_NAMESPACE = b"reroll"
_log = logging.getLogger("reroll.ray")


class Record(msgspec.Struct):
    """What must be known of a shard that is lost."""

    life: str
    """Of the buffer: a new one under the same name begins anew."""
    losses: int
    """How often the shard was lost."""
    last_uid: int
    ledgers: dict[str, dict[str, list[int]]]
    """By task."""
    steps: dict[str, int] = {}
    """The training step of each task that has one."""
    version: int | None = None
    """Of the weights that serve."""


class Books:
    """The record of one shard."""

    def __init__(self, key: str, tell: Callable[[], Record]) -> None:
        self._key = key.encode()
        self._tell = tell
        self._noted = self._written = 0
        self._writing: asyncio.Future[None] | None = None

    async def read(self) -> Record | None:
        """Return what the shard was when it was last heard of."""
        found = await asyncio.to_thread(kv._internal_kv_get, self._key, namespace=_NAMESPACE)  # noqa: SLF001
        return None if found is None else msgspec.msgpack.decode(found, type=Record)

    def note(self) -> None:
        """Something has happened that must be known."""
        self._noted += 1

    async def written(self) -> None:
        """Return when the cluster knows of all that was noted until now."""
        mine = self._noted
        while self._written < mine:
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write())
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        await asyncio.sleep(0)  # calls that came together are written together
        covered, record = self._noted, msgspec.msgpack.encode(self._tell())
        try:
            await asyncio.to_thread(kv._internal_kv_put, self._key, record, True, namespace=_NAMESPACE)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  (a head that is away must not stop the shard)
            _log.warning("the books of %s could not be kept with Ray's head: %s", self._key.decode(), error)
        self._written, self._writing = covered, None


def life_of(key: str) -> str | None:
    """Return the life of the buffer whose shard has a record under this key."""
    found = kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)  # noqa: SLF001
    return None if found is None else msgspec.msgpack.decode(found, type=Record).life


def forget(key: str) -> None:
    """Remove the record of a shard that has ended."""
    kv._internal_kv_del(key.encode(), namespace=_NAMESPACE)  # noqa: SLF001


def ledgers_of(engine: Engine) -> dict[str, dict[str, list[int]]]:
    """Return the books of all tasks as plain values."""
    return {
        name: {bucket: list(amount) for bucket, amount in task.ledger.amounts().items()}
        for name, task in engine.tasks.items()
    }


def steps_of(engine: Engine) -> dict[str, int]:
    """Return the training step of each task that has one."""
    tasks = (*engine.tasks.values(), *engine.named_tasks())
    return {task.name: task.step for task in tasks if task.step is not None}


def write_off(engine: Engine, record: Record) -> None:
    """Let a new, empty engine go on where a lost one ended: what that had is lost, and its uids are not used again."""
    engine.last_uid = record.last_uid
    for name, amounts in record.ledgers.items():
        ledger = engine.task(name).ledger
        ledger.restore(amounts)
        ledger.count_missing()
    for name, step in record.steps.items():
        engine.named(name).learn_step(step)
