"""What was measured, as JSON, one file for each section: all that tables and pictures are made from."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from environments import ROOT
from matrix import Section, Setting
from workers import FOLDER, CannotError, NoFigureError

Cell = dict[str, Any]
"""A setting, a metric and a contender, with `median`, `low`, `high` (quartiles) and `rounds`, or `cannot`, or `failed`."""

__all__ = ["FOLDER", "Cell", "measured", "read", "unmeasured", "write"]


def measured(
    section: Section, setting: Setting, contender: str, rounds: Sequence[Mapping[str, float]]
) -> list[Cell]:
    """Return the cells of a contender from what its rounds gave."""
    return [
        {
            **_key(setting, metric.key, contender),
            **_spread([each[metric.key] for each in rounds]),
            "rounds": len(rounds),
        }
        for metric in section.metrics
    ]


def unmeasured(section: Section, setting: Setting, contender: str, error: NoFigureError) -> list[Cell]:
    """Return the cells of a contender that has no figures, and why."""
    why = "cannot" if isinstance(error, CannotError) else "failed"
    said = str(error).replace(str(ROOT), ".")  # the page is for everybody
    return [{**_key(setting, metric.key, contender), why: said} for metric in section.metrics]


def _key(setting: Setting, metric: str, contender: str) -> Cell:
    return {"setting": setting.title, "metric": metric, "contender": contender}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if len(values) == 1:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def write(
    section: Section, contenders: Mapping[str, Any], cells: Sequence[Cell], *, load: float, is_quick: bool
) -> None:
    """Write the file of a section."""
    report = {
        "section": section.id,
        "is_quick": is_quick,
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(load, 1),
        },
        "contenders": contenders,
        "cells": cells,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{section.id}.json").write_text(json.dumps(report, indent=1) + "\n")


def read(section: Section) -> dict[str, Any] | None:
    """Return what was written of a section; None if it was never measured."""
    path = FOLDER / f"{section.id}.json"
    return json.loads(path.read_text()) if path.exists() else None
