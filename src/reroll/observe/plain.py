"""Stats, ledgers and rows in plain values: what JSON can hold, by name."""

from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import Any

from reroll.engine.query import Row
from reroll.telemetry.stats import Distribution, ResponseStats


def plain(value: Any) -> Any:
    """Return dataclasses and named tuples as dicts, enums as their values, keys as text, and what is no number as None."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if is_dataclass(value):
        told = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return told | plain(_derived(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(plain(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(plain, value))
    return str(value)


def plain_row(row: Row) -> dict[str, Any]:
    """Return a row by the names of the query language."""
    told: dict[str, Any] = plain(row)
    return told


def _derived(value: Any) -> dict[str, Any]:
    """Return the properties of statistics, which are given beside their fields."""
    if not isinstance(value, Distribution | ResponseStats):
        return {}
    kind = type(value)
    return {name: getattr(value, name) for name in dir(kind) if isinstance(getattr(kind, name), property)}
