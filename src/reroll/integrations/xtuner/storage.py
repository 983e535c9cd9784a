"""Storages: items under queries. Alone they hold what is put into them; given to a buffer they show its groups."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import reroll
from reroll.errors import InvalidArgument
from reroll.integrations.xtuner.extension_points import NotExtended
from reroll.integrations.xtuner.queries import QueryType, parse_query
from reroll.integrations.xtuner.stored import BufferGroups, OwnItems, StorageItem, Stored

_COLUMNS = [column.name for column in fields(StorageItem)]
_INSTEAD = {
    "put": "put",
    "update": "patch",
    "state_dict": "save",
    "load_state_dict": "resume",
    "to_pandas": "to_pandas",
}


class StorageBackend(NotExtended):
    """Items in the order in which they came, found by queries. `NaiveStorage` or `PandasStorage`; not to be subclassed."""

    extend_instead = (
        "a storage decides nothing here; groups are kept in memory, or on disk with ReplayBuffer(..., store=directory). A "
        "place of your own has the verbs of ReplayBuffer: see 'A buffer in another place' in CONTRIBUTING.md, and test it "
        "with reroll.testing.BufferSuite"
    )

    def __init__(self) -> None:
        self._own: OwnItems | None = OwnItems()
        self._stored: Stored = self._own

    async def put(self, item: StorageItem) -> int:
        """Store a copy of an item under a new uid, never used before, and return that. Raises InvalidArgument."""
        return self._alone("put").put(item)

    async def get(self, query: QueryType) -> list[StorageItem]:
        """Return the items that satisfy a query, in the order in which they came. Raises QueryError."""
        return await self._stored.find(parse_query(query))

    async def count(self, query: QueryType) -> int:
        """Return how many items satisfy a query. Raises QueryError."""
        return await self._stored.count(parse_query(query))

    async def delete(self, uids: Sequence[int]) -> None:
        """Delete items; uids that are not here are passed over."""
        await self._stored.delete(uids)

    async def update(self, items: Iterable[StorageItem]) -> None:
        """Replace items, which keep their uid and timestamp; those that are not here are passed over."""
        self._alone("update").update(items)

    def __len__(self) -> int:
        return len(self._stored)

    def state_dict(self) -> dict[str, Any]:
        """Return the items, by reference, and the exact counters."""
        return self._alone("state_dict").state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` of a storage, of either kind, returned. Raises InvalidArgument."""
        self._alone("load_state_dict")
        self._stored = self._own = OwnItems.of(state)

    def show(self, buffer: "reroll.ReplayBuffer") -> None:
        """Be the view of a buffer from now on. Raises InvalidArgument if it holds something else."""
        if self._own is None or len(self._own):
            raise InvalidArgument(
                "this storage is in use already; give each buffer an empty one of its own, and put groups into the buffer"
            )
        self._own, self._stored = None, BufferGroups(buffer)

    def _alone(self, verb: str) -> OwnItems:
        if self._own is None:
            raise InvalidArgument(
                f"{verb}: this storage shows the groups of a buffer, which keeps the books; use the buffer's {_INSTEAD[verb]}"
            )
        return self._own


class NaiveStorage(StorageBackend):
    """Items in a dict."""


class PandasStorage(StorageBackend):
    """The same, and a DataFrame of it."""

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row for each item. Raises ImportError; of a buffer, InvalidArgument."""
        try:
            import pandas as pd  # noqa: PLC0415  (optional)
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error
        items = self._alone("to_pandas").items()
        rows = [{name: getattr(item, name) for name in _COLUMNS} for item in items]
        return pd.DataFrame(rows, columns=_COLUMNS)
