"""Metadata of every group as one row in growable numpy columns; freed slots are used again.

Rows are the only truth about a group. This module stores them; it never decides anything.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NO_VERSION: Final = int(np.iinfo(np.int64).min)
"""In column `version`: the group's tokens carry no policy version."""

PLACES: Final = ("resident", "out", "leased", "uncommitted")
"""Where a group with a row is: in a pool, with a producer that rolls it again, with a trainer that has not acknowledged
it, or consumed, but kept until the trainer's checkpoint holds what it learned. These are buckets of the ledger."""
RESIDENT, OUT, LEASED, UNCOMMITTED = range(4)

_FIRST_CAPACITY: Final = 64

# name: (dtype, what a row has that was not told otherwise)
_COLUMNS: Final[Mapping[str, tuple[type[np.generic], float]]] = {
    "timestamp": (np.int64, 0),  # order of arrival, kept when a group returns to its place
    "touched": (np.int64, 0),  # order of the last insert or priority update
    "task": (np.int32, 0),
    "status": (np.int8, 0),
    "place": (np.int8, 0),  # index into PLACES
    "version": (np.int64, NO_VERSION),  # oldest policy version of its tokens
    "newest": (np.int64, NO_VERSION),  # newest policy version of its tokens
    "trainable": (
        np.int64,
        NO_VERSION,
    ),  # the first member without a fresh trainable token is the one with this newest
    "staleness": (np.int64, 0),  # as told at put; derived from `version` once the task has a step
    "priority": (np.float64, 1.0),
    "uses": (np.int32, 0),
    "attempts": (np.int32, 1),
    "deliveries": (np.int32, 0),
    "pending": (np.int32, 0),  # uses by leases that are not acknowledged; `uses` counts them already
    "num_rollouts": (np.int32, 1),
    "num_tokens": (np.int64, 0),
    "num_bytes": (np.int64, 0),
    "reward_mean": (np.float64, np.nan),
    "reward_std": (np.float64, np.nan),
    "trained": (np.int8, 0),  # whether it was handed to a trainer, ever
    "trained_tokens": (np.int64, 0),  # how many of its tokens were
    "used_at": (np.int64, NO_VERSION),  # of an uncommitted row: the training step that consumed it
    "patched_at": (np.int64, NO_VERSION),  # the largest step that values of a patch were computed at
    "sampler_position": (np.int32, 0),  # where the row stands in the dense arrays of its pool's sampler
    "remover_position": (np.int32, 0),  # the same for the remover
    "uid": (np.int64, 0),  # 0 marks a free slot; written last, so that a row which cannot be written is none
}
_DEFAULTS: Final = tuple(default for _, default in _COLUMNS.values())


class Columns:
    """A growable table of rows addressed by slot; `allocate` and `release` are O(1)."""

    uid: IntArray
    timestamp: IntArray
    touched: IntArray
    task: npt.NDArray[np.int32]
    status: npt.NDArray[np.int8]
    place: npt.NDArray[np.int8]
    version: IntArray
    newest: IntArray
    trainable: IntArray
    staleness: IntArray
    priority: FloatArray
    uses: npt.NDArray[np.int32]
    attempts: npt.NDArray[np.int32]
    deliveries: npt.NDArray[np.int32]
    pending: npt.NDArray[np.int32]
    num_rollouts: npt.NDArray[np.int32]
    num_tokens: IntArray
    num_bytes: IntArray
    reward_mean: FloatArray
    reward_std: FloatArray
    trained: npt.NDArray[np.int8]
    trained_tokens: IntArray
    used_at: IntArray
    patched_at: IntArray
    sampler_position: npt.NDArray[np.int32]
    remover_position: npt.NDArray[np.int32]

    def __init__(self) -> None:
        self._clear()

        self.salt = 0
        """A random number of this table of rows, for orders that are shuffled."""
        self.dirty: set[int] | None = None
        """Slots whose row was made or changed since somebody looked; None: nobody wants to know."""
        self.gone: list[int] = []
        """The uids of rows that went since then."""

    def _clear(self) -> None:
        self.group_id: dict[int, Any] = {}  # by slot; only rows that have one
        self.tags: dict[int, Mapping[str, Any]] = {}  # the same
        # By slot: the key that a row is filed under in the sorted order of a role, for it may have changed since. All
        # orders of a role share the list, since a row is in one of them at most.
        self.filed: dict[str, list[Any]] = {
            role: [] for role in ("sampler", "remover", "age", "trainable", "peak")
        }
        self._free: list[int] = []
        self._end = 0  # slots from here on were never used
        self._room = _FIRST_CAPACITY  # what every column holds
        for name, (dtype, _) in _COLUMNS.items():
            setattr(self, name, np.zeros(_FIRST_CAPACITY, dtype))
        self._arrays = [getattr(self, name) for name in _COLUMNS]  # the same ones

    def __len__(self) -> int:
        return self._end - len(self._free)

    def allocate(self, values: Mapping[str, float]) -> int:
        """Write a new row and return its slot; columns that `values` does not name get their default."""
        slot = self._free[-1] if self._free else self._end
        self._make_room(slot + 1)
        for column, value in zip(self._arrays, map(values.get, _COLUMNS, _DEFAULTS), strict=True):
            column[slot] = value
        if self._free:
            self._free.pop()
        else:
            self._end += 1
        if self.dirty is not None:
            self.dirty.add(slot)
        return slot

    def mark(self, slots: IntArray) -> None:
        """Say that rows changed. Whoever writes columns of a row has it in its hands, or moves it in a pool: both mark."""
        if self.dirty is not None:
            self.dirty.update(slots.tolist())

    def release(self, slots: IntArray) -> None:
        """Free the slots; their rows are gone."""
        freed = slots.tolist()
        if self.dirty is not None:
            self.gone += self.uid[slots].tolist()
            self.dirty.difference_update(freed)
        self.uid[slots] = 0
        self._free.extend(freed)
        if self.group_id or self.tags:
            for slot in freed:
                self.group_id.pop(slot, None)
                self.tags.pop(slot, None)

    def alive(self) -> IntArray:
        """Return the slots of all rows, by uid. O(rows)."""
        slots = np.flatnonzero(self.uid[: self._end])
        return slots[np.argsort(self.uid[slots], kind="stable")]

    def rows(self, slots: IntArray) -> dict[str, Any]:
        """Return copies of the columns at these slots."""
        return {
            **{name: getattr(self, name)[slots] for name in _COLUMNS},
            "group_id": [self.group_id.get(slot) for slot in slots.tolist()],
            "tags": [self.tags.get(slot) for slot in slots.tolist()],
        }

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Become exactly these rows, at slots 0, 1, ..."""
        count = len(rows["uid"])
        self._clear()
        self._make_room(count)
        self._end = count
        for name in _COLUMNS:
            getattr(self, name)[:count] = rows[name]
        self.group_id = {slot: value for slot, value in enumerate(rows["group_id"]) if value is not None}
        self.tags = {slot: value for slot, value in enumerate(rows["tags"]) if value is not None}

    def _make_room(self, rows: int) -> None:
        """Hold at least `rows` rows.

        Enlarging every column at once would stall one call for all of them (50 ms at a million rows). So when few
        rows are left, each call enlarges one column ahead of need.
        """
        if rows > self._room - 2 * len(_COLUMNS):
            wanted = max(self._room * 3 // 2, rows)
            for place, (name, (dtype, _)) in enumerate(_COLUMNS.items()):
                old = getattr(self, name)
                if len(old) < wanted:
                    new = np.zeros(wanted, dtype)
                    new[: len(old)] = old
                    setattr(self, name, new)
                    self._arrays[place] = new
                    if rows <= self._room:
                        return
            self._room = wanted
