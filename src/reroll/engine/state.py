"""Everything an engine knows, as plain values and arrays, and back: it goes on with the same picks.

It comes in three parts, because they change at different paces: rows, of which a call touches a few; uses that may be
undone, which are only added and dropped; and the small rest.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from reroll.engine.columns import PLACES, RESIDENT, Columns, IntArray
from reroll.engine.engine import Engine
from reroll.engine.moves import NOBODY
from reroll.engine.task import REJECTED, Task
from reroll.errors import InvalidArgument, InvalidConfig

FORMAT: Final = 3
"""Version of what `state_of` returns."""


def small_state_of(engine: Engine) -> dict[str, Any]:
    """Return all but rows and uses, as plain values. O(tasks)."""
    return {
        "format": FORMAT,
        "last_uid": engine.last_uid,
        "last_tick": engine.last_tick,
        "last_use": engine.last_use,
        "advanced": list(engine.advanced),
        "version": engine.version,
        "rng": _rng_state(engine.rng),
        "salt": engine.columns.salt,
        "tasks": {name: task.state() for name, task in engine.tasks.items()},
    }


def state_of(engine: Engine) -> dict[str, Any]:
    """Return the whole state; nothing in it is shared with the engine. O(rows)."""
    return {
        **small_state_of(engine),
        "rows": engine.columns.rows(engine.columns.alive()),
        "uses": {name: task.log.records() for name, task in engine.tasks.items()},
    }


def restore(engine: Engine, state: Mapping[str, Any]) -> None:
    """Let an engine become what `state_of` told; row r is at slot r.

    Raises InvalidArgument or InvalidConfig, and changes nothing, if it does not fit.
    """
    if state.get("format") != FORMAT:
        raise InvalidArgument(f"cannot restore format {state.get('format')!r}; this version reads {FORMAT}")
    columns = Columns()
    columns.dirty = None if engine.columns.dirty is None else set()
    columns.restore(state["rows"])
    columns.salt = state["salt"]
    tasks: dict[str, Task] = {}
    for code, (name, saved) in enumerate(state["tasks"].items()):
        try:
            settings = engine.settings_of(name)
        except InvalidArgument as error:
            raise InvalidConfig(f"the saved buffer has other tasks: {error}") from None
        tasks[name] = Task(name, code, settings, columns)
        tasks[name].restore(saved, columns, state["uses"].get(name, {}))
    rng = np.random.Generator(np.random.PCG64(0))
    _restore_rng(rng, state["rng"])
    if engine.columns.dirty is not None:  # whoever writes changes down learns of those that follow
        columns.dirty = set()
    engine.columns, engine.tasks, engine.rng = columns, tasks, rng
    engine.forget_named()
    engine.last_uid, engine.last_tick = state["last_uid"], state["last_tick"]
    engine.last_use = state["last_use"]
    step, version = state["advanced"]
    engine.advanced = (step, version)
    engine.version = state.get("version")


def write_off(engine: Engine) -> None:
    """Let the books be those of the rows that are there: others were damaged, and nothing is known of them but that.

    Nothing may be lent or out. O(rows).
    """
    columns = engine.columns
    for task in engine.tasks.values():
        mine = columns.alive()
        mine = mine[columns.task[mine] == task.code]
        for place, name in enumerate(PLACES):
            here = engine.amount(mine[columns.place[mine] == place])
            task.ledger.move(name, "lost", task.ledger.amounts()[name].minus(here))
        task.counters.deletes = task.counters.inserts - len(task.completed)
        counted = mine[(columns.place[mine] == RESIDENT) & ~np.isin(columns.status[mine], REJECTED)]
        task.num_bytes = int(columns.num_bytes[counted].sum())


def keep_limits(engine: Engine) -> IntArray:
    """Evict rows beyond the limits of now, where a remover or a ring lets rows go; return their slots."""
    gone = [NOBODY]
    for task in engine.tasks.values():
        gone += [engine.evict_overflow(task), engine.trim_rejected(task)]
    return np.concatenate(gone)


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
