"""The prioritized cycle: sample 256 and update their 256 priorities, at several sizes.

At the level of the selector arrays go in and out; the Table adds keys, payloads, lock, limiter, use counts and ledger. The
same beside other libraries: side_by_side.
"""

import gc
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from filling import filled_selector, filled_table
from measure import Case, Timing, interleave, per_operation
from reroll import Prioritized

BATCH, ALPHA, BETA = 256, 0.6, 0.4
HEAVY_SHARE = 0.99

NUMBA, NUMPY, TABLE = "reroll selector, numba", "reroll selector, numpy", "reroll Table"


class Measured(NamedTuple):
    """One contender at one size."""

    contender: str
    rows: int


def has_numba() -> bool:
    """Whether the `fast` extra is installed."""
    return find_spec("numba") is not None


def measure_cycles(
    sizes: Sequence[int], rounds: int, cycles: int
) -> tuple[dict[Measured, Timing], list[str]]:
    """Time all contenders in turn; return the timings, and what has to be said."""
    results: dict[Measured, Timing] = {}
    for rows in sizes:
        cases: dict[Measured, Case] = {}
        if has_numba():
            cases[Measured(NUMBA, rows)] = selector_case(rows, cycles, numba=True)
        cases[Measured(NUMPY, rows)] = selector_case(rows, cycles, numba=False)
        cases[Measured(TABLE, rows)] = table_case(rows, 1)
        results |= interleave(cases, rounds)
        del cases
        gc.collect()
    return results, [] if has_numba() else ["numba is missing: pip install reroll[fast]"]


def measure_heavy(sizes: Sequence[int], rounds: int, picks: int) -> dict[Measured, tuple[Timing, Timing]]:
    """Time 256 distinct picks from even weights, and with one row that holds 99 % of the mass."""
    results: dict[Measured, tuple[Timing, Timing]] = {}
    for rows in sizes:
        cases: dict[tuple[str, bool], Case] = {}
        for numba in (True, False) if has_numba() else (False,):
            for heavy in (False, True):
                cases[NUMBA if numba else NUMPY, heavy] = _pick_case(rows, picks, numba=numba, heavy=heavy)
        timings = interleave(cases, rounds)
        for contender in dict.fromkeys(name for name, _ in cases):
            results[Measured(contender, rows)] = timings[contender, False], timings[contender, True]
    return results


def selector_case(rows: int, cycles: int, *, numba: bool) -> Case:
    columns, selector = filled_selector(Prioritized(alpha=ALPHA, beta=BETA), rows, numba=numba)
    rng = np.random.default_rng(0)
    new = rng.random(BATCH) + 0.01

    def cycle() -> None:
        picks = selector.pick(BATCH, rng)
        picks.weights()  # a trainer needs them too
        columns.priority[picks.slots] = new
        selector.touch(picks.slots)

    return lambda: per_operation(cycle, cycles)


def table_case(rows: int, cycles: int) -> Case:
    table = filled_table(rows, Prioritized(alpha=ALPHA, beta=BETA))
    new = (np.random.default_rng(0).random(BATCH) + 0.01).tolist()

    def cycle() -> None:
        samples = table.sample_items(BATCH) or []
        table.update_priorities(
            {sample.info.key: priority for sample, priority in zip(samples, new, strict=False)}
        )

    return lambda: per_operation(cycle, cycles)


def _pick_case(rows: int, picks: int, *, numba: bool, heavy: bool) -> Case:
    columns, selector = filled_selector(Prioritized(), rows, numba=numba)
    rng = np.random.default_rng(0)
    if heavy:
        row = np.array([rows // 2])
        others = columns.priority[:rows].sum() - columns.priority[row]
        columns.priority[row] = others * HEAVY_SHARE / (1 - HEAVY_SHARE)
        selector.touch(row)
    return lambda: per_operation(lambda: selector.pick(BATCH, rng), picks)
