"""The metrics of a shard as gauges of Ray: they appear in the cluster's dashboard and in Prometheus.

`gen/groups` of the buffer is `reroll_gen_groups` there, with the tags buffer, shard and task; task "" is all of them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ray.util.metrics import Gauge

from reroll.telemetry.metrics import NUMBERS
from reroll.telemetry.stats import Stats

TAGS: Final = ("buffer", "shard", "task")


class Point(NamedTuple):
    """One number for one gauge."""

    gauge: str
    meaning: str
    task: str
    value: float


def points_of(stats: Stats) -> Iterator[Point]:
    """Yield every number that is known, over all tasks and for each."""
    for name, (metric, key) in NUMBERS.items():
        gauge = "reroll_" + re.sub(r"\W", "_", name)
        for task, part in {"": stats.total, **stats.tasks}.items():
            value = metric.read(part, key)
            if value is not None:
                yield Point(gauge, metric.help, task, float(value))


class Export:
    """The gauges of one shard."""

    def __init__(self, buffer: str, shard: int) -> None:
        self._tags: Mapping[str, str] = {"buffer": buffer, "shard": str(shard)}
        self._gauges: dict[str, Gauge] = {}

    def tell(self, stats: Stats) -> None:
        """Set all gauges."""
        for point in points_of(stats):
            gauge = self._gauges.get(point.gauge)
            if gauge is None:
                gauge = self._gauges[point.gauge] = Gauge(point.gauge, point.meaning, tag_keys=TAGS)
            gauge.set(point.value, tags={**self._tags, "task": point.task})
