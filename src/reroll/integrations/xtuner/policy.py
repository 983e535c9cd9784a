"""Policies: which groups come first. For a buffer a policy names the sampler; with a storage alone it works as well."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, Stalest
from reroll.integrations.xtuner.extension_points import NotExtended
from reroll.integrations.xtuner.queries import QueryType
from reroll.integrations.xtuner.storage import StorageBackend
from reroll.integrations.xtuner.stored import StorageItem


class ReplayPolicy(NotExtended, ABC):
    """An order. `FIFOReplayPolicy` or `StalenessReplayPolicy`; not to be subclassed."""

    extend_instead = (
        "a policy only names a sampler here; write a selector, see 'A sampler' in CONTRIBUTING.md, test it with "
        "reroll.testing.SelectorSuite, and build the buffer with ReplayBufferConfig(sampler=...)"
    )
    sampler: ClassVar[SelectorSpec]
    """What hands groups out of a buffer in this order."""

    async def put(self, item: StorageItem, storage_backend: StorageBackend) -> None:
        """Put an item into a storage, unless it has no rollouts."""
        if item.item:
            await storage_backend.put(item)

    async def get(self, count: int, query: QueryType, storage_backend: StorageBackend) -> list[list[Any]]:
        """Take up to so many items that satisfy a query out of a storage, in this order."""
        found = await storage_backend.get(query) if count > 0 else []
        taken = sorted(found, key=self.place)[: max(0, count)]
        await storage_backend.delete([item.uid for item in taken])
        return [item.item for item in taken]

    async def count(self, query: QueryType, storage_backend: StorageBackend) -> int:
        """Return how many items of a storage satisfy a query."""
        return await storage_backend.count(query)

    @abstractmethod
    def place(self, item: StorageItem) -> tuple[int, ...]:
        """Return what items are sorted by."""


class FIFOReplayPolicy(ReplayPolicy):
    """The oldest first."""

    sampler = Fifo()

    def place(self, item: StorageItem) -> tuple[int, ...]:
        return (item.timestamp_id,)


class StalenessReplayPolicy(ReplayPolicy):
    """The largest staleness first, then the oldest."""

    sampler = Stalest()

    def place(self, item: StorageItem) -> tuple[int, ...]:
        return (-item.staleness, item.timestamp_id)
