"""Rows for the tests, and the same rows as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reroll.query import FIELDS, Scalar


@dataclass(frozen=True)
class Row:
    uid: int = 1
    timestamp_id: int = 1
    task_name: str | None = "math"
    status: str | None = "completed"
    staleness: int | None = 0
    version: int | None = 3
    priority: float | None = 1.0
    times_sampled: int | None = 0
    attempts: int | None = 1
    deliveries: int | None = 0
    num_rollouts: int | None = 4
    num_tokens: int | None = 100
    num_bytes: int | None = 1000
    reward_mean: float | None = 0.5
    reward_std: float | None = 0.25
    group_id: Scalar = None
    tags: Mapping[str, Scalar] = field(default_factory=dict)


FLOAT_FIELDS = ("priority", "reward_mean", "reward_std")
INT32_FIELDS = ("times_sampled", "attempts")
INT_FIELDS = tuple(
    name
    for name, kind in FIELDS.items()
    if kind.name == "NUMBER" and name not in (*FLOAT_FIELDS, *INT32_FIELDS)
)


class Columns:
    """A ColumnSource made from rows. Where an integer is missing, the array holds a tempting 0."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def numbers(self, name):
        values = [getattr(row, name) for row in self.rows]
        missing = np.array([value is None for value in values], dtype=bool)
        dtype = np.float64 if name in FLOAT_FIELDS else np.int32 if name in INT32_FIELDS else np.int64
        array = np.array([0 if value is None else value for value in values], dtype=dtype)
        return array, missing if missing.any() else None

    def categories(self, name):
        values = [getattr(row, name) for row in self.rows]
        names = sorted({value for value in values if value is not None})
        return np.array(
            [-1 if value is None else names.index(value) for value in values], dtype=np.int16
        ), names

    def objects(self, name):
        if name == "group_id":
            return [row.group_id for row in self.rows]
        return [row.tags.get(name.removeprefix("tags.")) for row in self.rows]
