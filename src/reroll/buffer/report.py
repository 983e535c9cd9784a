"""stats() and metrics(): being written."""

from typing import Any

Stats = dict[str, Any]


def stats_of(groups: Any, now: float) -> Stats:
    return {}


def metrics_of(groups: Any, now: float) -> dict[str, float]:
    return {}
