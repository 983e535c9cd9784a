"""The use log: which rows were used at which training step, kept until the trainer commits the step."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from reroll.engine.rows import NO_ROWS, Columns, IntArray
from reroll.errors import CannotRewind


class Use(NamedTuple):
    """One delivery to the trainer: rows, identified by uid and attempt, and the number of times each was used."""

    step: int
    uids: IntArray
    attempts: IntArray
    times: IntArray

    @classmethod
    def of(cls, step: int, columns: Columns, slots: IntArray, times: IntArray | None = None) -> "Use":
        """Return a use of rows as they are now: once, or `times`."""
        counts = np.ones(len(slots), np.int64) if times is None else times.astype(np.int64)
        return cls(step, columns.uid[slots], columns.attempts[slots].astype(np.int64), counts)


class UseLog:
    """The uses of one task that may still be undone, by training step."""

    def __init__(self) -> None:
        self._uses: dict[int, dict[int, Use]] = {}  # by step, by number
        self._consumed: dict[int, list[IntArray]] = {}  # by step: the slots of rows that it consumed
        self.final: int | None = None
        """The newest step whose uses cannot be undone any more."""
        self.new: dict[int, Use] = {}
        """Uses that were added since the journal emptied this, by number."""
        self.old: list[int] = []
        """The numbers of uses that were dropped since then."""

    def __len__(self) -> int:
        """Return how many steps may still be undone."""
        return len(self._uses)

    @property
    def num_records(self) -> int:
        """How many uses may still be undone. O(steps)."""
        return sum(map(len, self._uses.values()))

    def __contains__(self, number: int) -> bool:
        return any(number in records for records in self._uses.values())

    @property
    def oldest(self) -> int:
        """The oldest step that may still be undone."""
        return min(self._uses)

    def add(self, number: int, use: Use) -> None:
        self._uses.setdefault(use.step, {})[number] = use
        self.new[number] = use

    def keep(self, step: int, slots: IntArray) -> None:
        """Record rows that a step consumed."""
        self._consumed.setdefault(step, []).append(slots)

    def unkeep(self, slots: IntArray) -> None:
        """Remove rows from the records of `keep`."""
        for step, parts in list(self._consumed.items()):
            left = [part[~np.isin(part, slots)] for part in parts]
            self._consumed[step] = [part for part in left if len(part)]
            if not self._consumed[step]:
                del self._consumed[step]

    def finish(self, step: int) -> None:
        """Make all uses up to this step final."""
        self.final = step if self.final is None else max(step, self.final)

    def check_rewind(self, task_name: str, step: int) -> None:
        """Raise CannotRewind if uses after this step are final."""
        if self.final is not None and step < self.final:
            raise CannotRewind(
                f"task {task_name!r}: cannot rewind to step {step}; steps up to {self.final} were committed or dropped. "
                f"Resume from step {self.final} or later, or start with a new store; max_uncommitted_steps sets how many "
                "steps without a commit are kept"
            )

    def remove(self, number: int) -> bool:
        """Remove one use, which is undone; return whether it was in the log."""
        for step, records in list(self._uses.items()):
            if records.pop(number, None) is not None:
                self.new.pop(number, None)
                self.old.append(number)
                if not records:
                    del self._uses[step]
                return True
        return False

    def drop(self, steps: Iterable[int]) -> tuple[list[Use], IntArray]:
        """Remove steps; return their uses, and the slots of the rows that they consumed."""
        uses, slots = list[Use](), [NO_ROWS]
        for step in sorted(steps):
            dropped = self._uses.pop(step, {})
            uses += dropped.values()
            for number in dropped:
                if self.new.pop(number, None) is None:
                    self.old.append(number)
            slots += self._consumed.pop(step, [])
        return uses, np.concatenate(slots)

    def newest(self, step: int | None, columns: Columns, slots: IntArray) -> dict[int | None, IntArray]:
        """Return rows by the newest step that used them; `step` is one that did."""
        keys = list(zip(columns.uid[slots].tolist(), columns.attempts[slots].tolist(), strict=True))
        newest = dict.fromkeys(keys, step)
        for later in sorted(self.after(step)):
            for use in self._uses.get(later, {}).values():
                used = zip(use.uids.tolist(), use.attempts.tolist(), strict=True)
                newest.update((key, later) for key in used if key in newest)
        places: dict[int | None, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(newest[key], []).append(place)
        return {last: slots[found] for last, found in places.items()}

    def up_to(self, step: int) -> list[int]:
        """Return the steps in the log up to this one."""
        return [known for known in self._uses.keys() | self._consumed.keys() if known <= step]

    def after(self, step: int | None) -> list[int]:
        """Return the steps in the log after this one; all, for None."""
        return [known for known in self._uses.keys() | self._consumed.keys() if step is None or known > step]

    def records(self) -> dict[int, Use]:
        """Return all uses by number."""
        return {number: use for step in self._uses.values() for number, use in step.items()}

    def restore(self, records: Mapping[int, Use], slots: IntArray, used_at: IntArray) -> None:
        """Restore an empty log; `slots` are the rows that are kept, `used_at` the steps that consumed them."""
        for number, use in records.items():
            self._uses.setdefault(use.step, {})[number] = use
        for step in np.unique(used_at).tolist():
            self.keep(step, slots[used_at == step])


def match_uses(columns: Columns, rows: IntArray, uses: Iterable[Use]) -> tuple[IntArray, IntArray]:
    """Return those of `rows`, which are sorted by uid, that were used, and how often."""
    times = np.zeros(len(rows), np.int64)
    uids = columns.uid[rows]
    for use in uses:
        at = np.searchsorted(uids, use.uids)
        here = at < len(rows)
        here[here] &= uids[at[here]] == use.uids[here]
        here[here] &= columns.attempts[rows[at[here]]] == use.attempts[here]
        np.add.at(times, at[here], use.times[here])
    return rows[times > 0], times[times > 0]
