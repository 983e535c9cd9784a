"""Tables and selectors with many rows, in a second instead of half a minute."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from reroll import Table, Unlimited
from reroll.engine.ledger import closes
from reroll.engine.rows import Columns
from reroll.engine.selectors.selector import Selector, SelectorSpec


def random_priorities(rows: int) -> np.ndarray:
    """The same for every contender; none is zero."""
    return np.random.default_rng(rows).random(rows) + 0.01


def filled_table(
    rows: int, sampler: SelectorSpec, remover: SelectorSpec | None = None, *, uses: int | None = None
) -> Table:
    """A full table with the keys 0, 1, ... and each key as its own data.

    Its state is that of a table with one row, widened: a million inserts would take longer than all measurements.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "nothing ever leaves": what we want, to hold the size fixed
        table = Table(rows, sampler, remover, uses, Unlimited(), seed=0)
    table.insert(0, 0)
    state = table.state()
    engine = state["engine"]
    engine["rows"] = _widened_rows(engine["rows"], rows)
    engine["last_uid"] = engine["tick"] = rows
    for task in engine["tasks"].values():
        task["counters"]["inserts"] = rows
        task["ledger"] = {
            name: [rows * amount for amount in amounts] for name, amounts in task["ledger"].items()
        }
        task["pools"] = _widened_slots(task["pools"], rows)
    table.restore({"engine": engine, "keys": list(range(rows)), "data": list(range(rows))})
    if len(table) != rows or not closes(table.info.ledger):
        raise AssertionError(
            "the state of a table has changed in form: bring benchmarks/filling.py up to date"
        )
    return table


def filled_selector(spec: SelectorSpec, rows: int, *, numba: bool) -> tuple[Columns, Selector]:
    """A selector over rows with random priorities, at slots 0, 1, ..."""
    columns = Columns()
    columns.allocate({"uid": 1})
    columns.restore(_widened_rows(columns.rows(np.array([0])), rows))
    with numba_wanted(numba):
        selector = spec.build(columns, "sampler")
    selector.add(np.arange(rows))
    return columns, selector


def _widened_rows(one: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    wide = {name: np.repeat(column, rows) for name, column in one.items()}
    for name in ("uid", "timestamp", "touched"):
        wide[name] = np.arange(1, rows + 1)
    wide["priority"] = random_priorities(rows)
    return wide


def _widened_slots(state: Any, rows: int) -> Any:
    """Every array in the state of a pool holds slots."""
    if isinstance(state, dict):
        return {name: _widened_slots(value, rows) for name, value in state.items()}
    if isinstance(state, list):
        return [_widened_slots(value, rows) for value in state]
    if isinstance(state, np.ndarray) and len(state) == 1:
        return np.arange(rows)
    return state


@contextmanager
def numba_wanted(wanted: bool) -> Iterator[None]:
    """Build with numba or without it."""
    before = os.environ.pop("REROLL_NO_NUMBA", None)
    os.environ.update({} if wanted else {"REROLL_NO_NUMBA": "1"})
    try:
        yield
    finally:
        os.environ.pop("REROLL_NO_NUMBA", None)
        if before is not None:
            os.environ["REROLL_NO_NUMBA"] = before
