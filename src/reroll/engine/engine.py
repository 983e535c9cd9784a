"""The verbs of the engine. See the package's docstring for what it promises."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from reroll.engine.columns import (
    LEASED,
    NO_VERSION,
    OUT,
    PLACES,
    RESIDENT,
    UNCOMMITTED,
    BoolArray,
    FloatArray,
    IntArray,
)
from reroll.engine.ledger import Amount
from reroll.engine.moves import NOBODY, Moves
from reroll.engine.selectors.selector import Picks, Selector
from reroll.engine.task import (
    COMPLETED,
    EXPIRED,
    REJECTED,
    RETURNING,
    STATUSES,
    Task,
)
from reroll.errors import InvalidArgument, WouldBlock


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


class Engine(Moves):
    """Rows of all tasks, and one seeded generator: the same seed and the same calls give the same picks."""

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
        if replace and getattr(task.completed.sampler, "by_chance", False):
            return len(task.completed) > 0 and task.can_sample(n)
        return self.available(task, COMPLETED, n) >= n

    def staleness(self, slots: IntArray) -> IntArray:
        """Return staleness as of the steps of the tasks: derived where there are versions, else as told."""
        columns = self.columns
        steps = np.array([NO_VERSION if t.step is None else t.step for t in self.tasks.values()], np.int64)
        step, version = steps[columns.task[slots]], columns.version[slots]
        derived = (step != NO_VERSION) & (version != NO_VERSION)
        distance = step - version - 1
        if any(task.rewound for task in self.tasks.values()):
            distance = np.where(self.is_ahead(slots), np.abs(distance), distance)
        result: IntArray = np.where(derived, distance, columns.staleness[slots])
        return result

    def is_ahead(self, slots: IntArray) -> BoolArray:
        """Return which rows were here at the last rewind of their task: their versions may be of weights that were lost."""
        rewound = np.array([task.rewound for task in self.tasks.values()], np.int64)
        found: BoolArray = self.columns.timestamp[slots] <= rewound[self.columns.task[slots]]
        return found

    def resident(self) -> IntArray:
        """Return the slots of all rows that are in a pool, by uid. O(rows)."""
        alive = self.columns.alive()
        found: IntArray = alive[self.columns.place[alive] == RESIDENT]
        return found

    def insert(
        self,
        task: Task,
        values: Mapping[str, float],
        status: int = COMPLETED,
        *,
        admitted: bool = False,
        group_id: Any = None,
    ) -> Inserted:
        """Insert a group; its columns are `values`. COMPLETED ones wait: WouldBlock while limiter or room forbid it.

        `admitted` says that it was decided before that this one may enter.
        Overflow is dealt with in the same step: the remover chooses among the residents and the newcomer.
        """
        if status == COMPLETED and not admitted:
            self.check_admission(task, int(values.get("num_bytes", 0)))
        slot = self._write(task, values, group_id)
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
        self.retire(task, COMPLETED, np.array([slot]), "deleted")
        slot = self._write(task, values)
        self._join(task, COMPLETED, slot)
        return slot

    def insert_again(self, slot: int, values: Mapping[str, float], status: int) -> Inserted:
        """Insert a group that is out, and was admitted: same uid, one more attempt, at the end of the line."""
        columns, task = self.columns, self._task_of(slot)
        before = self.amount(np.array([slot]))
        task.rolling -= 1
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
        columns.uses[slot], columns.patched_at[slot] = 0, NO_VERSION  # what comes back is new data
        columns.place[slot] = RESIDENT
        columns.timestamp[slot] = columns.touched[slot] = self._next_tick()
        return Inserted(slot, self._settle(task, status, slot))

    def draw(self, task: Task, n: int, *, replace: bool = False, step: int | None = None) -> Drawn:
        """Sample n COMPLETED groups (all, if there are fewer) for a training step; those at the use limit leave.

        With `replace` a group may be drawn several times, but never beyond its use limit. Raises WouldBlock while the
        limiter or the sampler does not allow it.
        """
        drawn = self.pick(task, COMPLETED, n, replace=replace)
        slots, times = drawn.slots, None
        if replace:
            slots, times = np.unique(slots, return_counts=True)
            self.columns.uses[slots] += (times - 1).astype(np.int32)
            task.counters.samples += int(times.sum()) - len(slots)
        self.count_use(task, slots)
        self.note_use(task, slots, step, times)
        self.mark_trained(task, slots, "resident")
        times_sampled = self.columns.uses[drawn.slots].astype(np.int64)
        return drawn._replace(times_sampled=times_sampled, gone=self.let_go_used(task, slots, step))

    def sample(self, task: Task, n: int) -> tuple[IntArray, IntArray]:
        """Draw without telling what is known of the rows; return their slots, and which of them have no row any more."""
        slots = self._picks(task, COMPLETED, min(n, len(task.completed))).slots
        self.count_use(task, slots)
        self.mark_trained(task, slots, "resident")
        return slots, self.let_go_used(task, slots, None)

    def let_go_used(self, task: Task, slots: IntArray, step: int | None) -> IntArray:
        """Follow a new use of resident COMPLETED rows: let those go that have none left.

        Return the slots that have no row any more.
        """
        columns, limit = self.columns, task.settings.max_times_sampled
        if limit is None:
            task.completed.touch(slots)
            return NOBODY
        if limit > 1:
            used_up = columns.uses[slots] >= limit
            task.completed.touch(slots[~used_up])
            slots = slots[used_up]
        lent = columns.pending[slots] > 0
        if np.count_nonzero(lent):  # may come back: they wait for their lease to end
            self.lift(task, COMPLETED, slots[lent], LEASED)
            task.leased += int(lent.sum())
            if task.settings.remover is None:
                task.num_bytes += int(columns.num_bytes[slots[lent]].sum())
            slots = slots[~lent]
        return self.use_up(task, slots, step) if len(slots) else slots

    def take(self, task: Task, status: int, n: int, step: int | None = None) -> tuple[IntArray, IntArray]:
        """Take up to n groups out, in the sampler's order; return their slots, and which of them have no row any more.

        COMPLETED ones are consumed. Those that producers roll again are out, and keep their row. Raises WouldBlock
        while the limiter or the sampler does not allow it.
        """
        slots = self._picks(task, status, min(n, len(task.pools[status]))).slots
        if status in RETURNING:
            self.lift(task, status, slots, OUT)
            task.rolling += len(slots)
            return slots, NOBODY
        if status == COMPLETED:
            self.count_use(task, slots)
            self.forgo(task, slots)
            self.note_use(task, slots, step)
            self.mark_trained(task, slots, "resident")
            return slots, self.consume(task, slots, step)
        if task.settings.is_durable:
            self.lift(task, status, slots, UNCOMMITTED)
            return slots, NOBODY
        self.retire(task, status, slots, STATUSES[status].value)
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
            gone=NOBODY,
        )

    def delete(self, slots: IntArray) -> None:
        """Delete resident rows, and rows that are out; one never sampled is refunded to its limiter."""
        out = self.columns.place[slots] == OUT
        for task, status, part in self.by_pool(slots[~out]):
            self.refund(task, status, part)
            self.retire(task, status, part, "deleted")
        for task, _, part in self.by_pool(slots[out]):
            task.rolling -= len(part)
            self.leave(task, part, "out", "deleted")

    def lose(self, slots: IntArray) -> None:
        """Give up rows whose data are damaged, wherever they are."""
        columns = self.columns
        for task, status, rows in self.by_pool(slots):
            inside = columns.place[rows] == RESIDENT
            self.refund(task, status, rows[inside])
            self.retire(task, status, rows[inside], "lost")
            for place in (OUT, LEASED, UNCOMMITTED):
                part = rows[~inside][columns.place[rows[~inside]] == place]
                if place == UNCOMMITTED:
                    task.log.unkeep(part)
                elif status == COMPLETED:
                    task.leased -= len(part)
                    task.counters.deletes += len(part)
                elif status in RETURNING:
                    task.rolling -= len(part)
                if place == LEASED and task.settings.remover is None and status not in REJECTED:
                    task.num_bytes -= int(columns.num_bytes[part].sum())
                self.leave(task, part, PLACES[place], "lost")

    def reset(self) -> None:
        """Delete everything; limiters start anew, the ledger does not."""
        self.delete(self.columns.alive())
        for task in self.tasks.values():
            task.counters = type(task.counters)()

    def set_priorities(self, slots: IntArray, priorities: FloatArray) -> None:
        """Set the priorities, already checked, of resident rows that may be of several tasks."""
        self.columns.priority[slots] = priorities
        self.columns.touched[slots] = self.last_tick + 1 + np.arange(len(slots))
        self.last_tick += len(slots)
        for task, status, part in self.by_pool(slots):
            task.pools[status].touch(part)

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
            return NOBODY
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
        self.retire(task, status, slots, "expired")

    def _picks(self, task: Task, status: int, n: int, *, replace: bool = False) -> Picks:
        if status == COMPLETED and not task.can_sample(n):
            raise WouldBlock(f"task {task.name!r} gives no {n} groups for now")
        sampler, limit = task.pools[status].sampler, task.settings.max_times_sampled
        if not replace or limit is None:
            return sampler.pick(n, self.rng, step=task.step, replace=replace)
        return self._picks_within_limit(sampler, n, limit, task.step)

    def _picks_within_limit(self, sampler: Selector, n: int, limit: int, step: int | None) -> Picks:
        """Draw n times with replacement, but no row more often than it has uses left."""
        parts, used, away = [], dict[int, int](), list[int]()
        missing = n
        while missing and len(sampler):
            picks = sampler.pick(missing, self.rng, step=step, replace=True)
            kept, exhausted = [], set[int]()
            for place, (slot, uses) in enumerate(
                zip(picks.slots.tolist(), self.columns.uses[picks.slots].tolist(), strict=True)
            ):
                used[slot] = used.get(slot, uses)
                if used[slot] < limit:
                    used[slot] += 1
                    kept.append(place)
                if used[slot] == limit:
                    exhausted.add(slot)
            parts.append(Picks(picks.slots[kept], picks.probability[kept], picks.log_importance[kept]))
            missing -= len(kept)
            if missing:  # draw the rest from those that have uses left
                away += sorted(exhausted)
                sampler.remove(np.array(sorted(exhausted), np.int64))
        sampler.add(np.array(away, np.int64))
        return Picks.joined(parts)
