"""What a Table costs besides time per call: memory of a row, the time to import, and the longest stall while growing."""

import gc
import statistics
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Sequence
from time import perf_counter, thread_time
from typing import NamedTuple

import numpy as np

from filling import random_priorities
from reroll import Fifo, LeastUsed, Lifo, MinHeap, Prioritized, Table, Uniform, Unlimited
from reroll.engine.selectors.selector import SelectorSpec

KINDS: tuple[tuple[SelectorSpec, SelectorSpec | None], ...] = (
    (Fifo(), None),
    (Uniform(), None),
    (Prioritized(), None),
    (LeastUsed(), None),
    (MinHeap(), None),
    (Uniform(), Fifo()),
    (Prioritized(), Fifo()),
    (Prioritized(), MinHeap()),
    (LeastUsed(), Lifo()),
)


class Overhead(NamedTuple):
    """Bytes of a row, without key and payload, while the rows doubled.

    Columns grow by doubling, so it is the least right before that, and the most right after it.
    """

    kind: str
    selectors: int
    least: float
    mean: float
    most: float


def measure_overhead(rows: int) -> list[Overhead]:
    """Trace the memory of tables that grow to so many rows."""
    return [_overhead(rows, sampler, remover) for sampler, remover in KINDS]


def _overhead(rows: int, sampler: SelectorSpec, remover: SelectorSpec | None) -> Overhead:
    table = _empty(rows, sampler, remover)
    table.insert(-1, None)  # loads what is loaded on first use
    table.delete([-1])
    priorities = random_priorities(rows).tolist()
    keys = list(range(rows))
    gc.collect()
    sizes: list[float] = []
    tracemalloc.start()
    try:
        for row, (key, priority) in enumerate(zip(keys, priorities, strict=True), 1):
            table.insert(key, None, priority)
            if row >= rows // 2 and row % 64 == 0:
                sizes.append(tracemalloc.get_traced_memory()[0] / row)
    finally:
        tracemalloc.stop()
    kind = sampler.type if remover is None else f"{sampler.type} + {remover.type}"
    return Overhead(kind, 1 if remover is None else 2, min(sizes), statistics.mean(sizes), max(sizes))


class Import(NamedTuple):
    """Medians of fresh processes."""

    seconds: float
    cpu_seconds: float
    """What it takes on a machine without other work."""


def measure_imports(rounds: int) -> dict[str, Import]:
    """Import, each time in a fresh process, in turn."""
    statements = {"reroll": "import reroll", "numpy + pydantic": "import numpy, pydantic"}
    taken: dict[str, list[Import]] = {name: [] for name in statements}
    for number in range(rounds + 1):
        for name, statement in statements.items():
            code = (
                "from time import perf_counter, process_time; a, b = perf_counter(), process_time(); "
                f"{statement}; print(perf_counter() - a, process_time() - b)"
            )
            answer = subprocess.check_output([sys.executable, "-c", code], text=True)
            if number:  # the first one compiles
                taken[name].append(Import(*map(float, answer.split())))
    return {
        name: Import(*map(statistics.median, zip(*values, strict=True))) for name, values in taken.items()
    }


class Stall(NamedTuple):
    """One long insert."""

    row: int
    cpu_seconds: float
    seconds: float
    """With the time in which other processes had the processor."""
    collecting: float
    """Of these, in Python's garbage collector."""


class Growth(NamedTuple):
    """A table that grew row by row."""

    kind: str
    rows: int
    mean: float
    median: float
    worst: Sequence[Stall]
    """The longest first, by processor time."""


def measure_growth(rows: int, sampler: SelectorSpec, remover: SelectorSpec | None, worst: int = 5) -> Growth:
    """Time each insert of a growing table, the garbage collector at work as it is for users."""
    table = _empty(rows, sampler, remover)
    priorities = random_priorities(rows).tolist()
    taken, busy, collecting = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    row, started = 0, 0.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = perf_counter()
        else:
            collecting[row] += perf_counter() - started

    gc.collect()
    gc.callbacks.append(watch)
    try:
        for row, priority in enumerate(priorities):
            start, start_busy = perf_counter(), thread_time()
            table.insert(row, None, priority)
            busy[row], taken[row] = thread_time() - start_busy, perf_counter() - start
    finally:
        gc.callbacks.remove(watch)
    return Growth(
        kind=sampler.type if remover is None else f"{sampler.type} + {remover.type}",
        rows=rows,
        mean=float(busy.mean()),
        median=float(np.median(busy)),
        worst=[
            Stall(at, float(busy[at]), float(taken[at]), float(collecting[at]))
            for at in np.argsort(busy)[::-1][:worst].tolist()
        ],
    )


def _empty(rows: int, sampler: SelectorSpec, remover: SelectorSpec | None) -> Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "nothing ever leaves": this table only grows
        return Table(rows, sampler, remover, 1 if isinstance(sampler, Fifo) else None, Unlimited(), seed=0)
