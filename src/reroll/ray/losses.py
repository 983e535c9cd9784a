"""What a shard had is known to the cluster: if the shard dies without a store, its groups are counted as lost.

A small record in the key-value store of Ray's head names the ledger, the last uid and the training steps. It is written before
a reply leaves the shard; replies of the same moment share a write.
"""

import asyncio
import logging
from typing import Final

import msgspec
import ray.experimental.internal_kv as kv

from reroll.buffer.buffer import ReplayBuffer, runtime_of

_NAMESPACE: Final = b"reroll"
_AFTER_LOSS: Final = 1 << 40
"""Numbers of leases and reservations that are skipped after each loss, so that none is used twice."""
_log: Final = logging.getLogger("reroll.ray")


class Record(msgspec.Struct):
    """What the cluster knows of a shard."""

    life: str
    """The buffer: another one of the same name has another."""
    losses: int = 0
    """How often the shard was lost."""
    last_uid: int = 0
    ledgers: dict[str, dict[str, list[int]]] = {}
    """The state of the ledger of each task."""
    steps: dict[str, int] = {}
    """The training step of each task that has one."""
    version: int | None = None
    """Version of the weights that generate."""


class Losses:
    """The record of one shard."""

    def __init__(self, key: str, life: str, buffer: ReplayBuffer, *, is_durable: bool) -> None:
        self._key, self._life = key, life
        self._runtime = runtime_of(buffer)
        self._is_durable = is_durable  # then the store has it all
        self._losses = 0
        self._written = b""
        self._writing: asyncio.Future[None] | None = None

    async def recover(self) -> int:
        """Count what a shard of the same life had as lost; return the number below which leases are of before."""
        found = await asyncio.to_thread(kv._internal_kv_get, self._key.encode(), namespace=_NAMESPACE)  # noqa: SLF001
        record = None if found is None else msgspec.msgpack.decode(found, type=Record)
        engine = self._runtime.engine
        if record is not None and record.life == self._life and not self._is_durable:
            self._losses = record.losses + 1
            engine.last_uid, engine.version = record.last_uid, record.version
            for name, amounts in record.ledgers.items():
                ledger = engine.task(name).ledger
                ledger.restore(amounts)
                ledger.count_missing()
            for name, step in record.steps.items():
                engine.named(name).learn_step(step)
            self._runtime.start_intervals()
            self._runtime.leases.last = self._runtime.reservations.last = self._losses * _AFTER_LOSS
        await self.record()
        return self._losses * _AFTER_LOSS

    async def record(self) -> None:
        """Return when the cluster knows what the shard has now."""
        while (now := self._encoded()) != self._written:
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write(now))
            await asyncio.shield(self._writing)

    def _encoded(self) -> bytes:
        engine, record = self._runtime.engine, Record(self._life, self._losses)
        if not self._is_durable:
            tasks = (*engine.tasks.values(), *engine.named_tasks())
            record.last_uid, record.version = engine.last_uid, engine.version
            record.ledgers = {name: task.ledger.state() for name, task in engine.tasks.items()}
            record.steps = {task.name: task.step for task in tasks if task.step is not None}
        return msgspec.msgpack.encode(record)

    async def _write(self, record: bytes) -> None:
        try:
            await asyncio.to_thread(
                kv._internal_kv_put,  # noqa: SLF001
                self._key.encode(),
                record,
                True,
                namespace=_NAMESPACE,
            )
        except Exception as error:  # noqa: BLE001  (Ray's head may be away; the shard goes on)
            _log.warning("the record of %s could not be written to Ray's head: %s", self._key, error)
        self._written, self._writing = record, None


def read_life(key: str) -> str | None:
    """Return the life of the buffer whose shard has a record under this key."""
    found = kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)  # noqa: SLF001
    return None if found is None else msgspec.msgpack.decode(found, type=Record).life


def forget(key: str) -> None:
    """Remove the record of a shard that was closed."""
    kv._internal_kv_del(key.encode(), namespace=_NAMESPACE)  # noqa: SLF001
