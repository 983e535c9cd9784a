"""Values that callers pass by mistake, or on purpose, each made anew."""

import enum
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

try:
    import torch
except ImportError:  # it is optional
    torch = None  # type: ignore[assignment]


class Name(str):
    """A subclass of str."""

    __slots__ = ()


class Number(int):
    """A subclass of int."""


class Colour(enum.Enum):
    RED = "t"


class Word(enum.StrEnum):
    RED = "t"


class Level(enum.IntEnum):
    HIGH = 2


class Hostile:
    """An object that fails in everything that a check may ask it for."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("hostile")

    __index__ = __float__ = __int__ = __iter__ = __len__ = __repr__ = __str__ = __bool__ = _fail


def _deep(depth: int) -> list[Any]:
    nest: list[Any] = []
    for _ in range(depth):
        nest = [nest]
    return nest


def _deep_dict(depth: int) -> dict[str, Any]:
    nest: dict[str, Any] = {}
    for _ in range(depth):
        nest = {"$not": nest}
    return nest


NASTY: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "2": lambda: 2,
    "-1": lambda: -1,
    "-5": lambda: -5,
    "2**31": lambda: 2**31,
    "2**40": lambda: 2**40,
    "2**62 - 1": lambda: 2**62 - 1,
    "-(2**62) + 1": lambda: -(2**62) + 1,
    "2**63": lambda: 2**63,
    "-(2**63)": lambda: -(2**63),
    "2**64": lambda: 2**64,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "1.5": lambda: 1.5,
    "1e308": lambda: 1e308,
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "text": lambda: "t",
    "other text": lambda: "another",
    "number as text": lambda: "3",
    "empty": lambda: "",
    "lone surrogate": lambda: "z\udc80",
    "NUL": lambda: "a\0b",
    "non-ASCII": lambda: "käse 🧀",
    "long": lambda: "x" * 100_000,
    "bytes": lambda: b"t",
    "str subclass": lambda: Name("t"),
    "int subclass": lambda: Number(2),
    "enum": lambda: Colour.RED,
    "StrEnum": lambda: Word.RED,
    "IntEnum": lambda: Level.HIGH,
    "np.str_": lambda: np.str_("t"),
    "np.int64": lambda: np.int64(2),
    "np.uint64": lambda: np.uint64(2**63),
    "np.float64": lambda: np.float64(1.5),
    "np.float32": lambda: np.float32(1.5),
    "np.bool_": lambda: np.bool_(True),
    "0-d integer": lambda: np.array(2),
    "0-d float": lambda: np.array(1.5),
    "0-d text": lambda: np.array("t"),
    "1-d": lambda: np.array([1, 2]),
    "2-d": lambda: np.zeros((2, 2)),
    "array of objects": lambda: np.array([None, "x"], dtype=object),
    "empty list": list,
    "empty dict": dict,
    "tuple": lambda: (1, 2),
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "dict": lambda: {"t": {"t": 1}},
    "deep list": lambda: _deep(5_000),
    "deep dict": lambda: _deep_dict(5_000),
    "object": object,
    "class": lambda: int,
    "function": lambda: len,
    "hostile": Hostile,
}
if torch is not None:
    NASTY |= {
        "torch integer": lambda: torch.tensor(2),
        "torch float": lambda: torch.tensor(1.5),
        "torch bool": lambda: torch.tensor(True),
        "torch vector": lambda: torch.tensor([1, 2]),
    }

WORST = (
    "None",
    "-1",
    "2**62 - 1",
    "2**64",
    "10**5000",
    "NaN",
    "lone surrogate",
    "bytes",
    "np.str_",
    "np.int64",
)
WORST += ("np.uint64", "1-d", "deep list", "deep dict", "hostile", "torch integer")
"""The names of those that found most."""


def wrapped(make: Callable[[], Any]) -> Iterator[Any]:
    """Yield a value as it is, in a list, and as key and value of a mapping."""
    yield make()
    yield [make()]
    yield {"t": make()}
    with suppress(Exception):  # it cannot be a key
        yield {make(): 1}
