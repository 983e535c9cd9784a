"""A file as the verbs that look: read anew when somebody has written it, in threads, so that no event loop waits for a disk."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from reroll import ReadOnlyBuffer, open_readonly
from reroll.buffer.arguments import Where
from reroll.engine.ledger import Amount
from reroll.engine.query import Row
from reroll.rollout import Status
from reroll.store import find_saved
from reroll.telemetry.stats import Stats
from reroll.waiting import LoopWaits

T = TypeVar("T")


class FileSource:
    """What was saved, or what a durable buffer holds; `stats` sees what was written since."""

    def __init__(self, path: str | Path) -> None:
        self.path = find_saved(path)
        self._read = self._signature()
        self._buffer = open_readonly(self.path)
        self._turn = asyncio.Lock()
        self._waits = LoopWaits()  # a cancelled call keeps its turn until its thread has read

    async def stats(self) -> Stats:
        async with self._turn:
            await self._waits.aside(self._renew)
            return await self._waits.aside(self._buffer.stats)

    async def ledger(self) -> dict[str, dict[str, Amount]]:
        return await self._ask(lambda buffer: buffer.ledger())

    async def metrics(self, *, reader: str | None = None, detail: bool = False) -> dict[str, float]:
        return await self._ask(lambda buffer: buffer.metrics(reader=reader, detail=detail))

    async def count_statuses(
        self, task_names: Iterable[str], statuses: Iterable[Status | str]
    ) -> dict[str, dict[Status, int]]:
        return await self._ask(lambda buffer: buffer.count_statuses(task_names, statuses))

    async def count_where(self, where: Where) -> int:
        return await self._ask(lambda buffer: buffer.count_where(where))

    async def query(
        self, where: Where, *, order_by: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Row]:
        return await self._ask(
            lambda buffer: buffer.query(where, order_by=order_by, limit=limit, offset=offset)
        )

    async def peek(self, uids: Iterable[int]) -> list[list[Any]]:
        return await self._ask(lambda buffer: buffer.peek(uids))

    async def to_arrow(self, where: Where | None = None, *, payloads: bool = False) -> Any:
        return await self._ask(lambda buffer: buffer.to_arrow(where, payloads=payloads))

    async def close(self) -> None:
        await self._ask(lambda buffer: buffer.close())

    def _ask(self, ask: Callable[[ReadOnlyBuffer], T]) -> Awaitable[T]:
        async def asked() -> T:
            async with self._turn:
                return await self._waits.aside(lambda: ask(self._buffer))

        return asked()

    def _renew(self) -> None:
        """Read the file anew if it was written; as long as it is open, the log of a store in use grows."""
        now = self._signature()
        if now == self._read:
            return
        newer = open_readonly(self.path)
        self._buffer.close()
        self._buffer, self._read = newer, now

    def _signature(self) -> tuple[tuple[int, int], ...]:
        files = (self.path, Path(f"{self.path}-wal"))
        stats = [file.stat() for file in files if file.exists()]
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)
