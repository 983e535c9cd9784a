"""Commit and rewind: consumption follows the checkpoints of the trainer.

What a training step used stays undoable until the trainer says that its checkpoint holds that step. If it restarts from
an earlier one, all that was used since is available again, at its old place.
"""

from typing import NamedTuple

import numpy as np

from reroll.engine.columns import LEASED, NO_VERSION, OUT, PLACES, RESIDENT, UNCOMMITTED, IntArray
from reroll.engine.engine import Engine
from reroll.engine.ledger import Amount
from reroll.engine.lending import give_back
from reroll.engine.moves import NOBODY
from reroll.engine.task import COMPLETED, STATUSES, Task
from reroll.engine.uses import Used
from reroll.errors import CannotRewind


class Rewound(NamedTuple):
    """What a rewind did."""

    back: IntArray
    """Rows that were consumed, and are in their pool again."""
    gone: IntArray
    """Rows that had to go for them."""


def commit(engine: Engine, task: Task, step: int) -> IntArray:
    """Let nothing that was used up to this step be undone any more; return the slots that have no row any more."""
    _, slots = task.log.drop(task.log.upto(step))
    task.log.finish(step)
    if len(slots):
        task.ledger.move("uncommitted", "consumed", engine.amount(slots))
        engine.columns.release(slots)
    return slots


def let_go_of_oldest(engine: Engine, task: Task) -> tuple[int, IntArray] | None:
    """Let the oldest step be final if more are kept than configured; return it, and the slots without a row now."""
    if len(task.log) <= task.settings.max_uncommitted_steps:
        return None
    oldest = task.log.oldest
    return oldest, commit(engine, task, oldest)


def check_rewind(task: Task, step: int) -> None:
    """Raise CannotRewind if uses after this step are final."""
    if task.log.final is not None and step < task.log.final:
        raise CannotRewind(
            f"task {task.name!r} cannot be rewound to step {step}: what was used up to step {task.log.final} was "
            "committed or let go. Go on from a checkpoint of that step or a later one, or begin anew with another "
            "store; max_uncommitted_steps says how many steps without a commit are kept"
        )


def rewind(engine: Engine, task: Task, step: int) -> Rewound:
    """Undo all uses after this step, and prepare the one that follows it."""
    used, kept = task.log.drop(task.log.after(step))
    _undo(engine, task, used, kept)
    gone = _bring_back(engine, task, kept)
    task.rewind(step, engine.last_tick)
    return Rewound(kept, gone)


def undo_last(
    engine: Engine, task: Task, used: Used, consumed: IntArray, number: int | None
) -> Rewound | None:
    """Undo a use that did not reach anybody; `consumed` are the rows that it used up, as far as they are still here.

    `number` is that of the use, if it was noted. Return None if it was committed, let go or undone meanwhile.
    """
    if number is not None and not task.log.remove(number):
        return None
    kept = consumed[engine.columns.place[consumed] == UNCOMMITTED]
    task.log.unkeep(kept)
    task.consumed = max(0, task.consumed - len(kept))
    _undo(engine, task, [used], kept)
    return Rewound(kept, _bring_back(engine, task, kept))


def let_go_of_consumed(engine: Engine, slots: IntArray) -> IntArray:
    """Let rows be no more that were consumed for no training step, and are kept until that is written down."""
    columns = engine.columns
    is_over = (columns.place[slots] == UNCOMMITTED) & (columns.used_at[slots] == NO_VERSION)
    ended: IntArray = slots[is_over & (columns.uid[slots] != 0)]
    if not len(ended):
        return ended
    for task, status, part in engine.by_pool(ended):
        bucket = "consumed" if status == COMPLETED else STATUSES[status].value
        engine.leave(task, part, "uncommitted", bucket)
    return ended


def bring_home(engine: Engine) -> Rewound:
    """Let all that is lent or out be in its pool again: whoever had it is no more."""
    columns = engine.columns
    alive = columns.alive()
    lost = alive[(columns.place[alive] == UNCOMMITTED) & (columns.used_at[alive] == NO_VERSION)]
    let_go_of_consumed(engine, lost)
    back, gone = [NOBODY], [NOBODY]
    while len(held := (alive := columns.alive())[columns.pending[alive] > 0]):
        settled = give_back(engine, held)
        back.append(settled.back)
        gone.append(settled.gone)
    alive = columns.alive()
    for task, status, part in engine.by_pool(alive[columns.place[alive] == OUT]):
        task.rolling -= len(part)
        engine.lower(task, status, part, PLACES[OUT])
        back.append(part)
    return Rewound(np.concatenate(back), np.concatenate([lost, *gone]))


def _undo(engine: Engine, task: Task, used: list[Used], kept: IntArray) -> None:
    """Take back uses, as far as their rows are still here, and tell limiter and ledger."""
    columns = engine.columns
    if len(kept):
        missing = np.maximum(task.settings.due_samples - columns.uses[kept], 0)
        task.counters.forgone = max(0.0, task.counters.forgone - float(missing.sum()))
    alive = columns.alive()
    alive = alive[(columns.task[alive] == task.code) & (columns.status[alive] == COMPLETED)]
    undone = np.zeros(len(alive), np.int64)
    uids = columns.uid[alive]
    for one in used:
        at = np.searchsorted(uids, one.uids)
        here = at < len(alive)
        here[here] &= uids[at[here]] == one.uids[here]
        here[here] &= columns.attempts[alive[at[here]]] == one.attempts[here]
        np.add.at(undone, at[here], one.times[here])
    slots, times = alive[undone > 0], undone[undone > 0]
    columns.uses[slots] -= np.minimum(times, columns.uses[slots]).astype(np.int32)
    task.counters.samples -= int(times.sum())
    columns.mark(slots)
    fresh = slots[(columns.uses[slots] == columns.pending[slots]) & (columns.trained[slots] == 1)]
    for place, name in enumerate(PLACES):
        part = fresh[columns.place[fresh] == place]
        tokens = int(columns.trained_tokens[part].sum())
        task.ledger.put(Amount(0, 0, -len(part), -tokens), name)
    columns.trained[fresh] = 0
    columns.trained_tokens[fresh] = 0
    task.completed.touch(slots[columns.place[slots] == RESIDENT])
    limit = task.settings.max_times_sampled
    lent = slots[columns.place[slots] == LEASED]
    if limit is not None and len(usable := lent[columns.uses[lent] < limit]):
        # Was out of its pool because it had no use left; now it has.
        task.leased -= len(usable)
        if task.settings.remover is None:
            task.num_bytes -= int(columns.num_bytes[usable].sum())
        engine.lower(task, COMPLETED, usable)


def _bring_back(engine: Engine, task: Task, kept: IntArray) -> IntArray:
    """Let consumed rows be in their pool again; return who had to go for them."""
    if not len(kept):
        return NOBODY
    columns = engine.columns
    task.counters.deletes -= len(kept)
    columns.used_at[kept] = NO_VERSION
    engine.lower(task, COMPLETED, kept, PLACES[UNCOMMITTED])
    return engine.evict_overflow(task)
