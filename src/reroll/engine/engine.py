"""The verbs of the engine. See the package's docstring for what it promises."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from reroll.engine.columns import NO_VERSION, Columns, FloatArray, IntArray
from reroll.engine.ledger import Amount
from reroll.engine.selectors.selector import Picks
from reroll.engine.task import COMPLETED, STATUSES, Task, TaskSettings
from reroll.errors import InvalidArgument, WouldBlock

FORMAT = 1
"""Version of what `Engine.state` returns."""


class Inserted(NamedTuple):
    """What an insert did."""

    slot: int
    """The row, unless it is among `evicted`."""
    evicted: IntArray
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
    left: IntArray
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
        self.columns = Columns()
        self.tasks: dict[str, Task] = {}
        self._by_code: list[Task] = []
        self._settings_of = settings_of
        self._max_bytes = max_bytes
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._last_uid = 0
        self._tick = 0

    # --- asking

    def task(self, name: str) -> Task:
        """Return the task of this name, made on first use."""
        found = self.tasks.get(name)
        if found is None:
            found = Task(name, len(self._by_code), self._settings_of(name), self.columns)
            self.tasks[name] = found
            self._by_code.append(found)
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all resident payloads."""
        return sum(task.num_bytes for task in self._by_code)

    def can_insert(self, task: Task, k: int = 1, num_bytes: int = 0) -> bool:
        """Return whether k COMPLETED groups of together `num_bytes` may be inserted now."""
        return task.can_insert(k) and (task.settings.remover is not None or self._fits(num_bytes))

    # --- changing

    def insert(self, task: Task, values: Mapping[str, float]) -> Inserted:
        """Insert a COMPLETED group; its columns are `values`. Raises WouldBlock while limiter or room do not allow it.

        Overflow is dealt with in the same step: the remover chooses among the residents and the newcomer.
        """
        num_bytes = int(values.get("num_bytes", 0))
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise InvalidArgument(
                f"a group of {num_bytes} bytes can never fit into max_bytes={self._max_bytes}"
            )
        if not self.can_insert(task, 1, num_bytes):
            raise WouldBlock(f"task {task.name!r} takes no more groups for now")
        slot = self._write(task, values)
        task.counters.inserts += 1
        return Inserted(slot, self._evict_overflow(task))

    def replace(self, slot: int, values: Mapping[str, float]) -> int:
        """Put a new group in place of one: no insert and no delete for the limiter; return its slot."""
        task = self._by_code[self.columns.task[slot]]
        self._retire(task, COMPLETED, np.array([slot]), "deleted")
        return self._write(task, values)

    def draw(self, task: Task, n: int) -> Drawn:
        """Sample n COMPLETED groups (all, if there are fewer); those that reach the use limit leave.

        Raises WouldBlock while the limiter or the sampler does not allow it.
        """
        pool, columns = task.completed, self.columns
        size = len(pool)
        count = min(n, size)
        if not task.can_sample(count):
            raise WouldBlock(f"task {task.name!r} gives no {count} samples for now")
        picks = pool.sampler.pick(count, self._rng, step=task.step)
        slots = picks.slots
        uses = columns.uses[slots]
        unused = slots[uses == 0]
        task.ledger.train("resident", Amount(len(unused), int(columns.num_tokens[unused].sum())))
        columns.uses[slots] = uses + 1
        task.counters.samples += count
        limit = task.settings.max_times_sampled
        done = uses + 1 >= limit if limit is not None else np.zeros(count, np.bool_)
        drawn = self._describe(task, picks, size, slots[done])
        pool.touch(slots[~done])
        if done.any():
            task.counters.deletes += int(done.sum())
            self._retire(task, COMPLETED, slots[done], "consumed")
        return drawn

    def set_priorities(self, slots: IntArray, priorities: FloatArray) -> None:
        """Set the priorities, already checked, of rows that may be of several tasks."""
        self.columns.priority[slots] = priorities
        self.columns.touched[slots] = self._tick + 1 + np.arange(len(slots))
        self._tick += len(slots)
        for task, status, part in self._by_pool(slots):
            task.pools[status].touch(part)

    def delete(self, slots: IntArray) -> None:
        """Delete rows; one that was never sampled is refunded to its limiter."""
        for task, status, part in self._by_pool(slots):
            if status == COMPLETED:
                unused = int((self.columns.uses[part] == 0).sum())
                task.counters.inserts -= unused
                task.counters.deletes += len(part) - unused
            self._retire(task, status, part, "deleted")

    def reset(self) -> None:
        """Delete everything; limiters start anew, the ledger does not."""
        self.delete(self.columns.alive())
        for task in self._by_code:
            task.counters = type(task.counters)()

    # --- state

    def state(self) -> dict[str, Any]:
        """Return everything, as plain values and arrays, such that `restore` continues with the same picks. O(rows)."""
        alive = self.columns.alive()
        row_of = np.full(int(alive.max(initial=-1)) + 1, -1, np.int64)
        row_of[alive] = np.arange(len(alive))
        return {
            "format": FORMAT,
            "last_uid": self._last_uid,
            "tick": self._tick,
            "rng": _rng_state(self._rng),
            "rows": self.columns.rows(alive),
            # Saved without gaps, row r is at slot r when restored.
            "tasks": {task.name: _translated(task.state(), row_of) for task in self._by_code},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what `state` told. Raises InvalidArgument or InvalidConfig, and changes nothing, if it does not fit."""
        if state.get("format") != FORMAT:
            raise InvalidArgument(
                f"cannot restore format {state.get('format')!r}; this version reads {FORMAT}"
            )
        columns = Columns()
        columns.restore(state["rows"])
        tasks = [
            Task(name, code, self._settings_of(name), columns) for code, name in enumerate(state["tasks"])
        ]
        for task in tasks:
            task.restore(state["tasks"][task.name])
        rng = np.random.Generator(np.random.PCG64(0))
        _restore_rng(rng, state["rng"])
        self.columns, self._rng, self._by_code = columns, rng, tasks
        self.tasks = {task.name: task for task in tasks}
        self._last_uid, self._tick = state["last_uid"], state["tick"]

    # --- inside

    def _fits(self, num_bytes: int) -> bool:
        return self._max_bytes is None or self.num_bytes + num_bytes <= self._max_bytes

    def _write(self, task: Task, values: Mapping[str, float]) -> int:
        """Make a COMPLETED row; the pool and the ledger have it, the limiter is not told."""
        self._last_uid += 1
        self._tick += 1
        slot = self.columns.allocate(
            {
                **values,
                "uid": self._last_uid,
                "timestamp": self._tick,
                "touched": self._tick,
                "task": task.code,
                "status": COMPLETED,
            }
        )
        task.completed.add(np.array([slot]))
        task.num_bytes += int(self.columns.num_bytes[slot])
        task.ledger.put(Amount(1, int(self.columns.num_tokens[slot])))
        return slot

    def _evict_overflow(self, task: Task) -> IntArray:
        evicted = []
        capacity = task.settings.capacity
        while capacity is not None and len(task.completed) > capacity:
            evicted.append(self._evict_one(task))
        while not self._fits(
            0
        ):  # whoever holds the most gives way, so that a fast task cannot starve a slow one
            evicted.append(self._evict_one(max(self._evictable(), key=lambda other: other.num_bytes)))
        return np.concatenate(evicted) if evicted else np.zeros(0, np.int64)

    def _evictable(self) -> list[Task]:
        return [task for task in self._by_code if task.completed.remover is not None and len(task.completed)]

    def _evict_one(self, task: Task) -> IntArray:
        remover = task.completed.remover
        assert remover is not None  # noqa: S101  (put waits for room where nobody may be evicted)
        slots = remover.pick(1, self._rng, step=task.step).slots
        task.counters.deletes += 1
        self._retire(task, COMPLETED, slots, "evicted")
        return slots

    def _retire(self, task: Task, status: int, slots: IntArray, bucket: str) -> None:
        """Take rows out for good."""
        columns = self.columns
        task.pools[status].remove(slots)
        tokens, trained = columns.num_tokens[slots], columns.uses[slots] > 0
        amount = Amount(len(slots), int(tokens.sum()), int(trained.sum()), int(tokens[trained].sum()))
        task.ledger.move("resident", bucket, amount)
        task.num_bytes -= int(columns.num_bytes[slots].sum())
        columns.release(slots)

    def _by_pool(self, slots: IntArray) -> list[tuple[Task, int, IntArray]]:
        """Split slots by the pool they are in, each part in the given order."""
        pool_of = self.columns.task[slots].astype(np.int64) * len(STATUSES) + self.columns.status[slots]
        return [
            (self._by_code[pool // len(STATUSES)], pool % len(STATUSES), slots[pool_of == pool])
            for pool in np.unique(pool_of).tolist()
        ]

    def _staleness(self, task: Task, slots: IntArray) -> IntArray:
        """Return staleness as of the task's step: derived where there are versions, else as told."""
        told = self.columns.staleness[slots]
        if task.step is None:
            return told
        versions = self.columns.version[slots]
        return np.where(versions == NO_VERSION, told, task.step - versions - 1)

    def _describe(self, task: Task, picks: Picks, size: int, left: IntArray) -> Drawn:
        columns, slots = self.columns, picks.slots
        return Drawn(
            slots=slots,
            uid=columns.uid[slots],
            priority=columns.priority[slots],
            probability=picks.probability,
            weight=picks.weights(),
            times_sampled=columns.uses[slots].astype(np.int64),
            staleness=self._staleness(task, slots),
            table_size=size,
            left=left,
        )


def _translated(state: Any, row_of: IntArray) -> Any:
    """Replace slots by row numbers in a nested state; all arrays in it hold slots."""
    if isinstance(state, Mapping):
        return {name: _translated(value, row_of) for name, value in state.items()}
    if isinstance(state, list):
        return [_translated(value, row_of) for value in state]
    return row_of[state] if isinstance(state, np.ndarray) else state


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
