"""Work over many groups in slices: other calls run in between, and groups that leave in the meantime are left out."""

from typing import Any, Final

import numpy as np

from reroll.buffer.shell import Shell
from reroll.engine.engine import Engine
from reroll.engine.query import Row, RowSource, find, order_of, rows_at, rows_of, sort_slots, still_at
from reroll.engine.rows import RESIDENT, IntArray
from reroll.query import FIELDS, Kind, Query, cost, mask, only_pool

ROWS_AT_ONCE: Final = 1000
GROUPS_AT_ONCE: Final = 256
_COMPARISONS_AT_ONCE: Final = 1_000_000
"""What a call does before other calls run: some milliseconds each."""
_LEAST_ROWS: Final = 64


class Slicing(Shell):
    """Searches, sorts and makes rows without holding up other calls."""

    async def _find(self, query: Query, place: int | None = RESIDENT) -> IntArray:
        """Return the slots of the rows that satisfy a query, by uid."""
        size = max(_LEAST_ROWS, _COMPARISONS_AT_ONCE // cost(query))
        if len(self._engine.columns) <= size or only_pool(query) is not None:
            return find(self._engine, query, place)
        found: list[tuple[IntArray, IntArray]] = []
        for part, uids in slices_of(self._engine, rows_at(self._engine, place), size):
            here = still_at(self._engine, part, uids, place)
            here[here] = mask(query, RowSource(self._engine, part[here]))
            found.append((part[here], uids[here]))
            await self._pause()
        slots, known = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return slots[still_at(self._engine, slots, known, place)]

    async def _sort(self, slots: IntArray, field: str, descending: bool) -> IntArray:
        """Return the slots of resident rows in order of a field."""
        if FIELDS[field] is not Kind.SCALAR or len(slots) <= ROWS_AT_ONCE:
            return sort_slots(self._engine, slots, field, descending)
        uids, values = self._engine.columns.uid[slots], list[Any]()
        for part, _ in slices_of(self._engine, slots, ROWS_AT_ONCE):
            values += RowSource(self._engine, part).objects(field)
            await self._pause()
        order = await self._waits.aside(lambda: np.asarray(order_of(values, descending), np.int64))
        slots, uids = slots[order], uids[order]
        return slots[still_at(self._engine, slots, uids)]

    async def _rows(self, slots: IntArray) -> list[Row]:
        """Return a Row for each slot of a resident row."""
        if len(slots) <= ROWS_AT_ONCE:
            return rows_of(self._engine, slots)
        rows: list[Row] = []
        for part, uids in slices_of(self._engine, slots, ROWS_AT_ONCE):
            rows += rows_of(self._engine, part[still_at(self._engine, part, uids)])
            await self._pause()
        return rows

    async def _pause(self) -> None:
        """Let other calls run. Raises Closed if one of them closed the buffer."""
        await self._waits.pause()
        self._check_open()


def slices_of(engine: Engine, slots: IntArray, size: int) -> list[tuple[IntArray, IntArray]]:
    """Return slots and the uids of their rows, in parts of this size; one at least."""
    uids = engine.columns.uid[slots]
    return [(slots[at : at + size], uids[at : at + size]) for at in range(0, max(1, len(slots)), size)]
