"""How rows move: between pools, places and buckets, with limiter, ledger and byte counts told of each move.

These are the steps that the engine's verbs are made of. None of them decides, and none fails half-way.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from reroll.engine.columns import (
    LEASED,
    NO_VERSION,
    PLACES,
    RESIDENT,
    UNCOMMITTED,
    Columns,
    IntArray,
)
from reroll.engine.ledger import Amount, Dropped
from reroll.engine.task import (
    COMPLETED,
    REJECTED,
    STATUSES,
    Task,
    TaskSettings,
)
from reroll.engine.uses import used_of

NOBODY: IntArray = np.zeros(0, np.int64)
_KEPT_IN_MIND: Final = 256
"""Tasks that were named and have no group, of which the newest keep their step."""


class Moves:
    """Rows of all tasks, and the steps that move them."""

    def __init__(
        self,
        settings_of: Callable[[str], TaskSettings],
        *,
        seed: int | None = None,
        max_bytes: int | None = None,
        declared: Collection[str] = (),
    ) -> None:
        self.settings_of = settings_of
        self.declared = declared  # tasks that the configuration names
        self.max_bytes = max_bytes
        self.columns = Columns()
        self.columns.salt = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
        self.tasks: dict[str, Task] = {}
        self._named: WeakValueDictionary[str, Task] = WeakValueDictionary()
        self._recently_named: deque[Task] = deque(maxlen=_KEPT_IN_MIND)
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.advanced: tuple[int, int | None] = (0, None)  # as told last, for tasks that come later
        self.version: int | None = None
        """Version of the weights that serve, as of the last `advance` or `rewind`; None before the first."""
        self.sync_interval = 1
        """After how many training steps the weights are synchronised, unless `advance` names a version."""
        self.last_uid = 0
        self.uid_shard = (0, 1)
        """Which of how many shards this is: uids are never those of another."""
        self.last_use = 0  # the number of the last use that was noted
        self.last_tick = 0  # of the clock that orders inserts and priority updates
        self.dropped: list[Dropped] | None = None
        """Groups that left untrained and were not reported yet; None: they are not recorded."""

    def task(self, name: str) -> Task:
        """Return the task of this name, made on first use."""
        return self.tasks.get(name) or self.admit(self.named(name))

    def named(self, name: str) -> Task:
        """Return the task of this name; one that the engine does not have is only kept in mind until `admit`.

        So a call that names a task by mistake leaves nothing behind.
        """
        found = self.tasks.get(name) or self._named.get(name)
        if found is None:
            found = Task(name, -1, self.settings_of(name), self.columns)
            found.advance(*self.advanced)
            self._named[name] = found
            self._recently_named.append(found)
        return found

    def named_tasks(self) -> list[Task]:
        """Return the tasks that were named, and that the engine does not have."""
        return list(self._named.values())

    def forget_named(self) -> None:
        """Forget them: the engine becomes another."""
        self._named.clear()
        self._recently_named.clear()

    def known_tasks(self) -> list[str]:
        """Return the names of tasks that have or had groups, or that the configuration names."""
        return sorted({*self.tasks, *self.declared})

    def admit(self, task: Task) -> Task:
        """Have a task that was named, from now on."""
        if task.name not in self.tasks:
            task.code = len(self.tasks)
            task.advance(*self.advanced)
            self.tasks[task.name] = task
            self._named.pop(task.name, None)
        return self.tasks[task.name]

    @property
    def num_bytes(self) -> int:
        """Bytes of all resident payloads but those of rejected groups."""
        return sum(task.num_bytes for task in self.tasks.values())

    def _next_tick(self) -> int:
        self.last_tick += 1
        return self.last_tick

    def _task_of(self, slot: int) -> Task:
        return list(self.tasks.values())[int(self.columns.task[slot])]

    def _fits(self, num_bytes: int) -> bool:
        return self.max_bytes is None or self.num_bytes + num_bytes <= self.max_bytes

    def _write(self, task: Task, values: Mapping[str, float], group_id: Any = None) -> int:
        """Make a row, which the ledger knows and no pool has yet."""
        tick = self.last_tick + 1
        shard, shards = self.uid_shard
        uid = self.last_uid + 1 + (shard - self.last_uid) % shards
        own = {"uid": uid, "timestamp": tick, "touched": tick, "task": task.code}
        slot = self.columns.allocate({**values, **own})
        if group_id is not None:
            self.columns.group_id[slot] = group_id
        self.last_uid, self.last_tick = uid, tick
        task.ledger.put(Amount(1, int(self.columns.num_tokens[slot])))
        return slot

    def _join(self, task: Task, status: int, slot: int) -> None:
        """Let a row without a pool be in one."""
        self.columns.status[slot] = status
        task.pools[status].add_one(slot)
        if status not in REJECTED:
            task.num_bytes += int(self.columns.num_bytes[slot])

    def _settle(self, task: Task, status: int, slot: int) -> IntArray:
        """Let a newcomer join its pool, and return who had to go for it."""
        self._join(task, status, slot)
        if status == COMPLETED:
            task.counters.inserts += 1
            return self.evict_overflow(task)
        return self.trim_rejected(task) if status in REJECTED else NOBODY

    def evict_overflow(self, task: Task) -> IntArray:
        gone: list[IntArray] = []
        capacity = task.settings.capacity
        if task.settings.remover is not None:
            while capacity is not None and len(task.completed) > capacity:
                gone.append(self._evict_one(task))
        while not self._fits(0) and (others := self._evictable()):
            # Whoever holds the most gives way, so that a fast task cannot starve a slow one.
            gone.append(self._evict_one(max(others, key=lambda other: other.num_bytes)))
        return np.concatenate(gone) if gone else NOBODY

    def _evictable(self) -> list[Task]:
        return [t for t in self.tasks.values() if t.settings.remover is not None and len(t.completed)]

    def _evict_one(self, task: Task) -> IntArray:
        remover = task.completed.remover
        assert remover is not None  # noqa: S101  (callers ask only tasks that have one)
        slots = remover.pick(1, self.rng, step=task.step).slots
        task.counters.deletes += 1
        self.retire(task, COMPLETED, slots, "evicted")
        return slots

    def trim_rejected(self, task: Task) -> IntArray:
        """Let the oldest rejected groups go, so that only the newest stay to be looked at."""
        pools = {status: task.pools[status] for status in REJECTED}
        gone: list[IntArray] = []
        while sum(map(len, pools.values())) > task.settings.rejected_capacity:
            oldest = {
                status: pool.sampler.pick(1, self.rng).slots for status, pool in pools.items() if len(pool)
            }
            status = min(oldest, key=lambda status: self.columns.timestamp[oldest[status][0]])
            self.retire(task, status, oldest[status], STATUSES[status].value)
            gone.append(oldest[status])
        return np.concatenate(gone) if gone else NOBODY

    def count_use(self, task: Task, slots: IntArray) -> None:
        """Count a use of COMPLETED rows, for the limiter too."""
        self.columns.uses[slots] += 1
        task.counters.samples += len(slots)

    def mark_trained(self, task: Task, slots: IntArray, bucket: str) -> None:
        """Tell the ledger that rows, which are in this bucket, were trained."""
        if not len(slots):
            return
        columns = self.columns
        groups = len(slots) - int(np.count_nonzero(columns.trained[slots]))
        tokens = columns.num_tokens[slots]
        new_tokens = total(tokens) - total(columns.trained_tokens[slots])
        task.ledger.put(Amount(0, 0, groups, new_tokens), bucket)
        columns.trained[slots] = 1
        columns.trained_tokens[slots] = tokens

    def note_use(self, task: Task, slots: IntArray, step: int | None, times: IntArray | None = None) -> None:
        """Remember that a training step used rows, while that may be undone."""
        if step is None or not len(slots):
            return
        if task.settings.max_uncommitted_steps:
            self.last_use += 1
            task.log.add(self.last_use, used_of(step, self.columns, slots, times))
        else:
            task.log.finish(step)

    def consume(
        self, task: Task, slots: IntArray, step: int | None, source: str = PLACES[RESIDENT]
    ) -> IntArray:
        """Let COMPLETED rows go that are used up; return those that have no row any more.

        While the training step that used them may be undone, they are kept.
        """
        task.counters.deletes += len(slots)
        task.consumed += len(slots)
        if source == PLACES[RESIDENT]:
            self._leave_pool(task, COMPLETED, slots)
        if not task.settings.max_uncommitted_steps:
            step = None
        if step is None and not task.settings.is_durable:
            task.ledger.move(source, "consumed", self.amount(slots))
            self.columns.release(slots)
            return slots
        task.ledger.move(source, PLACES[UNCOMMITTED], self.amount(slots))
        self.columns.place[slots] = UNCOMMITTED
        self.columns.used_at[slots] = NO_VERSION if step is None else step
        self.columns.mark(slots)
        if step is not None:
            task.log.keep(step, slots)
        return NOBODY

    def use_up(
        self, task: Task, slots: IntArray, step: int | None, source: str = PLACES[RESIDENT]
    ) -> IntArray:
        """Consume rows by the last of their uses; return those that have no row any more.

        Leases may be acknowledged in any order, so a later step may have used them before.
        """
        if task.settings.max_times_sampled == 1 or not task.log.after(step):
            return self.consume(task, slots, step, source)
        by_step = task.log.newest(step, self.columns, slots)
        gone = [self.consume(task, part, newest, source) for newest, part in by_step.items()]
        return np.concatenate([NOBODY, *gone])

    def refund(self, task: Task, status: int, slots: IntArray) -> None:
        """Tell the limiter of COMPLETED rows that leave otherwise than by use; as if never there, if never sampled."""
        if status == COMPLETED:
            used = slots[self.columns.uses[slots] > 0]
            task.counters.inserts -= len(slots) - len(used)
            task.counters.deletes += len(used)
            self.forgo(task, used)

    def forgo(self, task: Task, slots: IntArray) -> None:
        """Tell the limiter of samples that COMPLETED rows, which leave early, will not give any more.

        Otherwise a ratio would let inserts wait for them for ever. A table keeps to the plain rule: its items leave early
        only when they are deleted by key.
        """
        due = task.settings.due_samples
        if due > 1 and task.settings.expires:
            task.counters.forgone += float(np.maximum(due - self.columns.uses[slots], 0).sum())

    def retire(self, task: Task, status: int, slots: IntArray, bucket: str) -> None:
        """Take rows out for good."""
        held = slots[self.columns.pending[slots] > 0]
        if len(held):  # a trainer works on them
            self.mark_trained(task, held, "resident")
        self._leave_pool(task, status, slots)
        self.leave(task, slots, "resident", bucket)

    def leave(self, task: Task, slots: IntArray, source: str, bucket: str) -> None:
        """Free rows that are in no pool, move them to a final bucket, and record the untrained ones as dropped."""
        if self.dropped is not None and bucket != "consumed":
            columns = self.columns
            self.dropped += [
                Dropped(int(columns.uid[slot]), task.name, columns.group_id.get(slot), bucket)
                for slot in slots[columns.trained[slots] == 0].tolist()
            ]
        task.ledger.move(source, bucket, self.amount(slots))
        self.columns.release(slots)

    def lift(self, task: Task, status: int, slots: IntArray, place: int) -> None:
        """Take rows out of their pool to another place; they stay rows."""
        self._leave_pool(task, status, slots)
        task.ledger.move("resident", PLACES[place], self.amount(slots))
        self.columns.place[slots] = place

    def lower(self, task: Task, status: int, slots: IntArray, source: str = PLACES[LEASED]) -> None:
        """Let rows that were lifted be in their pool again, at their old place."""
        task.ledger.move(source, "resident", self.amount(slots))
        self.columns.place[slots] = RESIDENT
        task.pools[status].add(slots)
        if status not in REJECTED:
            task.num_bytes += total(self.columns.num_bytes[slots])

    def _leave_pool(self, task: Task, status: int, slots: IntArray) -> None:
        task.pools[status].remove(slots)
        if status not in REJECTED:
            task.num_bytes -= total(self.columns.num_bytes[slots])

    def change(self, slot: int, values: Mapping[str, float]) -> None:
        """Follow a payload that changed: write columns of its row."""
        one, task, status = np.array([slot]), self._task_of(slot), int(self.columns.status[slot])
        resident = self.columns.place[slot] == RESIDENT
        if resident:
            self._leave_pool(task, status, one)
        for name, value in values.items():
            getattr(self.columns, name)[slot] = value
        self.columns.mark(one)
        if resident:
            self._join(task, status, slot)

    def amount(self, slots: IntArray) -> Amount:
        columns = self.columns
        return Amount(
            len(slots),
            total(columns.num_tokens[slots]),
            int(np.count_nonzero(columns.trained[slots])),
            total(columns.trained_tokens[slots]),
        )

    def by_pool(self, slots: IntArray) -> list[tuple[Task, int, IntArray]]:
        """Split slots by task and status, each part in the given order."""
        if not len(slots):
            return []
        tasks = list(self.tasks.values())
        if len(slots) == 1:
            return [(tasks[self.columns.task[slots[0]]], int(self.columns.status[slots[0]]), slots)]
        pool_of = self.columns.task[slots].astype(np.int64) * len(STATUSES) + self.columns.status[slots]
        first = int(pool_of[0])
        if (pool_of == first).all():
            return [(tasks[first // len(STATUSES)], first % len(STATUSES), slots)]
        return [
            (tasks[pool // len(STATUSES)], pool % len(STATUSES), slots[pool_of == pool])
            for pool in np.unique(pool_of).tolist()
        ]


def total(values: IntArray) -> int:
    """Add up tokens or bytes. The rows of a table have none, which is seen sooner than added up."""
    if len(values) == 1:
        return int(values[0])
    return int(values.sum()) if np.count_nonzero(values) else 0
