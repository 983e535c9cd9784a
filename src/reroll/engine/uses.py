"""Which rows were used at which training step, kept until the trainer's own checkpoint holds what it learned from them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from reroll.engine.columns import IntArray


class Used(NamedTuple):
    """One hand-out to the trainer: each row, known by uid and attempt, was used so many times."""

    step: int
    uids: IntArray
    attempts: IntArray
    times: IntArray


class UseLog:
    """The uses of one task that may still be undone, by training step."""

    def __init__(self) -> None:
        self._used: dict[int, dict[int, Used]] = {}  # by step, by number
        self.kept: dict[int, list[IntArray]] = {}
        """By step: the slots of rows that it consumed."""
        self.final: int | None = None
        """The newest step whose uses cannot be undone any more."""
        self.new: dict[int, Used] = {}
        """What was added since somebody wrote it down, by number; emptied by whoever does."""
        self.old: list[int] = []
        """The numbers of what was dropped since then."""

    def __len__(self) -> int:
        """Return how many steps may still be undone."""
        return len(self._used)

    def __contains__(self, number: int) -> bool:
        return any(number in records for records in self._used.values())

    @property
    def oldest(self) -> int:
        """The oldest step that may still be undone."""
        return min(self._used)

    def add(self, number: int, used: Used) -> None:
        self._used.setdefault(used.step, {})[number] = used
        self.new[number] = used

    def keep(self, step: int, slots: IntArray) -> None:
        """Remember rows that a step consumed."""
        self.kept.setdefault(step, []).append(slots)

    def finish(self, step: int) -> None:
        """Let nothing up to this step be undone any more."""
        self.final = step if self.final is None else max(step, self.final)

    def remove(self, number: int) -> bool:
        """Forget one hand-out, which did not come about; return whether it was still known."""
        for step, records in list(self._used.items()):
            if records.pop(number, None) is not None:
                self.new.pop(number, None)
                self.old.append(number)
                if not records:
                    del self._used[step]
                return True
        return False

    def unkeep(self, slots: IntArray) -> None:
        """Forget that rows were consumed."""
        for step, parts in list(self.kept.items()):
            left = [part[~np.isin(part, slots)] for part in parts]
            self.kept[step] = [part for part in left if len(part)]
            if not self.kept[step]:
                del self.kept[step]

    def drop(self, steps: Iterable[int]) -> tuple[list[Used], IntArray]:
        """Forget steps; return their uses, and the slots of the rows that they consumed."""
        used, slots = list[Used](), [np.zeros(0, np.int64)]
        for step in sorted(steps):
            dropped = self._used.pop(step, {})
            used += dropped.values()
            for number in dropped:
                if self.new.pop(number, None) is None:
                    self.old.append(number)
            slots += self.kept.pop(step, [])
        return used, np.concatenate(slots)

    def newest(self, step: int | None, columns: Any, slots: IntArray) -> dict[int | None, IntArray]:
        """Return rows by the newest step that used them; `step` is one that did."""
        editions = list(zip(columns.uid[slots].tolist(), columns.attempts[slots].tolist(), strict=True))
        newest = dict.fromkeys(editions, step)
        for later in sorted(self.after(step)):
            for used in self._used.get(later, {}).values():
                known = zip(used.uids.tolist(), used.attempts.tolist(), strict=True)
                newest.update((one, later) for one in known if one in newest)
        places: dict[int | None, list[int]] = {}
        for place, edition in enumerate(editions):
            places.setdefault(newest[edition], []).append(place)
        return {last: slots[found] for last, found in places.items()}

    def upto(self, step: int) -> list[int]:
        return [known for known in self._steps() if known <= step]

    def after(self, step: int | None) -> list[int]:
        return [known for known in self._steps() if step is None or known > step]

    def records(self) -> dict[int, Used]:
        """Return all uses by number."""
        return {number: used for step in self._used.values() for number, used in step.items()}

    def restore(self, records: Mapping[int, Used], slots: IntArray, used_at: IntArray) -> None:
        """Become what was written down; `slots` are the rows that are kept, `used_at` who consumed them."""
        for number, used in records.items():
            self._used.setdefault(used.step, {})[number] = used
        for step in np.unique(used_at).tolist():
            self.keep(step, slots[used_at == step])

    def _steps(self) -> set[int]:
        return self._used.keys() | self.kept.keys()


def used_of(step: int, columns: Any, slots: IntArray, times: IntArray | None = None) -> Used:
    """Return a use of rows as they are now."""
    counts = np.ones(len(slots), np.int64) if times is None else times.astype(np.int64)
    return Used(step, columns.uid[slots], columns.attempts[slots].astype(np.int64), counts)
