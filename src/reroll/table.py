"""Table: a thread-safe table of items with sampler, remover and rate limiter, in the vocabulary of DeepMind Reverb.

A thin shell around the engine: this module holds payloads, locks and waits, and decides nothing. Waiters are woken, in
order of arrival, by the call that makes their turn possible; nothing polls.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from reroll.engine.engine import Engine
from reroll.engine.ledger import Amount
from reroll.engine.limits import Limiter, MinSize, Queue, Stack, limiter_of
from reroll.engine.rows import IntArray
from reroll.engine.selectors.selector import SelectorSpec
from reroll.engine.selectors.specs import Fifo, Freshest, Lifo, Mixture, Stalest, selector_spec
from reroll.engine.state import restore, state_of
from reroll.engine.task import TaskSettings, checked_priority
from reroll.errors import Closed, InvalidArgument, InvalidConfig, UnknownUid
from reroll.sample import Sample, sample_infos
from reroll.waiting import Guard, ThreadWaits, deadline_of

_TASK = "table"
_INSERT, _SAMPLE = "insert", "sample"  # the queues of waiters
_NOBODY: IntArray = np.zeros(0, np.int64)


class TableInfo(NamedTuple):
    """A table at one moment."""

    size: int
    max_size: int
    sampler: SelectorSpec
    remover: SelectorSpec | None
    max_times_sampled: int | None
    rate_limiter: Limiter
    inserts: int
    samples: int
    deletes: int
    waiting_inserts: int
    waiting_samples: int
    ledger: Mapping[str, Amount]


class Table:
    """Items under keys, sampled and evicted by selectors, held to a rate limiter.

    Args:
        max_size: how many items fit.
        sampler: who is sampled next: a selector such as `Uniform()`, or its name.
        remover: which item is evicted when the table is full; None: none, inserts wait for room.
        max_times_sampled: an item leaves after this number of samples; None: never.
        rate_limiter: when inserts and samples have to wait; None: `MinSize(1)`.
        seed: the same seed and the same calls give the same samples; None: random.

    Raises InvalidConfig (a ValueError) for what can never proceed.

    """

    def __init__(
        self,
        max_size: int,
        sampler: SelectorSpec | str,
        remover: SelectorSpec | str | None,
        max_times_sampled: int | None = 1,
        rate_limiter: Limiter | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        if max_size is None:
            raise InvalidConfig("max_size must be an integer of at least 1; a table is always bounded")
        self._settings = TaskSettings(
            capacity=max_size,
            sampler=_for_table(sampler),
            remover=None if remover is None else _for_table(remover),
            max_times_sampled=max_times_sampled,
            limiter=MinSize(1) if rate_limiter is None else limiter_of(rate_limiter),
        )
        self._largest_sample = _largest_sample(self._settings)
        self._engine = Engine(lambda _: self._settings, seed=seed)
        self._task = self._engine.task(_TASK)
        self._slot_of: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []  # by slot
        self._data: list[Any] = []  # by slot
        self._guard = Guard("the table")
        self._waits = ThreadWaits(self._guard)
        self._shutdown = False

    @classmethod
    def queue(cls, size: int) -> "Table":
        """Return a first-in, first-out queue of bounded size; each item is sampled once.

        Args:
            size: largest number of items; inserts wait for room.

        """
        return cls(size, Fifo(), Fifo(), 1, Queue(size))

    @classmethod
    def stack(cls, size: int) -> "Table":
        """Return a last-in, first-out stack of bounded size; each item is sampled once.

        Args:
            size: largest number of items; inserts wait for room.

        """
        return cls(size, Lifo(), Lifo(), 1, Stack(size))

    # --- verbs that may wait

    def insert(self, key: Hashable, data: Any, priority: float = 1.0, timeout: float | None = None) -> None:
        """Insert an item, once the limiter allows it and there is room; an existing key is replaced at once.

        Args:
            key: identifies the item.
            data: any object; the table does not look inside.
            priority: for samplers and removers that use priorities.
            timeout: seconds to wait; None: without limit.

        Raises:
            WaitTimeout: the timeout passed; the item was not and will not be stored.
            Closed: the table was shut down; the item was not stored.

        """
        values = {"priority": checked_priority(priority)}
        hash(key)  # a key that cannot be one is refused here, not half-way
        deadline = deadline_of(timeout)
        with self._guard:
            if key not in self._slot_of:
                self._wait(
                    _INSERT, lambda: key in self._slot_of or self._engine.can_insert(self._task), deadline
                )
            if self._shutdown:
                raise Closed("the table was shut down; this item was not stored")
            evicted = _NOBODY
            if key in self._slot_of:
                slot = self._engine.replace(self._slot_of[key], values)
            else:
                slot, evicted = self._engine.insert(self._task, values)
            self._store(slot, key, data)
            self._drop(evicted)
            self._waits.wake()

    def sample(self, n: int, timeout: float | None = None, *, replace: bool = False) -> list[Any] | None:
        """Sample n distinct items, or all if there are fewer, once the limiter allows it.

        Args:
            n: number of items.
            timeout: seconds to wait; None: without limit.
            replace: draw exactly n times with replacement, within the use limit of each item; for random samplers.

        Returns:
            The data of the items; None after shutdown.

        Raises:
            WaitTimeout: the timeout passed.
            InvalidArgument: the limiter can never allow n samples.

        """
        deadline = deadline_of(timeout)
        with self._guard:
            if not self._wait_to_sample(n, deadline, replace=replace):
                return None
            if replace:
                drawn = self._engine.draw(self._task, n, replace=True)
                slots, gone = drawn.slots, drawn.gone
            else:
                slots, gone = self._engine.sample(self._task, n)
            data = [self._data[slot] for slot in slots.tolist()]
            self._drop(gone)
            self._waits.wake()
            return data

    def sample_items(
        self, n: int, timeout: float | None = None, *, replace: bool = False
    ) -> list[Sample] | None:
        """Sample as `sample` does, and return each item with the information of its draw.

        Args:
            n: number of items.
            timeout: seconds to wait; None: without limit.
            replace: draw exactly n times with replacement, within the use limit of each item; for random samplers.

        Returns:
            The samples; None after shutdown.

        Raises:
            WaitTimeout: the timeout passed.
            InvalidArgument: the limiter can never allow n samples.

        """
        deadline = deadline_of(timeout)
        with self._guard:
            if not self._wait_to_sample(n, deadline, replace=replace):
                return None
            drawn = self._engine.draw(self._task, n, replace=replace)
            slots = drawn.slots.tolist()
            keys, data = [self._keys[slot] for slot in slots], [self._data[slot] for slot in slots]
            self._drop(drawn.gone)
            self._waits.wake()
        return list(map(Sample, data, sample_infos(keys, drawn)))

    # --- verbs that never wait

    def get(self, keys: Iterable[Hashable]) -> list[Any]:
        """Return the data of items by key, in the order of `keys`; no use is counted.

        Args:
            keys: keys of items.

        Raises:
            UnknownUid: the table does not hold a key; a KeyError that names the first one.

        """
        wanted = _collection(keys, "get")
        with self._guard:
            for key in wanted:
                if key not in self._slot_of:
                    raise UnknownUid(
                        f"the table holds no item under key {key!r}; `keys()` lists the keys it holds"
                    )
            return [self._data[self._slot_of[key]] for key in wanted]

    def update_priorities(self, priorities: Mapping[Any, float]) -> list[Any]:
        """Set priorities by key.

        Args:
            priorities: new priority of each key.

        Returns:
            The keys that the table does not hold.

        Raises:
            InvalidPriority: a priority is negative, NaN, infinite or not a number; nothing was changed.

        """
        if not isinstance(priorities, Mapping):
            raise InvalidArgument(f"priorities must be a mapping of keys to numbers, not {priorities!r}")
        checked = {key: checked_priority(value, f"priority of {key!r}") for key, value in priorities.items()}
        with self._guard:
            known = [key for key in checked if key in self._slot_of]
            self._engine.set_priorities(
                self._slots(known), np.array([checked[key] for key in known], np.float64)
            )
            self._waits.wake()
            return [key for key in checked if key not in self._slot_of]

    def delete(self, keys: Iterable[Hashable]) -> int:
        """Delete items by key; unknown keys are skipped.

        Args:
            keys: keys of items.

        Returns:
            The number of deleted items.

        """
        wanted = dict.fromkeys(_collection(keys, "delete"))
        with self._guard:
            slots = self._slots([key for key in wanted if key in self._slot_of])
            self._engine.delete(slots)
            self._drop(slots)
            self._waits.wake()
            return len(slots)

    def reset(self) -> None:
        """Delete all items; the limiter starts anew."""
        with self._guard:
            self._drop(self._engine.columns.alive())
            self._engine.reset()
            self._waits.wake()

    def shutdown(self) -> None:
        """Wake every waiter: samples return None, inserts raise Closed. What is stored stays until it is deleted."""
        with self._guard:
            self._shutdown = True
            self._waits.wake()

    @property
    def is_shutdown(self) -> bool:
        """Whether `shutdown` was called."""
        return self._shutdown

    def can_insert(self, n: int = 1) -> bool:
        """Return whether n inserts could proceed now.

        Args:
            n: number of inserts.

        Raises:
            InvalidArgument: n is below 1.

        """
        _check_count(n)
        with self._guard:
            return self._engine.can_insert(self._task, n)

    def can_sample(self, n: int = 1) -> bool:
        """Return whether `sample(n)` would return at once.

        Args:
            n: number of samples; clamped to the size before the limiter is asked.

        Raises:
            InvalidArgument: n is below 1.

        """
        _check_count(n)
        with self._guard:
            return self._can_sample(n)

    @property
    def rate_limiter(self) -> Limiter:
        """The limiter; assigning another one keeps the counters and wakes who can go on."""
        return self._settings.limiter

    @rate_limiter.setter
    def rate_limiter(self, limiter: Limiter) -> None:
        with self._guard:
            settings = replace(self._settings, limiter=limiter_of(limiter))
            self._settings = self._task.settings = settings
            self._largest_sample = _largest_sample(settings)
            self._waits.wake()

    @property
    def info(self) -> TableInfo:
        """Size, settings, counters, waiters and ledger, at one moment."""
        with self._guard:
            settings, counters = self._settings, self._task.counters
            return TableInfo(
                size=len(self._slot_of),
                max_size=settings.capacity or 0,
                sampler=settings.sampler,
                remover=settings.remover,
                max_times_sampled=settings.max_times_sampled,
                rate_limiter=settings.limiter,
                inserts=counters.inserts,
                samples=counters.samples,
                deletes=counters.deletes,
                waiting_inserts=self._waits.waiting(_INSERT),
                waiting_samples=self._waits.waiting(_SAMPLE),
                ledger=self._task.ledger.amounts(),
            )

    def keys(self) -> list[Any]:
        """Return all keys, the oldest insert first."""
        with self._guard:
            return [self._keys[slot] for slot in self._engine.columns.alive().tolist()]

    def __len__(self) -> int:
        with self._guard:
            return len(self._slot_of)

    def __contains__(self, key: object) -> bool:
        with self._guard:
            return key in self._slot_of

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on with the same samples; items by reference."""
        with self._guard:
            alive = self._engine.columns.alive().tolist()
            return {
                "engine": state_of(self._engine),
                "keys": [self._keys[slot] for slot in alive],
                "data": [self._data[slot] for slot in alive],
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned.

        Args:
            state: of a table with the same selectors.

        Raises:
            InvalidConfig: the state is of other selectors; nothing was changed.

        """
        keys, data = list(state["keys"]), list(state["data"])
        with self._guard:
            if len(keys) > (self._settings.capacity or 0):
                raise InvalidConfig(
                    f"{len(keys)} items were saved, but max_size is {self._settings.capacity}; raise it"
                )
            restore(self._engine, state["engine"])
            self._task = self._engine.task(_TASK)
            self._keys, self._data = keys, data
            self._slot_of = {key: slot for slot, key in enumerate(self._keys)}
            self._waits.wake()

    # --- inside; all under the lock

    def _wait_to_sample(self, n: int, deadline: float | None, *, replace: bool) -> bool:
        """Return True when n samples are allowed, False after shutdown. Raises InvalidArgument if that can never be."""
        _check_count(n)
        self._wait(
            _SAMPLE,
            lambda: self._can_sample(n, replace=replace) or self._is_impossible(n, replace=replace),
            deadline,
        )
        if self._shutdown:
            return False
        if self._is_impossible(n, replace=replace):
            raise InvalidArgument(
                f"sample({n}) could wait for ever: {self._settings.limiter} never allows more than "
                f"{self._largest(replace=replace):g} samples at once; ask for fewer or widen its window"
            )
        return True

    def _can_sample(self, n: int, *, replace: bool = False) -> bool:
        return self._task.can_sample(self._asked(n, replace=replace))

    def _is_impossible(self, n: int, *, replace: bool) -> bool:
        return self._asked(n, replace=replace) > self._largest(replace=replace)

    def _asked(self, n: int, *, replace: bool) -> int:
        """Return how many samples the limiter is asked for: n, clamped to the size unless items may be drawn twice."""
        size = len(self._task.completed)
        return n if replace and size and self._is_by_chance else min(n, size)

    def _largest(self, *, replace: bool) -> float:
        return self._settings.largest_sample if replace and self._is_by_chance else self._largest_sample

    @property
    def _is_by_chance(self) -> bool:
        return getattr(self._task.completed.sampler, "by_chance", False)

    def _wait(self, what: str, possible: Callable[[], bool], deadline: float | None) -> None:
        """Wait until it is possible, or the table is shut down."""
        self._waits.block(
            [what],
            lambda: self._shutdown or possible(),
            deadline,
            lambda: (
                f"{what} timed out; nothing was changed. The table holds {len(self._slot_of)} of "
                f"{self._settings.capacity} items; {self._task.counters}, {self._settings.limiter}"
            ),
        )

    def _slots(self, keys: list[Any]) -> IntArray:
        return np.array([self._slot_of[key] for key in keys], np.int64)

    def _store(self, slot: int, key: Hashable, data: Any) -> None:
        if slot == len(self._keys):
            self._keys.append(key)
            self._data.append(data)
        else:
            self._keys[slot], self._data[slot] = key, data
        self._slot_of[key] = slot

    def _drop(self, slots: IntArray) -> None:
        for slot in slots.tolist():
            del self._slot_of[self._keys[slot]]
            self._keys[slot] = self._data[slot] = None


def _largest_sample(settings: TaskSettings) -> float:
    """Return the largest n that can ever be sampled; infinite where n is clamped to what the limiter allows."""
    spi, min_size, _, max_diff = settings.limiter.window
    size: float = settings.capacity or 0
    if settings.max_times_sampled is not None and settings.max_times_sampled <= spi:
        size = min(size, max(max_diff, min_size))  # every item has a use left, so more cannot be there
    largest = settings.largest_sample
    return math.inf if largest >= size else largest


def _for_table(selector: SelectorSpec | str) -> SelectorSpec:
    spec = selector_spec(selector)
    if isinstance(spec, Stalest | Freshest | Mixture):
        raise InvalidConfig(
            f"{spec.type} is for buffers: it needs policy versions or fresh groups, which a table does not know; "
            "use ReplayBufferConfig(...).build(), or LeastUsed() here"
        )
    return spec


def _check_count(n: object) -> None:
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 1:
        raise InvalidArgument(f"n must be an integer of at least 1, not {n!r}")


def _collection(keys: Iterable[Hashable], verb: str) -> list[Hashable]:
    if isinstance(keys, str | bytes):
        raise InvalidArgument(f"{verb} takes several keys; for one: {verb}([{keys!r}])")
    return list(keys)
