"""Leases, on rows: groups are lent to a holder, and consumed only when it says so.

A lent COMPLETED group counts a use that is pending. One that has no use left is out of its pool, and nobody else sees it;
with `max_times_sampled` 1 that is every one. Groups of other statuses are always out of their pool.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from reroll.engine.columns import LEASED, OUT, PLACES, RESIDENT, IntArray
from reroll.engine.engine import Drawn, Engine
from reroll.engine.moves import total
from reroll.engine.task import COMPLETED, REJECTED, RETURNING, STATUSES, Task

Steps = Mapping[str, int | None]
"""By task: the training step that rows were lent for."""


class Settled(NamedTuple):
    """What became of rows whose lease ended."""

    gone: IntArray
    """They have no row any more."""
    out: IntArray
    """Producers have them now, to roll them again."""
    back: IntArray
    """They are back in their pool."""


def lend(engine: Engine, task: Task, status: int, n: int) -> Drawn:
    """Lend n groups, or all if there are fewer. Raises WouldBlock while limiter or sampler do not allow it."""
    columns = engine.columns
    drawn = engine.pick(task, status, n)
    slots = drawn.slots
    columns.pending[slots] += 1
    columns.deliveries[slots] += 1
    columns.mark(slots)
    hidden = slots
    if status == COMPLETED:
        engine.count_use(task, slots)
        limit = task.settings.max_times_sampled
        used_up = np.zeros(len(slots), np.bool_) if limit is None else columns.uses[slots] >= limit
        hidden = slots[used_up]
        if len(hidden) < len(slots):
            task.completed.touch(slots[~used_up])
        task.leased += len(hidden)
    engine.lift(task, status, hidden, LEASED)
    if status in RETURNING:
        task.rolling += len(hidden)
    if _counts_bytes(task, status):
        task.num_bytes += _bytes(engine, hidden)
    return drawn._replace(times_sampled=columns.uses[slots].astype(np.int64))


def use(engine: Engine, slots: IntArray, lent_as: int, steps: Steps) -> Settled:
    """Let resident rows count a use, as if acknowledged now; they were lent with status `lent_as`."""
    gone, out = [slots[:0]], [slots[:0]]
    for task, status, part in engine.by_pool(slots):
        if status == lent_as and status in RETURNING:
            engine.lift(task, status, part, OUT)
            task.rolling += len(part)
            out.append(part)
        elif lent_as == COMPLETED and status != COMPLETED:  # it expired, and is rolled again all the same
            engine.mark_trained(task, part, "resident")
        elif status == COMPLETED:
            engine.count_use(task, part)
            engine.note_use(task, part, steps.get(task.name))
            engine.mark_trained(task, part, "resident")
            gone.append(engine.let_go_used(task, part, steps.get(task.name)))
    return Settled(np.concatenate(gone), np.concatenate(out), slots[:0])


def acknowledge(engine: Engine, slots: IntArray, steps: Steps) -> Settled:
    """Let the uses of lent rows count; those without a use left are consumed, or out where producers roll them again."""
    columns = engine.columns
    gone, out = [slots[:0]], [slots[:0]]
    columns.pending[slots] -= 1
    columns.mark(slots)
    for task, status, part in engine.by_pool(slots):
        if status == COMPLETED:
            engine.note_use(task, part, steps.get(task.name))
            for place in (RESIDENT, LEASED):
                engine.mark_trained(task, part[columns.place[part] == place], PLACES[place])
        done = part[(columns.place[part] == LEASED) & (columns.pending[part] == 0)]
        if _counts_bytes(task, status):
            task.num_bytes -= _bytes(engine, done)
        if status in RETURNING:
            task.ledger.move("leased", "out", engine.amount(done))
            columns.place[done] = OUT
            out.append(done)
        elif status == COMPLETED:
            task.leased -= len(done)
            gone.append(engine.use_up(task, done, steps.get(task.name), PLACES[LEASED]))
        else:
            engine.leave(task, done, "leased", STATUSES[status].value)
            gone.append(done)
    return Settled(np.concatenate(gone), np.concatenate(out), slots[:0])


def give_back(engine: Engine, slots: IntArray) -> Settled:
    """Take back the uses of lent rows: hidden ones return to their old place; others may have to go for them."""
    columns = engine.columns
    gone, back = [slots[:0]], [slots[:0]]
    returned: list[tuple[Task, int]] = []
    columns.pending[slots] -= 1
    columns.mark(slots)
    for task, status, part in engine.by_pool(slots):
        hidden = part[columns.place[part] == LEASED]
        if status == COMPLETED:
            columns.uses[part] -= 1
            task.counters.samples -= len(part)
            task.leased -= len(hidden)
            task.completed.touch(part[columns.place[part] == RESIDENT])
        if status in RETURNING:
            task.rolling -= len(hidden)
        if _counts_bytes(task, status):
            task.num_bytes -= _bytes(engine, hidden)
        engine.lower(task, status, hidden)
        back.append(hidden)
        returned.append((task, status))
    for task, status in returned:  # only now: one that comes back may have to go for another
        if status == COMPLETED:
            gone.append(engine.evict_overflow(task))
        elif status in REJECTED:
            gone.append(engine.trim_rejected(task))
    return Settled(np.concatenate(gone), slots[:0], np.concatenate(back))


def _counts_bytes(task: Task, status: int) -> bool:
    """Return whether lent groups count against `max_bytes`: else newcomers would be evicted for them."""
    return task.settings.remover is None and status not in REJECTED


def _bytes(engine: Engine, slots: IntArray) -> int:
    return total(engine.columns.num_bytes[slots])
