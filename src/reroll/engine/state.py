"""The state of an engine as plain values and arrays: a restored engine continues with the same picks.

It has three parts, which change at different rates: rows, of which a call changes a few; uses that may be undone, which
are only added and dropped; and the small rest.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from reroll.engine.engine import Engine
from reroll.engine.rows import Columns
from reroll.engine.task import Task
from reroll.errors import InvalidArgument, InvalidConfig

FORMAT: Final = 4
"""Version of the result of `state_of`."""


def small_state_of(engine: Engine) -> dict[str, Any]:
    """Return the state without rows and uses, as plain values. O(tasks)."""
    rng = engine.rng.bit_generator.state
    return {
        "format": FORMAT,
        "last_uid": engine.last_uid,
        "last_tick": engine.last_tick,
        "last_use": engine.last_use,
        "advanced": list(engine.advanced),
        "version": engine.version,
        # Its 128-bit integers as text, which every file format can hold.
        "rng": {
            **{name: str(value) for name, value in rng["state"].items()},
            "has_uint32": rng["has_uint32"],
            "uinteger": rng["uinteger"],
        },
        "salt": engine.columns.salt,
        "tasks": {name: task.state() for name, task in engine.tasks.items()},
    }


def state_of(engine: Engine) -> dict[str, Any]:
    """Return the whole state, which shares nothing with the engine. O(rows)."""
    return {
        **small_state_of(engine),
        "rows": engine.columns.rows(engine.columns.alive()),
        "uses": {name: task.log.records() for name, task in engine.tasks.items()},
    }


def restore(engine: Engine, state: Mapping[str, Any]) -> None:
    """Restore an engine from the result of `state_of`; row r gets slot r.

    Raises InvalidArgument or InvalidConfig, and changes nothing, if the state does not fit.
    """
    if state.get("format") != FORMAT:
        raise InvalidArgument(f"cannot restore format {state.get('format')!r}; this version reads {FORMAT}")
    columns = Columns()
    columns.restore(state["rows"])
    columns.salt = state["salt"]
    tasks: dict[str, Task] = {}
    for code, (name, saved) in enumerate(state["tasks"].items()):
        try:
            settings = engine.settings_of(name)
        except InvalidArgument as error:
            raise InvalidConfig(f"the saved buffer has other tasks: {error}") from None
        tasks[name] = Task(name, code, settings, columns)
        tasks[name].restore(saved, state["uses"].get(name, {}))
    rng, inner = np.random.Generator(np.random.PCG64(0)), state["rng"]
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(inner["state"]), "inc": int(inner["inc"])},
        "has_uint32": inner["has_uint32"],
        "uinteger": inner["uinteger"],
    }
    columns.dirty = None if engine.columns.dirty is None else set()
    columns.dropped = engine.columns.dropped
    engine.columns, engine.tasks, engine.rng = columns, tasks, rng
    engine.forget_named()
    engine.last_uid, engine.last_tick = state["last_uid"], state["last_tick"]
    engine.last_use = state["last_use"]
    step, version = state["advanced"]
    engine.advanced = (step, version)
    engine.version = state.get("version")


def rebuild_ledger(engine: Engine) -> None:
    """Count rows that were damaged, and are missing, as lost; no row may be leased or checked out. O(tasks)."""
    for task in engine.tasks.values():
        task.ledger.count_missing()
        task.counters.deletes = task.counters.inserts - len(task.completed)
