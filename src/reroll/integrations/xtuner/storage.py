"""Storages hold items and find them by queries; policies order them.

A storage alone holds the items that are put into it. A storage that was given to a buffer shows the buffer's groups, and a
policy then only names the buffer's sampler.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

import reroll
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, Stalest
from reroll.errors import InvalidArgument
from reroll.integrations.xtuner.queries import QueryType, holds, metadata_query, parse_query
from reroll.rollout import Status, read_status

_PACKAGE: Final = __name__.rpartition(".")[0] + "."


@dataclass
class StorageItem:
    """A group and its metadata. The storage sets `uid` and `timestamp_id`."""

    item: Sequence[Any]
    uid: int
    timestamp_id: int
    task_name: str
    status: Status
    staleness: int


_COLUMNS: Final = [column.name for column in fields(StorageItem)]
_BUFFER_VERBS: Final = {
    "put": "put",
    "update": "patch",
    "state_dict": "save",
    "load_state_dict": "resume",
    "to_pandas": "to_pandas",
}
"""The verb of a buffer that does what this verb of a storage does."""


class _Closed:
    """A class that users cannot extend; the TypeError names the extension point of reroll."""

    extend_instead: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith(_PACKAGE):
            raise TypeError(f"{cls.__qualname__}: {cls.extend_instead}")


class StorageBackend(_Closed):
    """Items in order of arrival, found by queries: `NaiveStorage` or `PandasStorage`. Cannot be subclassed.

    Queries of a storage alone cost O(items); those of a buffer's storage, the cost of `ReplayBuffer.query`.
    """

    extend_instead = (
        "a storage decides nothing in reroll; groups are kept in memory, or on disk with ReplayBuffer(..., store=directory). "
        "To keep groups elsewhere, implement the verbs of ReplayBuffer: see 'A buffer in another place' in CONTRIBUTING.md, "
        "and test it with reroll.testing.BufferSuite"
    )

    def __init__(self) -> None:
        self._items: dict[int, StorageItem] = {}
        self._next_uid = 1
        self._next_timestamp_id = 1
        self._buffer: reroll.ReplayBuffer | None = None

    async def put(self, item: StorageItem) -> int:
        """Store a copy of an item under a new uid.

        Args:
            item: the item.

        Returns:
            The uid.

        Raises:
            InvalidArgument: the status is unknown, or the storage belongs to a buffer.

        """
        self._check_alone("put")
        uid = self._next_uid
        self._items[uid] = replace(_checked(item), uid=uid, timestamp_id=self._next_timestamp_id)
        self._next_uid += 1
        self._next_timestamp_id += 1
        return uid

    async def get(self, query: QueryType) -> list[StorageItem]:
        """Return the items that satisfy a query, in order of arrival.

        Args:
            query: a query, as a dict or as nodes.

        Raises:
            QueryError: the query is invalid.

        """
        node = parse_query(query)
        if self._buffer is None:
            return [replace(item) for item in self._items.values() if holds(node, item)]
        where = metadata_query(node)
        rows = await self._buffer.query({} if where is None else where)
        groups = await self._buffer.peek([row.uid for row in rows])
        items = [
            StorageItem(group, *(getattr(row, name) for name in _COLUMNS[1:]))
            for row, group in zip(rows, groups, strict=True)
        ]
        return items if where is not None else [item for item in items if holds(node, item)]

    async def count(self, query: QueryType) -> int:
        """Return the number of items that satisfy a query.

        Args:
            query: a query, as a dict or as nodes.

        Raises:
            QueryError: the query is invalid.

        """
        where = metadata_query(parse_query(query))
        if self._buffer is None or where is None:
            return len(await self.get(query))
        return len(await self._buffer.query(where))

    async def delete(self, uids: Sequence[int]) -> None:
        """Delete items; unknown uids are ignored.

        Args:
            uids: of the items.

        """
        if self._buffer is not None:
            await self._buffer.delete(uids)
        for uid in uids:
            self._items.pop(uid, None)

    async def update(self, items: Iterable[StorageItem]) -> None:
        """Replace items, which keep their uid and timestamp; unknown uids are ignored.

        Args:
            items: the new items.

        Raises:
            InvalidArgument: a status is unknown, or the storage belongs to a buffer.

        """
        self._check_alone("update")
        for item in [_checked(item) for item in items]:
            old = self._items.get(item.uid)
            if old is not None:
                self._items[item.uid] = replace(item, timestamp_id=old.timestamp_id)

    def __len__(self) -> int:
        return len(self._items if self._buffer is None else self._buffer)

    def state_dict(self) -> dict[str, Any]:
        """Return the items and the exact counters. Raises InvalidArgument if the storage belongs to a buffer."""
        self._check_alone("state_dict")
        return {
            "items": [replace(item) for item in self._items.values()],
            "next_uid": self._next_uid,
            "next_timestamp_id": self._next_timestamp_id,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all items by those of `state_dict()` of a storage of either kind.

        Args:
            state: what `state_dict()` returned.

        Raises:
            InvalidArgument: the state is invalid, or the storage belongs to a buffer.

        """
        self._check_alone("load_state_dict")
        try:
            items = {item.uid: _checked(item) for item in state["items"]}
            next_uid, next_timestamp_id = state["next_uid"], state["next_timestamp_id"]
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"state is no state_dict of a storage: {error!r}") from error
        self._items, self._next_uid, self._next_timestamp_id = items, next_uid, next_timestamp_id

    def show(self, buffer: "reroll.ReplayBuffer") -> None:
        """Show the groups of a buffer from now on.

        Args:
            buffer: the buffer.

        Raises:
            InvalidArgument: the storage is in use.

        """
        if self._buffer is not None or self._items:
            raise InvalidArgument(
                "the storage is already in use; give each buffer an empty storage of its own, and put groups into the buffer"
            )
        self._buffer = buffer

    def _check_alone(self, verb: str) -> None:
        if self._buffer is not None:
            raise InvalidArgument(
                f"{verb}: this storage shows the groups of a buffer; use the buffer's {_BUFFER_VERBS[verb]}"
            )


class NaiveStorage(StorageBackend):
    """A storage of items in a dict."""


class PandasStorage(StorageBackend):
    """A storage of items in a dict that can be read as a DataFrame."""

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row per item.

        Raises:
            ImportError: pandas is not installed.
            InvalidArgument: the storage belongs to a buffer.

        """
        try:
            import pandas as pd  # noqa: PLC0415  (optional)
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error
        self._check_alone("to_pandas")
        rows = [{name: getattr(item, name) for name in _COLUMNS} for item in self._items.values()]
        return pd.DataFrame(rows, columns=_COLUMNS)


class ReplayPolicy(_Closed, ABC):
    """An order of groups: `FIFOReplayPolicy` or `StalenessReplayPolicy`. Cannot be subclassed."""

    extend_instead = (
        "a policy only names a sampler in reroll; write a selector, see 'A sampler' in CONTRIBUTING.md, test it with "
        "reroll.testing.SelectorSuite, and build the buffer with ReplayBufferConfig(sampler=...)"
    )
    sampler: ClassVar[SelectorSpec]
    """The sampler that delivers groups of a buffer in this order."""

    async def put(self, item: StorageItem, storage_backend: StorageBackend) -> None:
        """Put an item into a storage, unless it has no rollouts.

        Args:
            item: the item.
            storage_backend: the storage.

        """
        if item.item:
            await storage_backend.put(item)

    async def get(self, count: int, query: QueryType, storage_backend: StorageBackend) -> list[Sequence[Any]]:
        """Take items that satisfy a query out of a storage.

        Args:
            count: largest number of items.
            query: a query, as a dict or as nodes.
            storage_backend: the storage.

        Returns:
            The rollouts of the items, in the order of this policy.

        """
        found = await storage_backend.get(query) if count > 0 else []
        taken = sorted(found, key=self.place)[: max(0, count)]
        await storage_backend.delete([item.uid for item in taken])
        return [item.item for item in taken]

    async def count(self, query: QueryType, storage_backend: StorageBackend) -> int:
        """Return the number of items of a storage that satisfy a query.

        Args:
            query: a query, as a dict or as nodes.
            storage_backend: the storage.

        """
        return await storage_backend.count(query)

    @abstractmethod
    def place(self, item: StorageItem) -> tuple[int, ...]:
        """Return the sort key of an item.

        Args:
            item: the item.

        """


class FIFOReplayPolicy(ReplayPolicy):
    """The oldest group first."""

    sampler = Fifo()

    def place(self, item: StorageItem) -> tuple[int, ...]:
        """Return the sort key of an item: its time of arrival.

        Args:
            item: the item.

        """
        return (item.timestamp_id,)


class StalenessReplayPolicy(ReplayPolicy):
    """The group with the largest staleness first, then the oldest."""

    sampler = Stalest()

    def place(self, item: StorageItem) -> tuple[int, ...]:
        """Return the sort key of an item: the stalest first, then the oldest.

        Args:
            item: the item.

        """
        return (-item.staleness, item.timestamp_id)


def _checked(item: StorageItem) -> StorageItem:
    return replace(item, status=read_status(item.status))
