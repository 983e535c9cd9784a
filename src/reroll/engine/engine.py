"""The verbs of the engine. The docstring of the package states its guarantees."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from reroll.engine import moves
from reroll.engine.ledger import Spot
from reroll.engine.moves import READY
from reroll.engine.rows import (
    LEASED,
    NO_ROWS,
    NO_VERSION,
    OUT,
    RESIDENT,
    UNCOMMITTED,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
)
from reroll.engine.selectors.selector import Picks, Selector
from reroll.engine.task import COMPLETED, EXPIRED, REJECTED, RETURNING, STATUSES, Task, TaskSettings
from reroll.engine.uses import Use
from reroll.errors import InvalidArgument, WouldBlock

_MAX_NAMED: Final = 256
"""The number of tasks without a group that are remembered."""

Steps = Mapping[str, int | None]
"""By task: the training step that rows were leased for."""


class Inserted(NamedTuple):
    """Result of an insert."""

    slot: int
    """The row, unless it is among `gone`."""
    gone: IntArray
    """Slots of rows that had to leave; their payloads can be dropped."""


class InsertedMany(NamedTuple):
    """Result of an insert of several groups."""

    slots: IntArray
    """The rows, in the given order; some may be among `gone`."""
    uids: Sequence[int]
    gone: IntArray


class Drawn(NamedTuple):
    """Result of a draw: rows, and their metadata at this moment."""

    slots: IntArray
    uid: IntArray
    priority: FloatArray
    probability: FloatArray
    weight: FloatArray
    times_sampled: IntArray
    staleness: IntArray
    table_size: int
    """Rows in the pool before the draw."""
    gone: IntArray
    """Slots of rows that the draw used up; their payloads can be dropped after delivery."""

    def select(self, places: Sequence[int]) -> "Drawn":
        """Return the draw of these places."""
        columns = {name: getattr(self, name)[places] for name in self._fields[:-2]}
        return self._replace(**columns)


class LeaseOutcome(NamedTuple):
    """What became of leased rows."""

    gone: IntArray
    """Slots without a row now."""
    out: IntArray
    """Rows that are checked out now."""
    back: IntArray
    """Rows that are back in their pool."""


class Engine:
    """Rows of all tasks, and one seeded generator: the same seed and the same calls give the same picks."""

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
        self._recently_named: deque[Task] = deque(maxlen=_MAX_NAMED)
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.advanced: tuple[int, int | None] = (0, None)  # the last `advance`, for tasks that come later
        self.version: int | None = None
        """Version of the weights that serve, as of the last `advance` or `rewind`; None before the first."""
        self.sync_interval = 1
        """Training steps between two updates of the weights, unless `advance` names a version."""
        self.last_uid = 0
        self.uid_shard = (0, 1)
        """Index of this shard, and number of shards: no two shards give the same uid."""
        self.last_use = 0  # number of the last use in a log
        self.last_tick = 0  # of the clock that orders inserts and priority updates

    # --- tasks

    def task(self, name: str) -> Task:
        """Return the task of this name, created on first use."""
        return self.tasks.get(name) or self.admit(self.named(name))

    def named(self, name: str) -> Task:
        """Return the task of this name; a new one is remembered, but becomes part of the engine only by `admit`.

        So a call with a misspelled name leaves no task behind.
        """
        found = self.tasks.get(name) or self._named.get(name)
        if found is None:
            found = Task(name, -1, self.settings_of(name), self.columns)
            found.advance(*self.advanced)
            self._named[name] = found
            self._recently_named.append(found)
        return found

    def named_tasks(self) -> list[Task]:
        """Return the remembered tasks that are not part of the engine."""
        return list(self._named.values())

    def forget_named(self) -> None:
        """Forget the remembered tasks: the engine is restored."""
        self._named.clear()
        self._recently_named.clear()

    def known_tasks(self) -> list[str]:
        """Return the names of tasks that have or had groups, or that the configuration names."""
        return sorted({*self.tasks, *self.declared})

    def admit(self, task: Task) -> Task:
        """Make a named task part of the engine."""
        if task.name not in self.tasks:
            task.code = len(self.tasks)
            task.advance(*self.advanced)
            self.tasks[task.name] = task
            self._named.pop(task.name, None)
        return self.tasks[task.name]

    # --- reads

    @property
    def num_bytes(self) -> int:
        """Bytes of all tasks that count against `max_bytes`."""
        return sum(task.num_bytes for task in self.tasks.values())

    def can_insert(self, task: Task, k: int = 1, num_bytes: int = 0) -> bool:
        """Return whether k COMPLETED groups of together `num_bytes` may be inserted now."""
        return task.can_insert(k) and (task.settings.remover is not None or self._fits(num_bytes))

    def available(self, task: Task, status: int, n: int) -> int:
        """Return how many of n groups can be delivered now; a closed limiter is like an empty pool."""
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
        """Return staleness at the steps of the tasks: derived for rows with versions, else as declared."""
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
        """Return which rows were here at the last rewind of their task: their weights may be lost."""
        rewound = np.array([task.rewound for task in self.tasks.values()], np.int64)
        found: BoolArray = self.columns.timestamp[slots] <= rewound[self.columns.task[slots]]
        return found

    def stale(self, task: Task, status: int, threshold: int | None, token_threshold: int | None) -> IntArray:
        """Return the rows of a pool whose staleness at the task's step reaches a threshold. O(found)."""
        versions, step = task.pools[status].versions, task.step
        if versions is None or step is None:
            return NO_ROWS
        return versions.stale(*(None if t is None else step - 1 - t for t in (threshold, token_threshold)))

    def by_pool(self, slots: IntArray) -> list[tuple[Task, int, IntArray]]:
        """Split slots by task and status, each part in the given order."""
        if not len(slots):
            return []
        tasks, columns = list(self.tasks.values()), self.columns
        if len(slots) == 1:
            slot = slots.item()
            return [(tasks[columns.task.item(slot)], columns.status.item(slot), slots)]
        pool_of = columns.task[slots].astype(np.int64) * len(STATUSES) + columns.status[slots]
        first = int(pool_of[0])
        if (pool_of == first).all():
            return [(tasks[first // len(STATUSES)], first % len(STATUSES), slots)]
        return [
            (tasks[pool // len(STATUSES)], pool % len(STATUSES), slots[pool_of == pool])
            for pool in np.unique(pool_of).tolist()
        ]

    def by_spot(self, slots: IntArray) -> list[tuple[Task, Spot, IntArray]]:
        """Split slots by task, status and place, each part in the given order."""
        parts = []
        for task, status, rows in self.by_pool(slots):
            places = self.columns.place[rows]
            parts += [
                (task, Spot(status, place), rows[places == place]) for place in sorted(set(places.tolist()))
            ]
        return parts

    # --- inserts

    def insert(
        self,
        task: Task,
        values: Mapping[str, float],
        status: int = COMPLETED,
        *,
        admitted: bool = False,
        group_id: Any = None,
        tags: Mapping[str, Any] | None = None,
    ) -> Inserted:
        """Insert a group with these column values.

        Raises, for a COMPLETED group that was not `admitted` before, WouldBlock while limiter or room do not allow it, and
        InvalidArgument if it can never fit. If the task overflows, the remover chooses among all rows and the new one, in the same step.
        """
        if status == COMPLETED and not admitted:
            num_bytes = int(values.get("num_bytes", 0))
            self._admit(task, 1, num_bytes, num_bytes)
        slot = self._write(task, values)
        self.describe(slot, group_id, tags)
        moves.enter(task, np.array([slot]), status)
        return Inserted(slot, self._trim(task, status))

    def insert_many(
        self,
        task: Task,
        rows: Sequence[Mapping[str, float]],
        status: int = COMPLETED,
        *,
        admitted: bool = False,
        group_ids: Sequence[Any] | None = None,
        tags: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> InsertedMany:
        """Insert groups of one task and status: all of them, or none if `insert` would raise for their number and bytes.

        All rows name the same columns. The result is that of as many calls of `insert`, but a remover by chance draws the
        evicted rows at once, among old and new ones. 64 rows cost a fourth to a sixth of 64 calls.
        """
        if not rows:
            return InsertedMany(NO_ROWS, (), NO_ROWS)
        if status == COMPLETED and not admitted:
            sizes = [int(row.get("num_bytes", 0)) for row in rows]
            self._admit(task, len(rows), max(sizes), sum(sizes))
        shard, shards = self.uid_shard
        first = self.last_uid + 1 + (shard - self.last_uid) % shards
        ticks = range(self.last_tick + 1, self.last_tick + 1 + len(rows))
        uids = range(first, first + shards * len(rows), shards)
        values = {name: [row[name] for row in rows] for name in rows[0]}
        own = {"uid": uids, "timestamp": ticks, "touched": ticks, "task": [task.code] * len(rows)}
        slots = self.columns.allocate_many(len(rows), {**values, **own})
        self.last_uid, self.last_tick = uids[-1], ticks[-1]
        for column, described in ((self.columns.group_id, group_ids), (self.columns.tags, tags)):
            column.update(
                (slot, value)
                for slot, value in zip(slots.tolist(), described or (), strict=False)
                if value is not None
            )
        moves.enter(task, slots, status)
        return InsertedMany(slots, uids, self._trim(task, status))

    def insert_again(
        self,
        slot: int,
        values: Mapping[str, float],
        status: int,
        *,
        group_id: Any = None,
        tags: Mapping[str, Any] | None = None,
    ) -> Inserted:
        """Insert a checked-out group, which was admitted: same uid, one more attempt, last in order of arrival."""
        columns, task = self.columns, self._task_of(slot)
        self.last_tick += 1
        new = {
            **values,
            "attempts": columns.attempts.item(slot) + 1,
            "timestamp": self.last_tick,
            "touched": self.last_tick,
            "uses": 0,
            "patched_at": NO_VERSION,
        }
        self.describe(slot, group_id, tags)
        source = Spot(columns.status.item(slot), OUT)
        moves.move(task, np.array([slot]), source, Spot(status, RESIDENT), new)
        return Inserted(slot, self._trim(task, status))

    def replace(self, slot: int, values: Mapping[str, float]) -> int:
        """Replace a COMPLETED row by a new one, which the limiter counts neither as insert nor as delete; return its slot."""
        task = self._task_of(slot)
        counters = task.counters.state()
        moves.leave(task, np.array([slot]), READY, "deleted")
        slot = self._write(task, values)
        moves.enter(task, np.array([slot]), COMPLETED)
        task.counters.restore(counters)
        return slot

    def check_size(self, num_bytes: int) -> None:
        """Raise InvalidArgument for a group that can never fit."""
        if self.max_bytes is not None and num_bytes > self.max_bytes:
            raise InvalidArgument(
                f"a group of {num_bytes} bytes can never fit into max_bytes={self.max_bytes}; raise it"
            )

    def check_many(self, task: Task, k: int, num_bytes: int) -> None:
        """Raise InvalidArgument for a number of COMPLETED groups that can never be inserted at once."""
        settings, limits = (
            task.settings,
            [(k, task.settings.limiter.window.largest_insert, str(task.settings.limiter))],
        )
        if settings.remover is None:
            limits += [
                (k, math.inf if settings.capacity is None else settings.capacity, "capacity"),
                (num_bytes, math.inf if self.max_bytes is None else self.max_bytes, "max_bytes"),
            ]
        for wanted, most, name in limits:
            if wanted > most:
                raise InvalidArgument(
                    f"cannot put {k} groups of task {task.name!r} at once: {wanted} is above the {most:g} that {name} allows; "
                    "put fewer groups in one call"
                )

    # --- deliveries

    def pick(self, task: Task, status: int, n: int, *, replace: bool = False) -> Drawn:
        """Choose n groups, or all if there are fewer, and return their metadata; only the generator advances."""
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
            gone=NO_ROWS,
        )

    def draw(self, task: Task, n: int, *, replace: bool = False, step: int | None = None) -> Drawn:
        """Sample n COMPLETED groups (all, if there are fewer) for a training step; groups without a use left leave.

        With `replace` a group may be drawn several times, but never beyond its use limit. Raises WouldBlock while the
        limiter or the sampler does not allow it.
        """
        drawn = self.pick(task, COMPLETED, n, replace=replace)
        slots, times = np.unique(drawn.slots, return_counts=True) if replace else (drawn.slots, None)
        gone = self._use(task, slots, step, times)
        return drawn._replace(times_sampled=self.columns.uses[drawn.slots].astype(np.int64), gone=gone)

    def sample(self, task: Task, n: int) -> tuple[IntArray, IntArray]:
        """Sample like `draw`, without metadata; return the slots of the rows, and the slots that were freed."""
        slots = self._picks(task, COMPLETED, min(n, len(task.completed))).slots
        return slots, self._use(task, slots, None)

    def take(self, task: Task, status: int, n: int, step: int | None = None) -> tuple[IntArray, IntArray]:
        """Take up to n groups, in the sampler's order; return the slots of the rows, and the slots that were freed.

        COMPLETED groups are consumed. INIT, ABORTED and EXPIRED groups are checked out, and keep their row. Raises
        WouldBlock while the limiter or the sampler does not allow it.
        """
        slots = self._picks(task, status, min(n, len(task.pools[status]))).slots
        here = Spot(status, RESIDENT)
        if status in RETURNING:
            moves.move(task, slots, here, Spot(status, OUT))
            return slots, NO_ROWS
        if status == COMPLETED:
            moves.count_use(task, slots)
            moves.credit_unused_samples(task, slots)
            self._log_use(task, slots, step)
            rows = moves.mark_trained(task, slots, READY)
            return slots, moves.consume(task, slots, RESIDENT, step, rows)
        if task.settings.is_durable:
            moves.move(task, slots, here, Spot(status, UNCOMMITTED))
            return slots, NO_ROWS
        moves.leave(task, slots, here, STATUSES[status].value)
        return slots, slots

    def undo_take(self, task: Task, status: int, slots: IntArray) -> IntArray:
        """Return taken groups of a status other than COMPLETED to their pool; return the slots of rows that had to leave."""
        place = OUT if status in RETURNING else UNCOMMITTED
        moves.move(task, slots, Spot(status, place), Spot(status, RESIDENT))
        return self._trim(task, status) if len(slots) else NO_ROWS

    # --- leases: a leased COMPLETED group counts a pending use; without a use left it is out of its pool, and no other
    # delivery sees it. Leased groups of other statuses are always out of their pool.

    def lend(self, task: Task, status: int, n: int) -> Drawn:
        """Lease n groups, or all if there are fewer. Raises WouldBlock while limiter or sampler do not allow it."""
        columns = self.columns
        drawn = self.pick(task, status, n)
        slots = hidden = drawn.slots
        columns.pending[slots] += 1
        columns.deliveries[slots] += 1
        columns.mark(slots)
        if status == COMPLETED:
            moves.count_use(task, slots)
            hidden = self._used_up(task, slots)
        moves.move(task, hidden, Spot(status, RESIDENT), Spot(status, LEASED))
        return drawn._replace(times_sampled=columns.uses[slots].astype(np.int64))

    def acknowledge(self, slots: IntArray, steps: Steps) -> LeaseOutcome:
        """Make the pending uses of leased rows count: rows without a use left are consumed, or checked out."""
        columns = self.columns
        gone, out = [NO_ROWS], [NO_ROWS]
        columns.pending[slots] -= 1
        columns.mark(slots)
        for task, status, rows in self.by_pool(slots):
            if status == COMPLETED:
                self._log_use(task, rows, steps.get(task.name))
                for place in (RESIDENT, LEASED):
                    moves.mark_trained(task, rows[columns.place[rows] == place], Spot(status, place))
            done = rows[(columns.place[rows] == LEASED) & (columns.pending[rows] == 0)]
            if status in RETURNING:
                moves.move(task, done, Spot(status, LEASED), Spot(status, OUT))
                out.append(done)
            elif status == COMPLETED:
                gone.append(moves.finish_use(task, done, LEASED, steps.get(task.name)))
            else:
                moves.leave(task, done, Spot(status, LEASED), STATUSES[status].value)
                gone.append(done)
        return LeaseOutcome(np.concatenate(gone), np.concatenate(out), NO_ROWS)

    def acknowledge_late(self, slots: IntArray, leased_as: int, steps: Steps) -> LeaseOutcome:
        """Count a use of resident rows whose lease, of groups with status `leased_as`, has expired."""
        gone, out = [NO_ROWS], [NO_ROWS]
        for task, status, rows in self.by_pool(slots):
            here = Spot(status, RESIDENT)
            if status == leased_as and status in RETURNING:
                moves.move(task, rows, here, Spot(status, OUT))
                out.append(rows)
            elif status == COMPLETED:
                gone.append(self._use(task, rows, steps.get(task.name)))
            elif leased_as == COMPLETED:  # it expired, and is rolled again all the same
                moves.mark_trained(task, rows, here)
        return LeaseOutcome(np.concatenate(gone), np.concatenate(out), NO_ROWS)

    def give_back(self, slots: IntArray, *, delivered: bool = True) -> LeaseOutcome:
        """Undo the pending uses of leased rows; rows out of their pool return to it, and others may have to leave.

        Without `delivered` the deliveries are undone too.
        """
        columns = self.columns
        gone, back = [NO_ROWS], [NO_ROWS]
        columns.pending[slots] -= 1
        if not delivered:
            columns.deliveries[slots] -= 1
        columns.mark(slots)
        pools = self.by_pool(slots)
        for task, status, rows in pools:
            if status == COMPLETED:
                moves.undo_use(task, rows, np.ones(len(rows), np.int64))
            hidden = rows[columns.place[rows] == LEASED]
            moves.move(task, hidden, Spot(status, LEASED), Spot(status, RESIDENT))
            back.append(hidden)
        gone += [self._trim(task, status) for task, status, _ in pools]  # after all rows are back
        return LeaseOutcome(np.concatenate(gone), NO_ROWS, np.concatenate(back))

    def check_out(self, slot: int) -> None:
        """Check out a group that its producer puts again, and that is leased or returned to its pool."""
        place, slots = self.columns.place.item(slot), np.array([slot])
        if place == LEASED:
            self.acknowledge(slots, {})
        elif place == RESIDENT:
            status = self.columns.status.item(slot)
            moves.move(self._task_of(slot), slots, Spot(status, RESIDENT), Spot(status, OUT))

    # --- changes

    def delete(self, slots: IntArray) -> None:
        """Delete resident and checked-out rows; the limiter counts a row that was never sampled as never inserted."""
        for task, spot, rows in self.by_spot(slots):
            moves.leave(task, rows, spot, "deleted")

    def lose(self, slots: IntArray) -> None:
        """Delete rows whose data are damaged, at any place."""
        for task, spot, rows in self.by_spot(slots):
            if spot.place == UNCOMMITTED:
                task.log.unkeep(rows)
            moves.leave(task, rows, spot, "lost")

    def drop(self, task: Task, status: int, slots: IntArray) -> None:
        """Delete rows of a pool as too stale."""
        moves.leave(task, slots, Spot(status, RESIDENT), "expired")

    def expire(self, task: Task, status: int, slots: IntArray, values: Mapping[str, IntArray]) -> None:
        """Move rows of a pool to EXPIRED and change their columns; removed tokens count as expired.

        Uid and timestamp stay, so the order does not change.
        """
        leased = slots[self.columns.pending[slots] > 0]
        moves.mark_trained(task, leased, Spot(status, RESIDENT))  # a trainer trains on them
        self.columns.pending[leased] = 0  # they return as new data
        moves.move(task, slots, Spot(status, RESIDENT), Spot(EXPIRED, RESIDENT), values, bucket="expired")

    def reset(self) -> None:
        """Delete everything; limiters start anew, the ledger does not."""
        self.delete(self.columns.alive())
        for task in self.tasks.values():
            task.counters = type(task.counters)()

    def change(self, slot: int, values: Mapping[str, float], tags: Mapping[str, Any] | None = None) -> None:
        """Write columns of a row whose payload changed, and add tags."""
        spot = Spot(self.columns.status.item(slot), self.columns.place.item(slot))
        moves.move(self._task_of(slot), np.array([slot]), spot, spot, values)
        if tags:
            self.describe(slot, tags={**self.columns.tags.get(slot, {}), **tags})

    def describe(self, slot: int, group_id: Any = None, tags: Mapping[str, Any] | None = None) -> None:
        """Set group id and tags of a row, if given."""
        if group_id is not None:
            self.columns.group_id[slot] = group_id
        if tags is not None:
            self.columns.tags[slot] = tags

    def set_priorities(self, slots: IntArray, priorities: FloatArray) -> None:
        """Set the priorities, already checked, of resident rows of any tasks."""
        self.columns.priority[slots] = priorities
        self.columns.touched[slots] = self.last_tick + 1 + np.arange(len(slots))
        self.last_tick += len(slots)
        for task, status, part in self.by_pool(slots):
            task.pools[status].touch(part)

    def clear_pool_staleness(self, task: Task, status: int) -> None:
        """Set the staleness of a pool's rows without versions to 0. O(rows that were put since the last call)."""
        versions = task.pools[status].versions
        if versions is not None:
            self.clear_declared_staleness(versions.pop_declared())

    def clear_declared_staleness(self, slots: IntArray) -> None:
        """Set the declared staleness of rows without versions to 0."""
        self.columns.staleness[slots] = 0
        self.columns.mark(slots)
        for task, status, rows in self.by_pool(slots[self.columns.place[slots] == RESIDENT]):
            task.pools[status].touch(rows)

    def keep_limits(self) -> IntArray:
        """Evict rows beyond the current limits of all tasks; return their slots."""
        gone = [NO_ROWS]
        for task in self.tasks.values():
            gone += [self.evict_overflow(task), self._trim_rejected(task)]
        return np.concatenate(gone)

    def evict_overflow(self, task: Task) -> IntArray:
        """Evict COMPLETED rows beyond the capacity of a task, and beyond `max_bytes`; return their slots."""
        gone, capacity = NO_ROWS, task.settings.capacity
        if capacity is not None and task.settings.remover is not None and len(task.completed) > capacity:
            gone = self._evict(task, len(task.completed) - capacity)
        while not self._fits(0) and (
            others := [t for t in self.tasks.values() if t.settings.remover is not None and len(t.completed)]
        ):
            # The task with the most bytes evicts, so that a fast task cannot starve a slow one.
            gone = np.append(gone, self._evict(max(others, key=lambda other: other.num_bytes), 1))
        return gone

    # --- inside

    def _task_of(self, slot: int) -> Task:
        return list(self.tasks.values())[self.columns.task.item(slot)]

    def _fits(self, num_bytes: int) -> bool:
        return self.max_bytes is None or self.num_bytes + num_bytes <= self.max_bytes

    def _admit(self, task: Task, count: int, largest: int, num_bytes: int) -> None:
        """Raise WouldBlock or InvalidArgument unless COMPLETED groups of these bytes may be inserted now."""
        self.check_size(largest)
        if not self.can_insert(task, count, num_bytes):
            raise WouldBlock(f"task {task.name!r} accepts no more groups for now")

    def _write(self, task: Task, values: Mapping[str, float]) -> int:
        """Write a new row, which has not entered a pool yet."""
        tick = self.last_tick + 1
        shard, shards = self.uid_shard
        uid = self.last_uid + 1 + (shard - self.last_uid) % shards
        own = {"uid": uid, "timestamp": tick, "touched": tick, "task": task.code}
        slot = self.columns.allocate({**values, **own})
        self.last_uid, self.last_tick = uid, tick
        return slot

    def _trim(self, task: Task, status: int) -> IntArray:
        """Evict rows that a new or returned row of this status displaces; return their slots."""
        if status == COMPLETED:
            return self.evict_overflow(task)
        return self._trim_rejected(task) if status in REJECTED else NO_ROWS

    def _evict(self, task: Task, n: int) -> IntArray:
        slots = task.completed.evictees(n, self.rng, task.step)
        moves.leave(task, slots, READY, "evicted")
        return slots

    def _trim_rejected(self, task: Task) -> IntArray:
        """Delete the oldest rejected rows beyond their capacity; return their slots."""
        pools = {status: task.pools[status] for status in REJECTED}
        gone: list[IntArray] = []
        while sum(map(len, pools.values())) > task.settings.rejected_capacity:
            oldest = {
                status: pool.sampler.pick(1, self.rng).slots for status, pool in pools.items() if len(pool)
            }
            status = min(oldest, key=lambda status: self.columns.timestamp[oldest[status][0]])
            moves.leave(task, oldest[status], Spot(status, RESIDENT), STATUSES[status].value)
            gone.append(oldest[status])
        return np.concatenate(gone) if gone else NO_ROWS

    def _log_use(self, task: Task, slots: IntArray, step: int | None, times: IntArray | None = None) -> None:
        """Log that a training step used rows, while the use may be undone."""
        if step is None or not len(slots):
            return
        if task.settings.max_uncommitted_steps:
            self.last_use += 1
            task.log.add(self.last_use, Use.of(step, self.columns, slots, times))
        else:
            task.log.finish(step)

    def _use(self, task: Task, slots: IntArray, step: int | None, times: IntArray | None = None) -> IntArray:
        """Count a use of resident COMPLETED rows, or `times`, for a training step; return the slots that were freed."""
        moves.count_use(task, slots, times)
        self._log_use(task, slots, step, times)
        rows = moves.mark_trained(task, slots, READY)
        used_up = self._used_up(task, slots)
        if not len(used_up):
            return NO_ROWS
        is_leased = self.columns.pending[used_up] > 0
        if np.count_nonzero(is_leased):  # they may return: they wait until their lease ends
            moves.move(task, used_up[is_leased], READY, Spot(COMPLETED, LEASED))
            used_up = used_up[~is_leased]
        known = rows if len(used_up) == len(slots) else None
        return moves.finish_use(task, used_up, RESIDENT, step, known)

    def _used_up(self, task: Task, slots: IntArray) -> IntArray:
        """Return the resident COMPLETED rows without a use left; update the others in their pool."""
        limit = task.settings.max_times_sampled
        if limit == 1:
            return slots
        if limit is None:
            task.completed.touch(slots)
            return NO_ROWS
        is_used_up = self.columns.uses[slots] >= limit
        task.completed.touch(slots[~is_used_up])
        return slots[is_used_up]

    def _picks(self, task: Task, status: int, n: int, *, replace: bool = False) -> Picks:
        if status == COMPLETED and not task.can_sample(n):
            raise WouldBlock(f"the limiter of task {task.name!r} allows no sample of {n} groups for now")
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
            if missing:  # draw the rest from rows that have uses left
                away += sorted(exhausted)
                sampler.remove(np.array(sorted(exhausted), np.int64))
        sampler.add(np.array(away, np.int64))
        return Picks.joined(parts)
