"""Commit and rewind: consumption follows the checkpoints of the trainer.

The uses of a training step can be undone until the trainer commits the step. If the trainer restarts from an earlier step,
all groups that were used since are available again, in their old order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reroll.engine import moves
from reroll.engine.engine import Engine
from reroll.engine.ledger import Spot
from reroll.engine.moves import CONSUMED, READY
from reroll.engine.rows import LEASED, NO_ROWS, NO_VERSION, OUT, PLACES, RESIDENT, UNCOMMITTED, IntArray
from reroll.engine.task import COMPLETED, STATUSES, Task
from reroll.engine.uses import Use, match_uses


class RewindResult(NamedTuple):
    """Result of a rewind."""

    back: IntArray
    """Rows that are in their pool again."""
    gone: IntArray
    """Slots of rows that had to leave for them."""


def commit(task: Task, step: int) -> IntArray:
    """Make the uses up to this step final; return the slots that were freed."""
    _, slots = task.log.drop(task.log.up_to(step))
    task.log.finish(step)
    moves.leave(task, slots, CONSUMED, "consumed")
    return slots


def finalize_oldest_step(task: Task) -> tuple[int, IntArray] | None:
    """Commit the oldest step if more steps are kept than configured; return it, and the slots that were freed."""
    if len(task.log) <= task.settings.max_uncommitted_steps:
        return None
    oldest = task.log.oldest
    return oldest, commit(task, oldest)


def rewind(engine: Engine, task: Task, step: int) -> RewindResult:
    """Undo all uses after this step, and continue with the next one. Check `task.log.check_rewind` before."""
    uses, consumed = task.log.drop(task.log.after(step))
    result = _undo(engine, task, uses, consumed)
    task.rewind(step, engine.last_tick)
    return result


def undo_use(
    engine: Engine, task: Task, use: Use, consumed: IntArray, number: int | None
) -> RewindResult | None:
    """Undo a use whose delivery failed; `consumed` are the rows that it consumed and that still have their slot.

    `number` is that of the use, if it is in the log. Return None if it was committed, finalized or undone meanwhile.
    """
    if number is not None and not task.log.remove(number):
        return None
    consumed = consumed[engine.columns.place[consumed] == UNCOMMITTED]
    task.log.unkeep(consumed)
    return _undo(engine, task, [use], consumed)


def drop_consumed(engine: Engine, slots: IntArray) -> IntArray:
    """Delete those of the rows that were consumed outside any training step; return their slots."""
    columns = engine.columns
    is_over = (columns.place[slots] == UNCOMMITTED) & (columns.used_at[slots] == NO_VERSION)
    ended: IntArray = slots[is_over & (columns.uid[slots] != 0)]
    for task, status, rows in engine.by_pool(ended):
        bucket = "consumed" if status == COMPLETED else STATUSES[status].value
        moves.leave(task, rows, Spot(status, UNCOMMITTED), bucket)
    return ended


def return_all(engine: Engine) -> RewindResult:
    """Return all leased and checked-out rows to their pools, after a restart."""
    columns = engine.columns
    ended = drop_consumed(engine, columns.alive())
    back, gone = [NO_ROWS], [ended]
    while len(leased := (alive := columns.alive())[columns.pending[alive] > 0]):
        outcome = engine.give_back(leased)
        back.append(outcome.back)
        gone.append(outcome.gone)
    alive = columns.alive()
    for task, status, rows in engine.by_pool(alive[columns.place[alive] == OUT]):
        moves.move(task, rows, Spot(status, OUT), Spot(status, RESIDENT))
        back.append(rows)
    return RewindResult(np.concatenate(back), np.concatenate(gone))


def _undo(engine: Engine, task: Task, uses: Sequence[Use], consumed: IntArray) -> RewindResult:
    """Undo uses, as far as their rows are still here, and return consumed rows to their pool."""
    columns = engine.columns
    missing = np.maximum(task.settings.due_samples - columns.uses[consumed], 0)
    task.counters.forgone = max(0.0, task.counters.forgone - float(missing.sum()))
    rows = columns.alive()
    rows = rows[(columns.task[rows] == task.code) & (columns.status[rows] == COMPLETED)]
    slots, times = match_uses(columns, rows, uses)
    moves.undo_use(task, slots, times)
    untrained = slots[(columns.uses[slots] == columns.pending[slots]) & (columns.trained[slots] == 1)]
    for place in range(len(PLACES)):
        here = untrained[columns.place[untrained] == place]
        moves.mark_trained(task, here, Spot(COMPLETED, place), undo=True)
    limit = task.settings.max_times_sampled
    if limit is not None:  # leased rows that had no use left now have one, so they are available again
        leased = slots[columns.place[slots] == LEASED]
        moves.move(task, leased[columns.uses[leased] < limit], Spot(COMPLETED, LEASED), READY)
    columns.used_at[consumed] = NO_VERSION
    moves.move(task, consumed, CONSUMED, READY)
    return RewindResult(consumed, engine.evict_overflow(task) if len(consumed) else NO_ROWS)
