"""What it means that nothing was lost: the same types all the way down, and every bit of every number."""

import dataclasses
import math
import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np

from reroll import DictRollout, Rollout
from reroll.codec import decode, encode


def exact(a: Any, b: Any) -> bool:
    """Tell whether two values are the same in type and content, NaN and the sign of zero included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Rollout):
        return _all(a.state(), b.state())
    if isinstance(a, DictRollout):
        return exact(a.data, b.data)
    if type(a) is np.ndarray:
        return (
            a.dtype == b.dtype
            and a.dtype.isalignedstruct == b.dtype.isalignedstruct
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, np.str_ | np.bytes_):
        return bool(a == b)
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if type(a) is float:
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if type(a) is complex:
        return exact(a.real, b.real) and exact(a.imag, b.imag)
    if type(a) is Decimal:
        return str(a) == str(b)
    if type(a) is datetime:
        return (a.isoformat(), a.fold, repr(a.tzinfo)) == (b.isoformat(), b.fold, repr(b.tzinfo))
    if isinstance(a, list | tuple):
        return _all(a, b)
    if isinstance(a, dict):
        return _all(a, b) and _all(a.values(), b.values())
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and _all(sorted(a, key=_order), sorted(b, key=_order))
    if dataclasses.is_dataclass(a):
        return exact(_attributes(a), _attributes(b))
    return bool(a == b)


def _all(these: Any, those: Any) -> bool:
    return len(these) == len(those) and all(map(exact, these, those))


def _order(item: Any) -> str:
    """Return a text by which members of equal sets come in the same order, also sets with NaN in them."""
    if isinstance(item, frozenset):
        return f"frozenset {sorted(map(_order, item))}"
    if isinstance(item, tuple):
        return f"tuple {list(map(_order, item))}"
    return f"{type(item).__name__} {item!r}"


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name) and name != "__weakref__"}
    return held | getattr(value, "__dict__", {})


def back(value: Any, **options: Any) -> Any:
    """Return what remains of a value that was written and read."""
    return decode(encode(value, **options), **options)


def assert_kept(value: Any, **options: Any) -> Any:
    """Write and read a value, and demand that nothing was lost."""
    restored = back(value, **options)
    assert exact(restored, value), f"{value!r} became {restored!r}"
    return restored
