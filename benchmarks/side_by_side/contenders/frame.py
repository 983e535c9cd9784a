"""A pandas frame with a row for each group, and a mask over all rows for each call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pandas as pd

from contenders.timing import scanning, size_of
from group_operations import Size, Subject
from groups import TASK, VERSIONS, listed_maker
from scanning_groups import arrive, group_staleness, group_status, staleness, stamp
from worker import Measure

CANNOT: dict[str, str] = {}


def version() -> str:
    return f"of this repository, pandas {pd.__version__}"


def scan(groups: int) -> Iterator[Measure]:
    """What is known of each group is a row of a pandas frame, the group itself an object in it; masks choose, and rows are added and dropped in place."""
    yield scanning(Framed(size_of(groups)))


class FrameGroups:
    """The verbs of the buffer that are measured."""

    def __init__(self) -> None:
        self._clock = count(1)
        self._rows = pd.DataFrame({"items": [], "task": [], "status": [], "staleness": []})

    def fill(self, groups: Sequence[list[Any]]) -> None:
        """Start with so many groups at once: one by one, each would copy the frame."""
        uids = [next(self._clock) for _ in groups]
        known = {
            "items": groups,
            "task": TASK,
            "status": list(map(group_status, groups)),
            "staleness": list(map(group_staleness, groups)),
        }
        self._rows = pd.DataFrame(known, index=uids)

    async def put(
        self,
        items: list[Any],
        task_name: str,
        *,
        model_step: int | None = None,
        current_train_step: int | None = None,
    ) -> int:
        arrive(items, model_step, current_train_step)
        uid = next(self._clock)
        self._rows.loc[uid] = pd.Series(
            {
                "items": items,
                "task": task_name,
                "status": group_status(items),
                "staleness": group_staleness(items),
            }
        )
        return uid

    async def get(self, batch_size: int, task_name: str, status: str) -> list[Any]:
        found = self._find(task_name, status).sort_values("staleness", ascending=False, kind="stable")
        taken = found.iloc[:batch_size]
        self._rows = self._rows.drop(taken.index)
        return list(taken["items"])

    async def count(self, task_name: str, status: str) -> int:
        return len(self._find(task_name, status))

    async def refresh_staleness(
        self, *, task_stale_thresholds: Mapping[str, int], current_train_step: int
    ) -> dict[str, int]:
        expired = {}
        for task_name, threshold in task_stale_thresholds.items():
            found = self._find(task_name, "completed")
            for items in found["items"]:
                for item in items:
                    item.seq_staleness = staleness(item, current_train_step)
            behind = found["items"].map(group_staleness)
            self._rows.loc[found.index, "staleness"] = behind
            stale = behind.index[behind >= threshold]
            self._rows.loc[stale, "status"] = "expired"
            expired[task_name] = len(stale)
        return expired

    async def delete(self, uids: Iterable[int]) -> int:
        before = len(self._rows)
        self._rows = self._rows.drop(list(uids))
        return before - len(self._rows)

    def _find(self, task_name: str, status: str) -> pd.DataFrame:
        return self._rows[(self._rows["task"] == task_name) & (self._rows["status"] == status)]


class Framed(Subject):
    """A filled frame."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.steps = count(VERSIONS + 2)
        self.make = listed_maker(size.shape)
        self.repeats = 1
        self.buffer = FrameGroups()
        groups = [self.make() for _ in range(size.groups)]
        for number, group in enumerate(groups):
            for rollout in group:
                stamp(rollout, 1 + number % VERSIONS)
        self.buffer.fill(groups)
