"""Options of selectors and limiters: their form in configuration files, and the checks of their values."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from reroll.errors import InvalidArgument, InvalidConfig, shown
from reroll.rollout.adapters import read_integer, read_number


def from_options(value: object, kinds: Mapping[str, type[Any]], noun: str) -> Any:
    """Return the object of a name, or of a mapping with `type` and options; other values as they are.

    Raises InvalidConfig with the known names or options.
    """
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict):
        return value
    name, options = value.get("type"), {key: option for key, option in value.items() if key != "type"}
    if not isinstance(name, str) or name not in kinds:
        raise InvalidConfig(f"{shown(name)} is not a {noun}; use one of {', '.join(kinds)}")
    known = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kinds[name])}
    if not {name for name, required in known.items() if required} <= options.keys() <= known.keys():
        raise InvalidConfig(
            f"{name} takes {', '.join(known) or 'no options'}, not {', '.join(map(str, options)) or 'nothing'}"
        )
    return kinds[name](**options)


def options_of(spec: Any) -> dict[str, Any]:
    """Return the mapping that `from_options` reads back."""
    options = {option.name: getattr(spec, option.name) for option in fields(spec)}
    parts = {name: options_of(part) for name, part in options.items() if hasattr(part, "build")}
    return {"type": spec.type, **options, **parts}


def known_options(spec: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any] | None:
    """Return `options_of` a selector or limiter of this library; None for one of a user's own class."""
    parts = [part for name in ("fresh", "replay") if (part := getattr(spec, name, None)) is not None]
    known = all(type(part) is kinds.get(getattr(part, "type", "")) for part in (spec, *parts))
    return options_of(spec) if known else None


def set_count(owner: object, name: str) -> None:
    """Make an option a plain int. Raises InvalidConfig unless it is at least 1."""
    value = getattr(owner, name)
    try:
        count = read_integer(name, value)
    except InvalidArgument:
        count = 0
    if count < 1:
        raise InvalidConfig(
            f"{type(owner).__name__}: {name} must be an integer of at least 1, not {shown(value)}"
        )
    object.__setattr__(owner, name, count)


def plain_number(value: object) -> float | None:
    """Return a number as a plain int or float; None for anything else, NaN included."""
    if type(value) is int and abs(value) < 1 << 53:
        return value
    number = read_number(value)
    return None if number is None or math.isnan(number) else number


def set_number(owner: object, name: str, *, above: float | None = None, why: str = "") -> None:
    """Make an option a plain number. Raises InvalidConfig unless it is finite, and at least 0 or `above` a number."""
    value = getattr(owner, name)
    number = plain_number(value)
    if number is None or not math.isfinite(number) or number < 0 or (above is not None and number <= above):
        limit = "of at least 0" if above is None else f"above {above:g}"
        raise InvalidConfig(
            f"{type(owner).__name__}: {name} must be a number {limit}, not {shown(value)}{why}"
        )
    object.__setattr__(owner, name, number)
