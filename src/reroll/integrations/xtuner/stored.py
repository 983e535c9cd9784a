"""Where the items of a storage are: its own, or the groups of the buffer that it was given to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import reroll
from reroll.errors import InvalidArgument
from reroll.integrations.xtuner.queries import QueryNode, holds, metadata_query
from reroll.rollout import Status, read_status


@dataclass
class StorageItem:
    """A group, and what is known of it. `uid` and `timestamp_id` are given by the storage."""

    item: list[Any]
    uid: int
    timestamp_id: int
    task_name: str
    status: Status
    staleness: int


class Stored(Protocol):
    """Items in the order in which they came."""

    def __len__(self) -> int: ...

    async def find(self, node: QueryNode) -> list[StorageItem]:
        """Return the items that satisfy a query."""

    async def count(self, node: QueryNode) -> int:
        """Return how many do."""

    async def delete(self, uids: Sequence[int]) -> None:
        """Delete items; unknown uids are passed over."""


class OwnItems:
    """The items of a storage that stands alone. Costs of queries are O(items)."""

    def __init__(self) -> None:
        self._items: dict[int, StorageItem] = {}
        self._next_uid = 1
        self._next_timestamp_id = 1

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: StorageItem) -> int:
        """Store a copy under a new uid. Raises InvalidArgument for an unknown status."""
        uid = self._next_uid
        self._items[uid] = replace(_checked(item), uid=uid, timestamp_id=self._next_timestamp_id)
        self._next_uid += 1
        self._next_timestamp_id += 1
        return uid

    def update(self, items: Iterable[StorageItem]) -> None:
        """Replace items, which keep their uid and timestamp; those that are not here are passed over."""
        for item in [_checked(item) for item in items]:
            old = self._items.get(item.uid)
            if old is not None:
                self._items[item.uid] = replace(item, timestamp_id=old.timestamp_id)

    async def find(self, node: QueryNode) -> list[StorageItem]:
        return [replace(item) for item in self._items.values() if holds(node, item)]

    async def count(self, node: QueryNode) -> int:
        return sum(holds(node, item) for item in self._items.values())

    async def delete(self, uids: Sequence[int]) -> None:
        for uid in uids:
            self._items.pop(uid, None)

    def items(self) -> list[StorageItem]:
        """Return all items."""
        return [replace(item) for item in self._items.values()]

    def state(self) -> dict[str, Any]:
        """Return the items and the exact counters."""
        return {
            "items": self.items(),
            "next_uid": self._next_uid,
            "next_timestamp_id": self._next_timestamp_id,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "OwnItems":
        """Return what `state` told. Raises InvalidArgument for anything else."""
        loaded = cls()
        try:
            loaded._items = {item.uid: replace(_checked(item)) for item in state["items"]}
            loaded._next_uid, loaded._next_timestamp_id = state["next_uid"], state["next_timestamp_id"]
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"this is no state_dict of a storage ({error!r})") from error
        return loaded


class BufferGroups:
    """The groups of a buffer, seen as items."""

    def __init__(self, buffer: "reroll.ReplayBuffer") -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer)

    async def find(self, node: QueryNode) -> list[StorageItem]:
        query = metadata_query(node)
        rows = await self._buffer.query({} if query is None else query)
        groups = await self._buffer.peek([row.uid for row in rows])
        items = [
            StorageItem(group, *(getattr(row, name) for name in _METADATA))
            for row, group in zip(rows, groups, strict=True)
        ]
        return items if query is not None else [item for item in items if holds(node, item)]

    async def count(self, node: QueryNode) -> int:
        query = metadata_query(node)
        return len(await self.find(node) if query is None else await self._buffer.query(query))

    async def delete(self, uids: Sequence[int]) -> None:
        await self._buffer.delete(uids)


_METADATA = tuple(column.name for column in fields(StorageItem))[1:]


def _checked(item: StorageItem) -> StorageItem:
    return replace(item, status=read_status(item.status))
