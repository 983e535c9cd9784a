"""Every operation of a Table, at several sizes, beside the scanning design.

All cases leave their table as large as it was: what was taken or deleted comes back, outside of the timing.
"""

import gc
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np

from filling import filled_table, random_priorities
from measure import Case, Timing, interleave, per_operation
from reroll import Fifo, MinHeap, Prioritized, Uniform
from scanning import ScanningBuffer, ScanningTable, lowest_priority, oldest

BATCH = 64
ALPHA = 0.6

OURS, SCANNING = "reroll", "scanning"

T = TypeVar("T", ScanningBuffer, ScanningTable)


class Measured(NamedTuple):
    """One operation of one design at one size."""

    operation: str
    design: str
    rows: int


def measure_operations(
    sizes: Sequence[int], scanning_sizes: Sequence[int], rounds: int
) -> dict[Measured, Timing]:
    """Time all operations; sizes and designs take turns."""
    results: dict[Measured, Timing] = {}
    for ours, theirs in _KINDS:
        cases: dict[Measured, Case] = {}
        for rows in sizes:
            designs = {OURS: ours, SCANNING: theirs} if rows in scanning_sizes else {OURS: ours}
            for design, build in designs.items():
                cases |= {Measured(name, design, rows): case for name, case in build(rows).items()}
        for operation in dict.fromkeys(key.operation for key in cases):
            results |= interleave(
                {key: case for key, case in cases.items() if key.operation == operation}, rounds
            )
        del cases
        gc.collect()
    return results


class _Keys:
    """Random keys of a table that holds 0, 1, ..., rows - 1."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._rng = np.random.default_rng(1)

    def some(self, n: int = BATCH) -> list[int]:
        return self._rng.choice(self._rows, n, replace=False).tolist()

    def priorities(self, n: int = BATCH) -> dict[int, float]:
        return dict(zip(self.some(n), (self._rng.random(n) + 0.01).tolist(), strict=True))


def _insert_case(table: Any, keys: _Keys) -> Case:
    """Insert into a table that has room."""

    def case() -> float:
        priorities = keys.priorities()
        table.delete(priorities)
        inserts = iter(priorities.items())

        def insert() -> None:
            key, priority = next(inserts)
            table.insert(key, key, priority)

        return per_operation(insert, BATCH)

    return case


def _delete_case(table: Any, keys: _Keys) -> Case:
    def case() -> float:
        chosen = keys.some()
        seconds = per_operation(lambda: table.delete(chosen))
        for key in chosen:
            table.insert(key, key)
        return seconds

    return case


def _take_case(table: Any, take: Callable[[int], Sequence[int]]) -> Case:
    """Take the oldest, which leave."""

    def case() -> float:
        taken: list[int] = []
        seconds = per_operation(lambda: taken.extend(take(BATCH)))
        for key in taken:
            table.insert(key, key)
        return seconds

    return case


def _update_case(table: Any, keys: _Keys) -> Case:
    def case() -> float:
        priorities = keys.priorities()
        return per_operation(lambda: table.update_priorities(priorities))

    return case


def _overflow_case(table: Any, rows: int, inserts: int) -> Case:
    """Insert new keys into a full table."""
    new, rng = count(rows), np.random.default_rng(2)

    def case() -> float:
        priorities = iter((rng.random(inserts) + 0.01).tolist())

        def insert() -> None:
            key = next(new)
            table.insert(key, key, next(priorities))

        return per_operation(insert, inserts)

    return case


def _fifo(rows: int) -> dict[str, Case]:
    table, keys = filled_table(rows, Fifo(), uses=1), _Keys(rows)
    return {
        "count": lambda: per_operation(table.__len__, 2000),
        "insert, fifo": _insert_case(table, keys),
        "take 64, fifo": _take_case(table, table.sample),
        "delete 64, fifo": _delete_case(table, keys),
    }


def _scanning_fifo(rows: int) -> dict[str, Case]:
    table, keys = _filled(ScanningBuffer(), rows), _Keys(rows)
    return {
        "count": lambda: per_operation(table.count),
        "insert, fifo": _insert_case(table, keys),
        "take 64, fifo": _take_case(table, table.take),
        "delete 64, fifo": _delete_case(table, keys),
    }


def _uniform(rows: int) -> dict[str, Case]:
    return _sampled("uniform", filled_table(rows, Uniform()), rows, 8)


def _scanning_uniform(rows: int) -> dict[str, Case]:
    return _sampled("uniform", _filled(ScanningTable(rows), rows), rows, 1)


def prioritized(rows: int) -> dict[str, Case]:
    table = filled_table(rows, Prioritized(alpha=ALPHA))
    return _sampled("prioritized", table, rows, 8) | {
        "update 64, prioritized": _update_case(table, _Keys(rows)),
        "delete 64, prioritized": _delete_case(table, _Keys(rows)),
    }


def scanning_prioritized(rows: int) -> dict[str, Case]:
    table = _filled(ScanningTable(rows, alpha=ALPHA), rows)
    return _sampled("prioritized", table, rows, 1) | {
        "update 64, prioritized": _update_case(table, _Keys(rows)),
        "delete 64, prioritized": _delete_case(table, _Keys(rows)),
    }


def _sampled(name: str, table: Any, rows: int, samples: int) -> dict[str, Case]:
    return {
        f"insert, {name}": _insert_case(table, _Keys(rows)),
        f"sample 64, {name}": lambda: per_operation(lambda: table.sample(BATCH), samples),
    }


def _full_fifo(rows: int) -> dict[str, Case]:
    table = filled_table(rows, Uniform(), Fifo())
    return {"overflow, uniform + fifo": _overflow_case(table, rows, BATCH)}


def _scanning_full_fifo(rows: int) -> dict[str, Case]:
    table = _filled(ScanningTable(rows, oldest), rows)
    return {"overflow, uniform + fifo": _overflow_case(table, rows, 2)}


def full_heap(rows: int) -> dict[str, Case]:
    table = filled_table(rows, Prioritized(alpha=ALPHA), MinHeap())
    return {
        "update 64, prioritized + min_heap": _update_case(table, _Keys(rows)),
        "overflow, prioritized + min_heap": _overflow_case(table, rows, BATCH),
    }


def scanning_full_heap(rows: int) -> dict[str, Case]:
    table = _filled(ScanningTable(rows, lowest_priority, alpha=ALPHA), rows)
    return {
        "update 64, prioritized + min_heap": _update_case(table, _Keys(rows)),
        "overflow, prioritized + min_heap": _overflow_case(table, rows, 2),
    }


def _filled(table: T, rows: int) -> T:
    for key, priority in enumerate(random_priorities(rows).tolist()):
        table.insert(key, key, priority)
    return table


_KINDS = (
    (_fifo, _scanning_fifo),
    (_uniform, _scanning_uniform),
    (prioritized, scanning_prioritized),
    (_full_fifo, _scanning_full_fifo),
    (full_heap, scanning_full_heap),
)
