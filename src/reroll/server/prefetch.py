"""Batches that are fetched before they are asked for. Each is a lease; nothing counts as consumed before its ack."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from reroll.buffer.batch import Batch
from reroll.errors import InvalidArgument


class Prefetch:
    """An endless iterator over leases, of which some are always on their way or here; ends by `aclose`."""

    def __init__(
        self,
        lend: Callable[[], Awaitable[Batch]],
        is_stale: Callable[[Batch], Awaitable[bool]],
        ahead: int,
    ) -> None:
        """Fetch batches with `lend`; one that has waited here is given only if `is_stale` says no."""
        if ahead < 1:
            raise InvalidArgument(f"prefetch must be at least 1, not {ahead}")
        self._lend, self._is_stale = lend, is_stale
        self._ahead = ahead
        self._coming: deque[asyncio.Future[Batch]] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while True:
            self._fetch()
            first = self._coming[0]
            has_waited = first.done()
            try:
                batch = await asyncio.shield(first)
            except asyncio.CancelledError:
                raise  # it stays the first
            except BaseException:
                self._coming.remove(first)
                raise
            if not has_waited or not await self._is_stale(batch):
                break
            if self._coming and self._coming[0] is first:
                self._coming[0] = asyncio.ensure_future(self._exchange(batch))
        self._coming.remove(first)
        self._fetch()
        return batch

    async def aclose(self) -> None:
        """Give back what was fetched and not asked for."""
        coming, self._coming = self._coming, deque()
        for batch in coming:
            batch.cancel()
        for done in await asyncio.gather(*coming, return_exceptions=True):
            if isinstance(done, Batch):
                await done.nack()

    async def _exchange(self, batch: Batch) -> Batch:
        """Give back a batch with groups that have become too stale, and return another one."""
        await asyncio.shield(batch.nack())
        return await self._lend()

    def _fetch(self) -> None:
        while len(self._coming) < self._ahead:
            self._coming.append(asyncio.ensure_future(self._lend()))
