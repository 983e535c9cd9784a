"""The verbs of the engine. See the package's docstring for what it promises."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from reroll.engine.columns import (
    NO_VERSION,
    OUT,
    PLACES,
    RESIDENT,
    Columns,
    FloatArray,
    IntArray,
)
from reroll.engine.ledger import Amount
from reroll.engine.selectors.selector import Picks
from reroll.engine.task import (
    COMPLETED,
    EXPIRED,
    REJECTED,
    RETURNING,
    STATUSES,
    Task,
    TaskSettings,
)
from reroll.errors import InvalidArgument, WouldBlock

_NOBODY: IntArray = np.zeros(0, np.int64)


class Inserted(NamedTuple):
    """What an insert did."""

    slot: int
    """The row, unless it is among `gone`."""
    gone: IntArray
    """Slots of rows that had to go; their payloads can be dropped."""


class Drawn(NamedTuple):
    """What a draw gave: rows with what is known of each, as of this draw."""

    slots: IntArray
    uid: IntArray
    priority: FloatArray
    probability: FloatArray
    weight: FloatArray
    times_sampled: IntArray
    staleness: IntArray
    table_size: int
    """Rows in the pool before this draw let any of them go."""
    gone: IntArray
    """Slots of rows that this draw used up; their payloads can be dropped once they are handed out."""


class Engine:
    """Rows of all tasks, and one seeded generator: the same seed and the same calls give the same picks."""

    def __init__(
        self,
        settings_of: Callable[[str], TaskSettings],
        *,
        seed: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.settings_of = settings_of
        self.max_bytes = max_bytes
        self.columns = Columns()
        self.tasks: dict[str, Task] = {}
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.last_uid = 0
        self.last_tick = 0  # of the clock that orders inserts and priority updates

    # --- asking

    def task(self, name: str) -> Task:
        """Return the task of this name, made on first use."""
        found = self.tasks.get(name)
        if found is None:
            found = Task(name, len(self.tasks), self.settings_of(name), self.columns)
            self.tasks[name] = found
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all resident payloads but those of rejected groups."""
        return sum(task.num_bytes for task in self.tasks.values())

    def can_insert(self, task: Task, k: int = 1, num_bytes: int = 0) -> bool:
        """Return whether k COMPLETED groups of together `num_bytes` may be inserted now."""
        return task.can_insert(k) and (task.settings.remover is not None or self._fits(num_bytes))

    def available(self, task: Task, status: int, n: int) -> int:
        """Return how many of n groups can be handed out now; a closed limiter looks like an empty pool."""
        count = min(n, len(task.pools[status]))
        if status != COMPLETED or count <= 0:
            return max(count, 0)
        if not task.can_sample(count):
            count = bisect_left(range(1, count + 1), x=True, key=lambda k: not task.can_sample(k))
        return count if task.completed.sampler.can_pick(count, self.rng) else 0

    def staleness(self, slots: IntArray) -> IntArray:
        """Return staleness as of the steps of the tasks: derived where there are versions, else as told."""
        columns = self.columns
        steps = np.array([NO_VERSION if t.step is None else t.step for t in self.tasks.values()], np.int64)
        step, version = steps[columns.task[slots]], columns.version[slots]
        derived = (step != NO_VERSION) & (version != NO_VERSION)
        result: IntArray = np.where(derived, step - version - 1, columns.staleness[slots])
        return result

    def resident(self) -> IntArray:
        """Return the slots of all rows that are in a pool, by uid. O(rows)."""
        alive = self.columns.alive()
        found: IntArray = alive[self.columns.place[alive] == RESIDENT]
        return found

    # --- entering

    def insert(self, task: Task, values: Mapping[str, float], status: int = COMPLETED) -> Inserted:
        """Insert a group; its columns are `values`. COMPLETED ones wait: WouldBlock while limiter or room forbid it.

        Overflow is dealt with in the same step: the remover chooses among the residents and the newcomer.
        """
        if status == COMPLETED:
            self.check_admission(task, int(values.get("num_bytes", 0)))
        slot = self._write(task, values)
        return Inserted(slot, self._settle(task, status, slot))

    def check_admission(self, task: Task, num_bytes: int = 0) -> None:
        """Raise WouldBlock while a COMPLETED group cannot be inserted, InvalidArgument if it never can."""
        self.check_size(num_bytes)
        if not self.can_insert(task, 1, num_bytes):
            raise WouldBlock(f"task {task.name!r} takes no more groups for now")

    def check_size(self, num_bytes: int) -> None:
        """Raise InvalidArgument for a group that can never fit."""
        if self.max_bytes is not None and num_bytes > self.max_bytes:
            raise InvalidArgument(
                f"a group of {num_bytes} bytes can never fit into max_bytes={self.max_bytes}; raise it"
            )

    def replace(self, slot: int, values: Mapping[str, float]) -> int:
        """Put a new group in place of one: no insert and no delete for the limiter; return its slot."""
        task = self._task_of(slot)
        self._retire(task, COMPLETED, np.array([slot]), "deleted")
        slot = self._write(task, values)
        self._join(task, COMPLETED, slot)
        return slot

    def insert_again(self, slot: int, values: Mapping[str, float], status: int) -> Inserted:
        """Insert a group that is out: same uid, one more attempt, at the end of the line."""
        columns, task = self.columns, self._task_of(slot)
        if status == COMPLETED:
            self.check_admission(task, int(values.get("num_bytes", 0)))
        before = self._amount(np.array([slot]))
        task.ledger.move("out", "resident", before)
        tokens = int(values["num_tokens"])
        if tokens >= before.tokens:
            task.ledger.put(Amount(0, tokens - before.tokens))
        else:
            trained = min(before.trained_tokens, tokens)
            task.ledger.move(
                "resident", "deleted", Amount(0, before.tokens - tokens, 0, before.trained_tokens - trained)
            )
            columns.trained_tokens[slot] = trained
        for name, value in values.items():
            getattr(columns, name)[slot] = value
        columns.attempts[slot] += 1
        columns.uses[slot] = 0  # what comes back is new data
        columns.place[slot] = RESIDENT
        columns.timestamp[slot] = columns.touched[slot] = self._next_tick()
        return Inserted(slot, self._settle(task, status, slot))

    # --- leaving

    def draw(self, task: Task, n: int) -> Drawn:
        """Sample n COMPLETED groups (all, if there are fewer); those that reach the use limit leave.

        Raises WouldBlock while the limiter or the sampler does not allow it.
        """
        pool, columns = task.completed, self.columns
        size = len(pool)
        count = min(n, size)
        if not task.can_sample(count):
            raise WouldBlock(f"task {task.name!r} gives no {count} samples for now")
        picks = pool.sampler.pick(count, self.rng, step=task.step)
        slots = picks.slots
        self._mark_used(task, slots)
        limit = task.settings.max_times_sampled
        done = np.zeros(count, np.bool_) if limit is None else columns.uses[slots] >= limit
        drawn = self._describe(picks, size, slots[done])
        pool.touch(slots[~done])
        if len(drawn.gone):
            task.counters.deletes += len(drawn.gone)
            self._retire(task, COMPLETED, drawn.gone, "consumed")
        return drawn

    def take(self, task: Task, status: int, n: int) -> tuple[IntArray, IntArray]:
        """Take up to n groups out, in the sampler's order; return their slots, and which of them have no row any more.

        COMPLETED ones are consumed. Those that producers roll again are out, and keep their row. Raises WouldBlock
        while the limiter or the sampler does not allow it.
        """
        pool = task.pools[status]
        count = min(n, len(pool))
        if status == COMPLETED and not task.can_sample(count):
            raise WouldBlock(f"task {task.name!r} gives no {count} groups for now")
        slots = pool.sampler.pick(count, self.rng, step=task.step).slots
        if status in RETURNING:
            self._lift(task, status, slots, OUT)
            return slots, _NOBODY
        if status == COMPLETED:
            self._mark_used(task, slots)
            task.counters.deletes += count
        self._retire(task, status, slots, "consumed" if status == COMPLETED else STATUSES[status].value)
        return slots, slots

    def delete(self, slots: IntArray) -> None:
        """Delete resident rows, and rows that are out; one never sampled is refunded to its limiter."""
        out = self.columns.place[slots] == OUT
        for task, status, part in self._by_pool(slots[~out]):
            self._refund(task, status, part)
            self._retire(task, status, part, "deleted")
        for task, _, part in self._by_pool(slots[out]):
            task.ledger.move("out", "deleted", self._amount(part))
            self.columns.release(part)

    def reset(self) -> None:
        """Delete everything; limiters start anew, the ledger does not."""
        self.delete(self.columns.alive())
        for task in self.tasks.values():
            task.counters = type(task.counters)()

    # --- changing

    def set_priorities(self, slots: IntArray, priorities: FloatArray) -> None:
        """Set the priorities, already checked, of resident rows that may be of several tasks."""
        self.columns.priority[slots] = priorities
        self.columns.touched[slots] = self.last_tick + 1 + np.arange(len(slots))
        self.last_tick += len(slots)
        for task, status, part in self._by_pool(slots):
            task.pools[status].touch(part)

    def change_bytes(self, slot: int, num_bytes: int) -> None:
        """Follow a payload that became larger or smaller."""
        columns = self.columns
        if columns.place[slot] == RESIDENT and columns.status[slot] not in REJECTED:
            self._task_of(slot).num_bytes += num_bytes - int(columns.num_bytes[slot])
        columns.num_bytes[slot] = num_bytes

    def forget_told_staleness(self, task: Task, status: int) -> None:
        """Let the staleness of rows without versions be 0 from now on. O(rows put since the last call)."""
        pool = task.pools[status]
        if pool.ages is not None and len(told := pool.ages.forget_told()):
            self.columns.staleness[told] = 0
            pool.touch(told)

    def stale(self, task: Task, status: int, threshold: int | None, token_threshold: int | None) -> IntArray:
        """Return the rows of a pool whose staleness, as of the task's step, reaches a threshold. O(found)."""
        ages, step = task.pools[status].ages, task.step
        if ages is None or step is None:
            return _NOBODY
        return ages.stale(*(None if t is None else step - 1 - t for t in (threshold, token_threshold)))

    def expire(self, task: Task, status: int, slots: IntArray, values: Mapping[str, IntArray]) -> None:
        """Move rows of a pool to EXPIRED and change their columns; tokens that are gone move to `expired` in the ledger.

        Uid and timestamp stay, so order does not change.
        """
        columns = self.columns
        task.pools[status].remove(slots)
        if status != EXPIRED:
            self._refund(task, status, slots)
        before = self._amount(slots)
        for name, column in values.items():
            getattr(columns, name)[slots] = column
        columns.trained_tokens[slots] = np.minimum(columns.trained_tokens[slots], columns.num_tokens[slots])
        task.ledger.move("resident", "expired", before.minus(self._amount(slots)))
        columns.status[slots] = EXPIRED
        task.pools[EXPIRED].add(slots)

    def drop(self, task: Task, status: int, slots: IntArray) -> None:
        """Drop rows of a pool as too stale."""
        self._refund(task, status, slots)
        self._retire(task, status, slots, "expired")

    # --- inside

    def _next_tick(self) -> int:
        self.last_tick += 1
        return self.last_tick

    def _task_of(self, slot: int) -> Task:
        return list(self.tasks.values())[int(self.columns.task[slot])]

    def _fits(self, num_bytes: int) -> bool:
        return self.max_bytes is None or self.num_bytes + num_bytes <= self.max_bytes

    def _write(self, task: Task, values: Mapping[str, float]) -> int:
        """Make a row, which the ledger knows and no pool has yet."""
        self.last_uid += 1
        tick = self._next_tick()
        own = {"uid": self.last_uid, "timestamp": tick, "touched": tick, "task": task.code}
        slot = self.columns.allocate({**values, **own})
        task.ledger.put(Amount(1, int(self.columns.num_tokens[slot])))
        return slot

    def _join(self, task: Task, status: int, slot: int) -> None:
        """Let a row without a pool be in one."""
        self.columns.status[slot] = status
        task.pools[status].add(np.array([slot]))
        if status not in REJECTED:
            task.num_bytes += int(self.columns.num_bytes[slot])

    def _settle(self, task: Task, status: int, slot: int) -> IntArray:
        """Let a newcomer join its pool, and return who had to go for it."""
        self._join(task, status, slot)
        if status == COMPLETED:
            task.counters.inserts += 1
            return self._evict_overflow(task)
        return self._trim_rejected(task) if status in REJECTED else _NOBODY

    def _evict_overflow(self, task: Task) -> IntArray:
        gone: list[IntArray] = []
        capacity = task.settings.capacity
        if task.completed.remover is not None:
            while capacity is not None and len(task.completed) > capacity:
                gone.append(self._evict_one(task))
        while not self._fits(0) and (others := self._evictable()):
            # Whoever holds the most gives way, so that a fast task cannot starve a slow one.
            gone.append(self._evict_one(max(others, key=lambda other: other.num_bytes)))
        return np.concatenate(gone) if gone else _NOBODY

    def _evictable(self) -> list[Task]:
        return [t for t in self.tasks.values() if t.completed.remover is not None and len(t.completed)]

    def _evict_one(self, task: Task) -> IntArray:
        remover = task.completed.remover
        assert remover is not None  # noqa: S101  (callers ask only tasks that have one)
        slots = remover.pick(1, self.rng, step=task.step).slots
        task.counters.deletes += 1
        self._retire(task, COMPLETED, slots, "evicted")
        return slots

    def _trim_rejected(self, task: Task) -> IntArray:
        """Let the oldest rejected groups go, so that only the newest stay to be looked at."""
        pools = {status: task.pools[status] for status in REJECTED}
        gone: list[IntArray] = []
        while sum(map(len, pools.values())) > task.settings.rejected_capacity:
            oldest = {
                status: pool.sampler.pick(1, self.rng).slots for status, pool in pools.items() if len(pool)
            }
            status = min(oldest, key=lambda status: self.columns.timestamp[oldest[status][0]])
            self._retire(task, status, oldest[status], STATUSES[status].value)
            gone.append(oldest[status])
        return np.concatenate(gone) if gone else _NOBODY

    def _mark_used(self, task: Task, slots: IntArray) -> None:
        """Count a use by the trainer of resident COMPLETED rows."""
        columns = self.columns
        new_groups = columns.trained[slots] == 0
        new_tokens = columns.num_tokens[slots] - columns.trained_tokens[slots]
        task.ledger.put(Amount(0, 0, int(new_groups.sum()), int(new_tokens.sum())))
        columns.trained[slots] = 1
        columns.trained_tokens[slots] = columns.num_tokens[slots]
        columns.uses[slots] += 1
        task.counters.samples += len(slots)

    def _refund(self, task: Task, status: int, slots: IntArray) -> None:
        """Tell the limiter of COMPLETED rows that leave otherwise than by use; as if never there, if never sampled."""
        if status == COMPLETED:
            unused = int((self.columns.uses[slots] == 0).sum())
            task.counters.inserts -= unused
            task.counters.deletes += len(slots) - unused

    def _retire(self, task: Task, status: int, slots: IntArray, bucket: str) -> None:
        """Take rows out for good."""
        self._leave_pool(task, status, slots)
        task.ledger.move("resident", bucket, self._amount(slots))
        self.columns.release(slots)

    def _lift(self, task: Task, status: int, slots: IntArray, place: int) -> None:
        """Take rows out of their pool to another place; they stay rows."""
        self._leave_pool(task, status, slots)
        task.ledger.move("resident", PLACES[place], self._amount(slots))
        self.columns.place[slots] = place

    def _leave_pool(self, task: Task, status: int, slots: IntArray) -> None:
        task.pools[status].remove(slots)
        if status not in REJECTED:
            task.num_bytes -= int(self.columns.num_bytes[slots].sum())

    def _amount(self, slots: IntArray) -> Amount:
        columns = self.columns
        return Amount(
            len(slots),
            int(columns.num_tokens[slots].sum()),
            int(columns.trained[slots].sum()),
            int(columns.trained_tokens[slots].sum()),
        )

    def _by_pool(self, slots: IntArray) -> list[tuple[Task, int, IntArray]]:
        """Split slots by task and status, each part in the given order."""
        if not len(slots):
            return []
        tasks = list(self.tasks.values())
        pool_of = self.columns.task[slots].astype(np.int64) * len(STATUSES) + self.columns.status[slots]
        return [
            (tasks[pool // len(STATUSES)], pool % len(STATUSES), slots[pool_of == pool])
            for pool in np.unique(pool_of).tolist()
        ]

    def _describe(self, picks: Picks, size: int, gone: IntArray) -> Drawn:
        columns, slots = self.columns, picks.slots
        return Drawn(
            slots=slots,
            uid=columns.uid[slots],
            priority=columns.priority[slots],
            probability=picks.probability,
            weight=picks.weights(),
            times_sampled=columns.uses[slots].astype(np.int64),
            staleness=self.staleness(slots),
            table_size=size,
            gone=gone,
        )
