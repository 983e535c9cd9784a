"""Everything an engine knows, as plain values and arrays, and back: it goes on with the same picks."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from reroll.engine.columns import Columns, IntArray
from reroll.engine.engine import Engine
from reroll.engine.task import Task
from reroll.errors import InvalidArgument

FORMAT: Final = 1
"""Version of what `state_of` returns."""


def state_of(engine: Engine) -> dict[str, Any]:
    """Return the state; nothing in it is shared with the engine. O(rows)."""
    alive = engine.columns.alive()
    row_of = np.full(int(alive.max(initial=-1)) + 1, -1, np.int64)
    row_of[alive] = np.arange(len(alive))
    return {
        "format": FORMAT,
        "last_uid": engine.last_uid,
        "last_tick": engine.last_tick,
        "rng": _rng_state(engine.rng),
        # Saved without gaps: row r is at slot r when restored.
        "rows": engine.columns.rows(alive),
        "tasks": {name: _translated(task.state(), row_of) for name, task in engine.tasks.items()},
    }


def restore(engine: Engine, state: Mapping[str, Any]) -> None:
    """Let an engine become what `state_of` told.

    Raises InvalidArgument or InvalidConfig, and changes nothing, if it does not fit.
    """
    if state.get("format") != FORMAT:
        raise InvalidArgument(f"cannot restore format {state.get('format')!r}; this version reads {FORMAT}")
    columns = Columns()
    columns.restore(state["rows"])
    tasks = {}
    for code, (name, saved) in enumerate(state["tasks"].items()):
        tasks[name] = Task(name, code, engine.settings_of(name), columns)
        tasks[name].restore(saved, columns)
    rng = np.random.Generator(np.random.PCG64(0))
    _restore_rng(rng, state["rng"])
    engine.columns, engine.tasks, engine.rng = columns, tasks, rng
    engine.last_uid, engine.last_tick = state["last_uid"], state["last_tick"]


def _translated(state: Any, row_of: IntArray) -> Any:
    """Replace slots by row numbers in a nested state; all arrays in it hold slots."""
    if isinstance(state, Mapping):
        return {name: _translated(value, row_of) for name, value in state.items()}
    if isinstance(state, list):
        return [_translated(value, row_of) for value in state]
    return row_of[state] if isinstance(state, np.ndarray) else state


def _rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the generator's state; its 128-bit integers as text, which every file format can hold."""
    state = rng.bit_generator.state
    inner: dict[str, int] = state["state"]
    return {
        **{name: str(value) for name, value in inner.items()},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


def _restore_rng(rng: np.random.Generator, saved: Mapping[str, Any]) -> None:
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(saved["state"]), "inc": int(saved["inc"])},
        "has_uint32": saved["has_uint32"],
        "uinteger": saved["uinteger"],
    }
