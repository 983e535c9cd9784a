"""The leases of steps that are prepared: consumed when every rank is done with a step, given back when it is not to be."""

import asyncio
import time
from typing import Any

from reroll.errors import LeaseExpired, WaitTimeout
from reroll.prepare.steps import Steps


class Settling:
    """Holds the lease of each step until it is trained, and tells the buffer how far the trainer is."""

    def __init__(self, buffer: Any, last: int) -> None:
        """Begin after step `last`."""
        self._buffer = buffer
        self._leases: dict[int, Any] = {}
        self._told = last
        self.lock = asyncio.Lock()
        """Held while steps are settled: who has it sees the buffer between two of them."""

    def hold(self, step: int, batch: Any) -> None:
        """Hold the lease of a step; None for a step without groups."""
        if batch is not None:
            self._leases[step] = batch

    async def settle(self, steps: Steps[Any], *, version: int | None = None) -> None:
        """Acknowledge the steps that every rank is done with. Raises LeaseExpired."""
        async with self.lock:
            for step in sorted(step for step in self._leases if step <= steps.due()):
                try:
                    await self._leases[step].ack()
                except LeaseExpired:
                    del self._leases[step]
                    raise
                del self._leases[step]
                steps.done = max(steps.done, step)
            last = steps.due()
            if self._told < last:
                await self._buffer.advance(last, version=version)
                self._told = last
                steps.done = max(steps.done, last)

    async def settle_by(self, deadline: float | None, steps: Steps[Any]) -> None:
        """Do the same until a deadline, if there is something to settle. Raises WaitTimeout, LeaseExpired."""
        if self._told >= steps.due():
            return
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await self.settle(steps)
        except (WaitTimeout, LeaseExpired):
            raise
        except TimeoutError:
            raise WaitTimeout(
                "the buffer did not take back in time what was trained; ask again, nothing is lost"
            ) from None

    async def give_back(self) -> None:
        """Give back the groups of all steps that are not settled."""
        async with self.lock:
            for batch in self._leases.values():
                await batch.nack()
            self._leases.clear()
