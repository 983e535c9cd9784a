"""The moves of rows: the only place where the status or the place of a row changes.

A row enters, moves from one (status, place) to another, or leaves to an exit of the ledger. Pools, ledger and limiter
counters of the task follow in the same step, so that no caller changes a count. All rows of one call have the same task,
status and place. Moves decide nothing, and none fails half-way.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from reroll.engine.ledger import Dropped, Measure, Spot
from reroll.engine.rows import LEASED, NO_ROWS, NO_VERSION, RESIDENT, UNCOMMITTED, IntArray
from reroll.engine.task import COMPLETED, RUNNING, Task

READY: Final = Spot(COMPLETED, RESIDENT)
"""Groups that trainers may take."""
CONSUMED: Final = Spot(COMPLETED, UNCOMMITTED)
_LIVE: Final = (READY, Spot(COMPLETED, LEASED))
"""Groups that limiters count as inserted and not deleted."""


def enter(task: Task, slots: IntArray, status: int) -> None:
    """Put new rows into the pool of their status."""
    task.columns.status[slots] = status
    spot = Spot(status, RESIDENT)
    task.ledger.enter(spot, task.columns.measure(slots))
    if status == COMPLETED:
        task.counters.inserts += len(slots)
    _count_running(task, slots, spot, 1)
    task.pools[status].add(slots)


def move(
    task: Task,
    slots: IntArray,
    source: Spot,
    target: Spot,
    values: Mapping[str, Any] | None = None,
    *,
    bucket: str = "deleted",
) -> None:
    """Move rows from `source` to `target`, and write `values` to their columns.

    Tokens that `values` add count as put; tokens that they remove leave to `bucket`.
    """
    if not len(slots):
        return
    columns = task.columns
    if source.place == RESIDENT:
        task.pools[source.status].remove(slots)
    rows = columns.measure(slots)
    _count_running(task, slots, source, -1)
    if values:
        before = rows
        for name, value in values.items():
            getattr(columns, name)[slots] = value
        columns.trained_tokens[slots] = np.minimum(columns.trained_tokens[slots], columns.num_tokens[slots])
        rows = columns.measure(slots)
        task.ledger.change(source, before, rows, bucket)
    if source != target:
        columns.status[slots] = target.status
        columns.place[slots] = target.place
        task.ledger.move(source, target, rows)
        _count_move(task, slots, source, target)
    _count_running(task, slots, target, 1)
    if target.place == RESIDENT:
        task.pools[target.status].add(slots)
    columns.mark(slots)


def leave(task: Task, slots: IntArray, source: Spot, bucket: str, rows: Measure | None = None) -> None:
    """Delete rows and count them in an exit of the ledger; record the untrained ones as dropped."""
    if not len(slots):
        return
    columns = task.columns
    if source.place == RESIDENT:
        task.pools[source.status].remove(slots)
        if bucket != "consumed" and (len(slots) > 1 or columns.pending.item(slots.item())):
            mark_trained(task, slots[columns.pending[slots] > 0], source)  # a trainer trains on them
    if columns.dropped is not None and bucket != "consumed":
        columns.dropped += [
            Dropped(int(columns.uid[slot]), task.name, columns.group_id.get(slot), bucket)
            for slot in slots[columns.trained[slots] == 0].tolist()
        ]
    _count_running(task, slots, source, -1)
    task.ledger.leave(source, bucket, rows or columns.measure(slots))
    if source in _LIVE:
        _count_exit(task, slots, bucket)
    columns.release(slots)


def count_use(task: Task, slots: IntArray, times: IntArray | None = None) -> None:
    """Count uses of COMPLETED rows: one each, or `times`."""
    task.columns.uses[slots] += 1 if times is None else times.astype(np.int32)
    task.counters.samples += len(slots) if times is None else int(times.sum())


def undo_use(task: Task, slots: IntArray, times: IntArray) -> None:
    """Undo uses of COMPLETED rows, and update those that are in their pool."""
    columns = task.columns
    columns.uses[slots] -= np.minimum(times, columns.uses[slots]).astype(np.int32)
    task.counters.samples -= int(times.sum())
    columns.mark(slots)
    task.completed.touch(slots[columns.place[slots] == RESIDENT])


def mark_trained(task: Task, slots: IntArray, spot: Spot, *, undo: bool = False) -> Measure:
    """Count rows, which have this status and place, and their tokens as trained, or as not trained."""
    if not len(slots):
        return Measure()
    columns = task.columns
    before = columns.measure(slots)
    groups, tokens = (0, 0) if undo else before[:2]
    after = before._replace(trained_groups=groups, trained_tokens=tokens)
    if after != before:
        new_groups, new_tokens = groups - before.trained_groups, tokens - before.trained_tokens
        task.ledger.train(spot, new_groups, new_tokens)
        columns.trained[slots] = not undo
        columns.trained_tokens[slots] = 0 if undo else columns.num_tokens[slots]
    return after


def consume(
    task: Task, slots: IntArray, place: int, step: int | None, rows: Measure | None = None
) -> IntArray:
    """Consume COMPLETED rows at a place for a training step; return the slots that were freed.

    Rows whose consumption may be undone are kept: until the trainer commits the step, or until the store has written it.
    """
    source = Spot(COMPLETED, place)
    if not task.settings.max_uncommitted_steps:
        step = None
    if step is None and not task.settings.is_durable:
        leave(task, slots, source, "consumed", rows)
        return slots
    if len(slots):
        task.columns.used_at[slots] = NO_VERSION if step is None else step
        move(task, slots, source, CONSUMED)
        if step is not None:
            task.log.keep(step, slots)
    return NO_ROWS


def finish_use(
    task: Task, slots: IntArray, place: int, step: int | None, rows: Measure | None = None
) -> IntArray:
    """Consume COMPLETED rows by the last of their uses; return the slots that were freed.

    Leases may be acknowledged in any order, so a later step may have used the rows before.
    """
    if task.settings.max_times_sampled == 1 or not task.log.after(step):
        return consume(task, slots, place, step, rows)
    by_step = task.log.newest(step, task.columns, slots)
    freed = [consume(task, part, place, newest) for newest, part in by_step.items()]
    return np.concatenate([NO_ROWS, *freed])


def credit_unused_samples(task: Task, slots: IntArray) -> None:
    """Count the samples that COMPLETED rows, which leave early, will never give.

    Otherwise a ratio would make inserts wait for them forever. The items of a table leave early only by `delete`, and are
    not counted.
    """
    due = task.settings.due_samples
    if due > 1 and task.settings.expires:
        task.counters.forgone += float(np.maximum(due - task.columns.uses[slots], 0).sum())


def _count_running(task: Task, slots: IntArray, spot: Spot, groups: int) -> None:
    """Count rows that come to a place where groups are generated (1), or leave it (-1)."""
    if task.awaits_stragglers and spot in RUNNING:
        task.count_running(task.columns.version[slots].tolist(), groups)


def _count_move(task: Task, slots: IntArray, source: Spot, target: Spot) -> None:
    """Count a move for the limiter."""
    if (source in _LIVE) == (target in _LIVE):
        return
    if source == CONSUMED:  # the consumption is undone
        task.counters.deletes -= len(slots)
        task.consumed = max(0, task.consumed - len(slots))
    elif target in _LIVE:
        task.counters.inserts += len(slots)
    else:
        _count_exit(task, slots, "consumed" if target == CONSUMED else "expired")


def _count_exit(task: Task, slots: IntArray, bucket: str) -> None:
    """Count COMPLETED rows that leave, for the limiter.

    A row that leaves neither by its uses nor by eviction counts as never inserted if it was never sampled.
    """
    if bucket == "consumed":
        task.consumed += len(slots)
        task.counters.deletes += len(slots)
    elif bucket == "evicted":
        task.counters.deletes += len(slots)
    else:
        used = slots[task.columns.uses[slots] > 0]
        task.counters.inserts -= len(slots) - len(used)
        task.counters.deletes += len(used)
        credit_unused_samples(task, used)
