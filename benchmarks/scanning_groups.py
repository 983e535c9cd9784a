"""The rollout buffer of the first starting point, in our own words: a record per group, a pass over all per call.

put      stamps every member's list of versions, and finds the oldest by a walk over the list
count    evaluates a query on every record
get      does the same, sorts what it found, and takes the first
refresh  walks the list of every member of every record, then resets what is too stale

Same verbs as ReplayBuffer, as far as they are measured. It checks no lengths, keeps no ledger, no limits and no counts of
what was trained: all that is left out here is in favour of this design.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

from scanning import Compare, Every, OneOf, Query


@dataclass
class GroupRecord:
    """One group and what is known of it."""

    uid: int
    items: list[Any]
    timestamp: int
    task: str
    status: str
    staleness: int


FIELDS = [known.name for known in fields(GroupRecord)]


def holds(query: Query, record: GroupRecord) -> bool:
    """Walk the tree of a query with one record in hand."""
    if isinstance(query, Every):
        return all(holds(part, record) for part in query.parts)
    if query.field not in FIELDS:
        raise ValueError(f"{query.field!r} is no field; there are: {FIELDS}")
    value = getattr(record, query.field)
    if isinstance(query, OneOf):
        return value in query.operands
    return value == query.operand


class ScanningGroups:
    """Groups in a dict, by uid."""

    def __init__(self) -> None:
        self._records: dict[int, GroupRecord] = {}
        self._clock = count(1)

    async def put(
        self,
        items: Sequence[Any],
        task_name: str,
        *,
        model_step: int | None = None,
        current_train_step: int | None = None,
        stale_threshold: int | None = None,
    ) -> int:
        arrive(items, model_step, current_train_step)
        uid = next(self._clock)
        record = GroupRecord(uid, list(items), uid, task_name, group_status(items), group_staleness(items))
        if stale_threshold is not None and record.staleness >= stale_threshold:
            expire(record)
        for item in items:
            item.group_uid = uid
        self._records[uid] = record
        return uid

    async def get(self, batch_size: int, task_name: str, group_status: str) -> list[list[Any]]:
        found = self._find(task_name, group_status)
        found.sort(key=lambda record: (-record.staleness, record.timestamp))
        for record in found[:batch_size]:
            del self._records[record.uid]
        return [record.items for record in found[:batch_size]]

    async def count(self, task_name: str, group_status: str) -> int:
        return len(self._find(task_name, group_status))

    async def refresh_staleness(
        self, *, task_stale_thresholds: Mapping[str, int], current_train_step: int
    ) -> dict[str, int]:
        expired = {}
        for task_name, threshold in task_stale_thresholds.items():
            parts = [Compare("task", "==", task_name), OneOf("status", {"completed", "aborted"})]
            query, stale = Every(parts), 0
            for record in [record for record in self._records.values() if holds(query, record)]:
                for item in record.items:
                    item.seq_staleness = staleness(item, current_train_step)
                record.staleness = group_staleness(record.items)
                if record.staleness >= threshold:
                    expire(record)
                    stale += 1
            expired[task_name] = stale
        return expired

    async def delete(self, uids: Iterable[int]) -> int:
        return sum(self._records.pop(uid, None) is not None for uid in uids)

    def _find(self, task_name: str, status: str) -> list[GroupRecord]:
        query = Every([Compare("task", "==", task_name), Compare("status", "==", status)])
        return [record for record in self._records.values() if holds(query, record)]


def arrive(items: Sequence[Any], model_step: int | None, current_train_step: int | None) -> None:
    """Give versions and staleness to a group that is put."""
    for item in items:
        if model_step is not None:
            stamp(item, model_step)
        if current_train_step is not None:
            item.seq_staleness = staleness(item, current_train_step)


def stamp(item: Any, model_step: int) -> None:
    """Give a version to the tokens that have none."""
    known = list(item.response_model_steps or [])
    item.response_model_steps = known + [model_step] * (len(item.response_ids) - len(known))


def staleness(item: Any, current_train_step: int) -> int:
    """How many steps lie between the oldest token and the step."""
    versions = item.response_model_steps
    return current_train_step - min(versions) - 1 if versions else 0


def group_staleness(items: Sequence[Any]) -> int:
    return max(item.seq_staleness for item in items)


def group_status(items: Sequence[Any]) -> str:
    statuses = {item.status for item in items}
    for status in ("failed", "filtered", "expired", "aborted"):
        if status in statuses:
            return status
    return "completed"


def expire(record: GroupRecord) -> None:
    """Empty a group, so that it can be rolled again."""
    record.status = "expired"
    for item in record.items:
        item.status = "expired"
        item.response_ids, item.response_mask, item.response_model_steps = [], [], []
        item.logprobs = None
        item.reward = None
