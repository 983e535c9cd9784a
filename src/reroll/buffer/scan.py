"""Read many groups in slices: other calls run in between, and groups that leave meanwhile are left out."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from reroll.buffer.group import Payload
from reroll.buffer.handed import Handed
from reroll.buffer.runtime import Runtime
from reroll.engine.engine import Engine
from reroll.engine.query import Row, RowSource, find, order_of, rows_at, rows_of, sort_slots, still_at
from reroll.engine.rows import RESIDENT, IntArray
from reroll.errors import UnknownUid
from reroll.query import FIELDS, Kind, Query, cost, mask, only_pool

# The work of a call before other calls run: some milliseconds each.
ROWS_AT_ONCE: Final = 1000
GROUPS_AT_ONCE: Final = 256
_COMPARISONS_AT_ONCE: Final = 1_000_000
_LEAST_ROWS: Final = 64


def slices_of(engine: Engine, slots: IntArray, size: int) -> list[tuple[IntArray, IntArray]]:
    """Return slots and the uids of their rows in parts of this size; at least one part."""
    uids = engine.columns.uid[slots]
    return [(slots[at : at + size], uids[at : at + size]) for at in range(0, max(1, len(slots)), size)]


async def find_slots(runtime: Runtime, query: Query, place: int | None = RESIDENT) -> IntArray:
    """Return the slots of the rows that satisfy a query, ordered by uid."""
    engine, size = runtime.engine, max(_LEAST_ROWS, _COMPARISONS_AT_ONCE // cost(query))
    if len(engine.columns) <= size or only_pool(query) is not None:
        return find(engine, query, place)
    found: list[tuple[IntArray, IntArray]] = []
    for part, uids in slices_of(engine, rows_at(engine, place), size):
        here = still_at(engine, part, uids, place)
        here[here] = mask(query, RowSource(engine, part[here]))
        found.append((part[here], uids[here]))
        await runtime.pause()
    slots, known = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return slots[still_at(engine, slots, known, place)]


async def sort(runtime: Runtime, slots: IntArray, field: str, descending: bool) -> IntArray:
    """Return the slots of resident rows, ordered by a field."""
    engine = runtime.engine
    if FIELDS[field] is not Kind.SCALAR or len(slots) <= ROWS_AT_ONCE:
        return sort_slots(engine, slots, field, descending)
    uids, values = engine.columns.uid[slots], list[Any]()
    for part, _ in slices_of(engine, slots, ROWS_AT_ONCE):
        values += RowSource(engine, part).objects(field)
        await runtime.pause()
    order = await runtime.waits.aside(lambda: np.asarray(order_of(values, descending), np.int64))
    slots, uids = slots[order], uids[order]
    return slots[still_at(engine, slots, uids)]


async def read_rows(runtime: Runtime, slots: IntArray) -> list[Row]:
    """Return the Row of each slot of a resident row."""
    engine = runtime.engine
    if len(slots) <= ROWS_AT_ONCE:
        return rows_of(engine, slots)
    rows: list[Row] = []
    for part, uids in slices_of(engine, slots, ROWS_AT_ONCE):
        rows += rows_of(engine, part[still_at(engine, part, uids)])
        await runtime.pause()
    return rows


async def read_groups(
    runtime: Runtime, handed: Sequence[Handed], columns: Sequence[str] | None = None
) -> list[list[Payload]]:
    """Return the rollouts of groups that stay where they are, with these further columns; corrupt groups are left out."""
    for given in handed:
        given.columns = columns
    groups = runtime.groups
    if runtime.payloads is None:
        return [groups.show(given) for given in handed]
    everything = [group for given in handed for group in given.groups]
    damaged, parts = await runtime.payloads.look(everything, columns)
    for given in handed:
        given.parts = parts
        groups.leave_out(given, damaged)
    shown = [groups.show(given) for given in handed]
    runtime.payloads.settle(everything)
    return shown


async def read_members(runtime: Runtime, uids: Sequence[int], place: int | None) -> list[Payload | None]:
    """Return the rollouts of groups by uid; None for groups that left their place or are corrupt."""
    while True:
        runtime.check_open()
        slots = runtime.groups.all_slots(uids)
        slots = slots[slots >= 0]
        if place is not None:
            slots = slots[runtime.engine.columns.place[slots] == place]
        handed = runtime.groups.look_at(slots)
        try:
            shown = await read_groups(runtime, handed)
        except UnknownUid:
            continue  # a group has just left
        found = {
            group.uid: members
            for given, groups in zip(handed, shown, strict=True)
            for group, members in zip(given.groups, groups, strict=True)
        }
        return [found.get(uid) for uid in uids]
