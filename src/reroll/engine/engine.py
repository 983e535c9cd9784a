"""The verbs of the engine. See the package's docstring for what it promises."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.engine.columns import (
    LEASED,
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
        self.advanced: tuple[int, int | None] = (0, None)  # as told last, for tasks that come later
        self.last_uid = 0
        self.last_tick = 0  # of the clock that orders inserts and priority updates

    # --- asking

    def task(self, name: str) -> Task:
        """Return the task of this name, made on first use."""
        found = self.tasks.get(name)
        if found is None:
            found = Task(name, len(self.tasks), self.settings_of(name), self.columns)
            found.advance(*self.advanced)
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

    def can_draw(self, task: Task, n: int, *, replace: bool) -> bool:
        """Return whether n samples can be drawn now."""
        if replace:
            return len(task.completed) > 0 and task.can_sample(n)
        return self.available(task, COMPLETED, n) >= n

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

    def insert(
        self, task: Task, values: Mapping[str, float], status: int = COMPLETED, *, admitted: bool = False
    ) -> Inserted:
        """Insert a group; its columns are `values`. COMPLETED ones wait: WouldBlock while limiter or room forbid it.

        `admitted` says that it was decided before that this one may enter.
        Overflow is dealt with in the same step: the remover chooses among the residents and the newcomer.
        """
        if status == COMPLETED and not admitted:
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
        """Insert a group that is out, and was admitted: same uid, one more attempt, at the end of the line."""
        columns, task = self.columns, self._task_of(slot)
        before = self.amount(np.array([slot]))
        task.out -= 1
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

    def draw(self, task: Task, n: int, *, replace: bool = False) -> Drawn:
        """Sample n COMPLETED groups (all, if there are fewer); those that reach the use limit leave.

        With `replace` a group may be drawn several times, but never beyond its use limit. Raises WouldBlock while the
        limiter or the sampler does not allow it.
        """
        drawn = self.pick(task, COMPLETED, n, replace=replace)
        slots = drawn.slots
        if replace:
            slots, times = np.unique(slots, return_counts=True)
            self.columns.uses[slots] += (times - 1).astype(np.int32)
            task.counters.samples += int(times.sum()) - len(slots)
        self.count_use(task, slots)
        self.mark_trained(task, slots, "resident")
        times_sampled = self.columns.uses[drawn.slots].astype(np.int64)
        return drawn._replace(times_sampled=times_sampled, gone=self.let_go_used(task, slots))

    def let_go_used(self, task: Task, slots: IntArray) -> IntArray:
        """Follow a new use of resident COMPLETED rows: let those go that have none left, and return them."""
        columns, limit = self.columns, task.settings.max_times_sampled
        used_up = np.zeros(len(slots), np.bool_) if limit is None else columns.uses[slots] >= limit
        task.completed.touch(slots[~used_up])
        lent = used_up & (columns.pending[slots] > 0)  # may come back: they wait for their lease to end
        if lent.any():
            self.lift(task, COMPLETED, slots[lent], LEASED)
            task.leased += int(lent.sum())
        gone = slots[used_up & ~lent]
        if len(gone):
            self._consume(task, gone)
        return gone

    def take(self, task: Task, status: int, n: int) -> tuple[IntArray, IntArray]:
        """Take up to n groups out, in the sampler's order; return their slots, and which of them have no row any more.

        COMPLETED ones are consumed. Those that producers roll again are out, and keep their row. Raises WouldBlock
        while the limiter or the sampler does not allow it.
        """
        slots = self._picks(task, status, min(n, len(task.pools[status]))).slots
        if status in RETURNING:
            self.lift(task, status, slots, OUT)
            task.out += len(slots)
            return slots, _NOBODY
        if status == COMPLETED:
            self.count_use(task, slots)
            self.mark_trained(task, slots, "resident")
            self._consume(task, slots)
        else:
            self._retire(task, status, slots, STATUSES[status].value)
        return slots, slots

    def pick(self, task: Task, status: int, n: int, *, replace: bool = False) -> Drawn:
        """Choose n groups, or all if there are fewer, and tell what is known of them; nothing is changed but the dice."""
        size = len(task.pools[status])
        picks = self._picks(task, status, n if replace and size else min(n, size), replace=replace)
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
            gone=_NOBODY,
        )

    def delete(self, slots: IntArray) -> None:
        """Delete resident rows, and rows that are out; one never sampled is refunded to its limiter."""
        out = self.columns.place[slots] == OUT
        for task, status, part in self.by_pool(slots[~out]):
            self.refund(task, status, part)
            self._retire(task, status, part, "deleted")
        for task, _, part in self.by_pool(slots[out]):
            task.out -= len(part)
            task.ledger.move("out", "deleted", self.amount(part))
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
        for task, status, part in self.by_pool(slots):
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
            self.refund(task, status, slots)
        held = slots[columns.pending[slots] > 0]
        if len(held):  # a trainer works on them; what comes back will be new data
            self.mark_trained(task, held, "resident")
            columns.pending[held] = 0
        before = self.amount(slots)
        for name, column in values.items():
            getattr(columns, name)[slots] = column
        columns.trained_tokens[slots] = np.minimum(columns.trained_tokens[slots], columns.num_tokens[slots])
        task.ledger.move("resident", "expired", before.minus(self.amount(slots)))
        columns.status[slots] = EXPIRED
        task.pools[EXPIRED].add(slots)

    def drop(self, task: Task, status: int, slots: IntArray) -> None:
        """Drop rows of a pool as too stale."""
        self.refund(task, status, slots)
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
        tick = self.last_tick + 1
        own = {"uid": self.last_uid + 1, "timestamp": tick, "touched": tick, "task": task.code}
        slot = self.columns.allocate({**values, **own})
        self.last_uid, self.last_tick = self.last_uid + 1, tick
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
            return self.evict_overflow(task)
        return self._trim_rejected(task) if status in REJECTED else _NOBODY

    def evict_overflow(self, task: Task) -> IntArray:
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

    def _picks(self, task: Task, status: int, n: int, *, replace: bool = False) -> Picks:
        if status == COMPLETED and not task.can_sample(n):
            raise WouldBlock(f"task {task.name!r} gives no {n} groups for now")
        limit = task.settings.max_times_sampled
        picks = task.pools[status].sampler.pick(n, self.rng, step=task.step, replace=replace)
        return (
            picks
            if not replace or limit is None
            else _within_limit(picks, limit - self.columns.uses[picks.slots])
        )

    def count_use(self, task: Task, slots: IntArray) -> None:
        """Count a use of COMPLETED rows, for the limiter too."""
        self.columns.uses[slots] += 1
        task.counters.samples += len(slots)

    def mark_trained(self, task: Task, slots: IntArray, bucket: str) -> None:
        """Tell the ledger that rows, which are in this bucket, were trained."""
        columns = self.columns
        groups = columns.trained[slots] == 0
        tokens = columns.num_tokens[slots] - columns.trained_tokens[slots]
        task.ledger.put(Amount(0, 0, int(groups.sum()), int(tokens.sum())), bucket)
        columns.trained[slots] = 1
        columns.trained_tokens[slots] = columns.num_tokens[slots]

    def _consume(self, task: Task, slots: IntArray) -> None:
        """Let COMPLETED rows of the pool go: they are used up."""
        task.counters.deletes += len(slots)
        task.consumed += len(slots)
        self._retire(task, COMPLETED, slots, "consumed")

    def refund(self, task: Task, status: int, slots: IntArray) -> None:
        """Tell the limiter of COMPLETED rows that leave otherwise than by use; as if never there, if never sampled."""
        if status == COMPLETED:
            unused = int((self.columns.uses[slots] == 0).sum())
            task.counters.inserts -= unused
            task.counters.deletes += len(slots) - unused

    def _retire(self, task: Task, status: int, slots: IntArray, bucket: str) -> None:
        """Take rows out for good."""
        held = slots[self.columns.pending[slots] > 0]
        if len(held):  # a trainer works on them
            self.mark_trained(task, held, "resident")
        self._leave_pool(task, status, slots)
        task.ledger.move("resident", bucket, self.amount(slots))
        self.columns.release(slots)

    def lift(self, task: Task, status: int, slots: IntArray, place: int) -> None:
        """Take rows out of their pool to another place; they stay rows."""
        self._leave_pool(task, status, slots)
        task.ledger.move("resident", PLACES[place], self.amount(slots))
        self.columns.place[slots] = place

    def lower(self, task: Task, status: int, slots: IntArray) -> None:
        """Let rows that were lifted be in their pool again, at their old place."""
        task.ledger.move(PLACES[LEASED], "resident", self.amount(slots))
        self.columns.place[slots] = RESIDENT
        task.pools[status].add(slots)
        if status not in REJECTED:
            task.num_bytes += int(self.columns.num_bytes[slots].sum())

    def _leave_pool(self, task: Task, status: int, slots: IntArray) -> None:
        task.pools[status].remove(slots)
        if status not in REJECTED:
            task.num_bytes -= int(self.columns.num_bytes[slots].sum())

    def amount(self, slots: IntArray) -> Amount:
        columns = self.columns
        return Amount(
            len(slots),
            int(columns.num_tokens[slots].sum()),
            int(columns.trained[slots].sum()),
            int(columns.trained_tokens[slots].sum()),
        )

    def by_pool(self, slots: IntArray) -> list[tuple[Task, int, IntArray]]:
        """Split slots by task and status, each part in the given order."""
        if not len(slots):
            return []
        tasks = list(self.tasks.values())
        pool_of = self.columns.task[slots].astype(np.int64) * len(STATUSES) + self.columns.status[slots]
        first = int(pool_of[0])
        if (pool_of == first).all():
            return [(tasks[first // len(STATUSES)], first % len(STATUSES), slots)]
        return [
            (tasks[pool // len(STATUSES)], pool % len(STATUSES), slots[pool_of == pool])
            for pool in np.unique(pool_of).tolist()
        ]


def _within_limit(picks: Picks, left: npt.NDArray[np.int32]) -> Picks:
    """Keep those draws, in order, that do not use a row more often than is left of it."""
    seen: dict[int, int] = {}
    kept = []
    for place, (slot, limit) in enumerate(zip(picks.slots.tolist(), left.tolist(), strict=True)):
        seen[slot] = seen.get(slot, 0) + 1
        if seen[slot] <= limit:
            kept.append(place)
    return Picks(picks.slots[kept], picks.probability[kept], picks.log_importance[kept])
