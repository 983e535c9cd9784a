"""The metadata of every group: one row in growable numpy columns, addressed by slot; freed slots are reused.

Any module reads columns; only modules of `engine/` write them. This module stores rows and decides nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.engine.ledger import Dropped, Measure

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NO_ROWS: IntArray = np.zeros(0, np.int64)

NO_VERSION: Final = int(np.iinfo(np.int64).min)
"""In column `version`: the tokens of the group carry no policy version."""

PLACES: Final = ("resident", "out", "leased", "uncommitted")
"""Places of a row, and the ledger buckets of the same names: in a pool; checked out by a producer; leased, and
not yet acknowledged; consumed, and kept until the trainer commits or the store has written it."""
RESIDENT, OUT, LEASED, UNCOMMITTED = range(4)

_FIRST_CAPACITY: Final = 64
_FEW: Final = 256  # up to this count numbers are added faster by Python than by numpy

# The columns, each with its dtype and the default of its rows.
_COLUMNS: Final[Mapping[str, tuple[type[np.generic], float]]] = {
    "timestamp": (np.int64, 0),  # order of arrival; a group that returns to its pool keeps it
    "touched": (np.int64, 0),  # order of the last insert or priority update
    "task": (np.int32, 0),
    "status": (np.int8, 0),
    "place": (np.int8, 0),  # index into PLACES
    "version": (np.int64, NO_VERSION),  # oldest policy version of its tokens
    "newest": (np.int64, NO_VERSION),  # newest policy version of its tokens
    "trainable": (np.int64, NO_VERSION),  # least of the newest trainable versions of its members
    "staleness": (np.int64, 0),  # declared at put; derived from `version` once the task has a step
    "priority": (np.float64, 1.0),
    "uses": (np.int32, 0),
    "attempts": (np.int32, 1),
    "deliveries": (np.int32, 0),
    "pending": (np.int32, 0),  # uses by leases that are not acknowledged; `uses` includes them
    "num_rollouts": (np.int32, 1),
    "num_tokens": (np.int64, 0),
    "num_bytes": (np.int64, 0),
    "reward_mean": (np.float64, np.nan),
    "reward_std": (np.float64, np.nan),
    "trained": (np.int8, 0),  # whether it was ever delivered to a trainer
    "trained_tokens": (np.int64, 0),  # how many of its tokens were
    "used_at": (np.int64, NO_VERSION),  # of an uncommitted row: the training step that consumed it
    "patched_at": (np.int64, NO_VERSION),  # largest training step of a patch
    "sampler_position": (np.int32, 0),  # position in the dense set of its pool's sampler
    "remover_position": (np.int32, 0),  # position in the dense set of its pool's remover
    "uid": (np.int64, 0),  # 0 marks a free slot; written last, so that a failed write leaves no row
}
_DEFAULTS: Final = tuple(default for _, default in _COLUMNS.values())


class Columns:
    """A growable table of rows addressed by slot. allocate, release: O(1) a row."""

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
        """A random number of this table, for shuffled orders."""
        self.dirty: set[int] | None = None
        """Slots of rows that were made or changed since the journal emptied the set; None: changes are not tracked."""
        self.gone: list[int] = []
        """Uids of rows that were released since then."""
        self.dropped: list[Dropped] | None = None
        """Groups that left untrained and are not yet reported; None: they are not recorded."""

    def _clear(self) -> None:
        self.group_id: dict[int, Any] = {}  # by slot; only rows that have one
        self.tags: dict[int, Mapping[str, Any]] = {}  # by slot; only rows that have tags
        # By role, by slot: the key of a row in the sorted order of this role. The column values may have changed since
        # it was added. All orders of a role share the list, since a row is in one of them at most.
        self.sort_keys: dict[str, list[Any]] = {
            role: [] for role in ("sampler", "remover", "age", "trainable", "peak")
        }
        self._free: list[int] = []
        self._end = 0  # slots from here on were never used
        self._room = _FIRST_CAPACITY  # length of every column
        for name, (dtype, _) in _COLUMNS.items():
            setattr(self, name, np.zeros(_FIRST_CAPACITY, dtype))
        self._arrays = [getattr(self, name) for name in _COLUMNS]

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

    def allocate_many(self, count: int, values: Mapping[str, Any]) -> IntArray:
        """Write new rows, of a list of values for each named column, and return their slots, as `allocate` would."""
        reused = self._free[: -count - 1 : -1]
        new = count - len(reused)
        slots = np.array([*reused, *range(self._end, self._end + new)], np.int64)
        written = {
            name: np.array(values[name], dtype) if name in values else default
            for name, (dtype, default) in _COLUMNS.items()
        }
        self._make_room(self._end + new)
        for column, value in zip(self._arrays, written.values(), strict=True):
            column[slots] = value
        del self._free[len(self._free) - len(reused) :]
        self._end += new
        self.mark(slots)
        return slots

    def mark(self, slots: IntArray) -> None:
        """Record that rows changed, for the journal."""
        if self.dirty is not None:
            self.dirty.update(slots.tolist())

    def release(self, slots: IntArray) -> None:
        """Delete rows and free their slots."""
        freed = slots.tolist()
        if self.dirty is not None:
            self.gone += self.uid[slots].tolist()
            self.dirty.difference_update(freed)
        self.uid[freed[0] if len(freed) == 1 else slots] = 0
        self._free.extend(freed)
        if self.group_id or self.tags:
            for slot in freed:
                self.group_id.pop(slot, None)
                self.tags.pop(slot, None)

    def alive(self) -> IntArray:
        """Return the slots of all rows, by uid. O(rows)."""
        slots = np.flatnonzero(self.uid[: self._end])
        return slots[np.argsort(self.uid[slots], kind="stable")]

    def measure(self, slots: IntArray) -> Measure:
        """Return the sums over rows that the ledger counts."""
        if len(slots) == 1:
            slot = slots.item()
            tokens, trained = self.num_tokens.item(slot), self.trained.item(slot)
            return Measure(1, tokens, trained, self.trained_tokens.item(slot), self.num_bytes.item(slot))
        columns = (self.num_tokens, self.trained, self.trained_tokens, self.num_bytes)
        if len(slots) > _FEW:
            return Measure(len(slots), *(int(column[slots].sum()) for column in columns))
        return Measure(len(slots), *(sum(column[slots].tolist()) for column in columns))

    def rows(self, slots: IntArray) -> dict[str, Any]:
        """Return copies of the columns at these slots."""
        return {
            **{name: getattr(self, name)[slots] for name in _COLUMNS},
            "group_id": [self.group_id.get(slot) for slot in slots.tolist()],
            "tags": [self.tags.get(slot) for slot in slots.tolist()],
        }

    def restore(self, rows: Mapping[str, Any]) -> None:
        """Replace all rows by `rows`, which get the slots 0, 1, ..."""
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

        Enlarging all columns in one call would stall it (50 ms at a million rows). So when few rows are left, each
        call enlarges one column ahead of need.
        """
        if rows > self._room - 2 * len(_COLUMNS):
            wanted = max(self._room * 3 // 2, rows)
            for index, (name, (dtype, _)) in enumerate(_COLUMNS.items()):
                old = getattr(self, name)
                if len(old) < wanted:
                    new = np.zeros(wanted, dtype)
                    new[: len(old)] = old
                    setattr(self, name, new)
                    self._arrays[index] = new
                    if rows <= self._room:
                        return
            self._room = wanted
