"""Terms of the query language: fields, values, and the nodes of a parsed query.

`parse` builds and checks nodes; `evaluate` relies on those checks. There are fewer nodes than operators: `$ne` is
Not($eq) and `$between` is And($gte, $lte), so negations are exact by construction.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

TAG_PREFIX: Final = "tags."


class Kind(Enum):
    """Kind of a field: decides which operands it accepts and which column holds it."""

    NUMBER = "a number"
    TEXT = "a string"
    STATUS = "a status"
    SCALAR = "a number, a string, a boolean or None"  # set by the user: the type may differ from row to row


FIELDS: Mapping[str, Kind] = MappingProxyType(
    dict.fromkeys(
        (
            *("uid", "timestamp_id", "task_name", "status", "staleness", "version", "priority"),
            *("times_sampled", "attempts", "deliveries", "num_rollouts", "num_tokens", "num_bytes"),
            *("reward_mean", "reward_std", "group_id"),
        ),
        Kind.NUMBER,
    )
    | {"task_name": Kind.TEXT, "status": Kind.STATUS, "group_id": Kind.SCALAR}
)
"""Fields other than tags, which are named `tags.<name>`."""


def kind_of(field: str) -> Kind | None:
    """Return the kind of a field, None if there is no such field."""
    return Kind.SCALAR if tag_of(field) else FIELDS.get(field)


def tag_of(field: str) -> str | None:
    """Return the tag's name for `tags.<name>`, None for other fields."""
    return field.removeprefix(TAG_PREFIX) if field.startswith(TAG_PREFIX) else None


Scalar: TypeAlias = bool | int | float | str | None


class ValueType(Enum):
    """Type of a value; values of different types are neither equal nor ordered."""

    MISSING = "missing"
    BOOLEAN = "boolean"
    NUMBER = "number"
    TEXT = "text"
    OTHER = "other"  # not in the language: equal to nothing, ordered with nothing


Typed: TypeAlias = tuple[ValueType, Scalar]
"""A value with its type. Python's `==` and `hash` of two pairs agree with the language's equality."""

MISSING: Typed = (ValueType.MISSING, None)


def typed(value: object) -> Typed:
    """Return a value with its type, as plain Python; None and NaN are missing."""
    if value is None:
        return MISSING
    # Subclasses may define their own equality: for numpy's floats, 2**53 + 1 equals 2.0**53.
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    if isinstance(value, str):
        return ValueType.TEXT, str.__str__(value)
    if isinstance(value, bool):
        return ValueType.BOOLEAN, value
    if isinstance(value, int):
        return ValueType.NUMBER, int.__int__(value)
    if isinstance(value, float):
        return MISSING if math.isnan(value) else (ValueType.NUMBER, float.__float__(value))
    return ValueType.OTHER, None


# Any: the same functions compare single values and arrays.
ORDERINGS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
)


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold; true without parts."""

    parts: "tuple[Query, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part holds; false without parts."""

    parts: "tuple[Query, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: "Query"


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field's value is one of `values`, which may include MISSING."""

    field: str
    values: frozenset[Typed]


@dataclass(frozen=True, slots=True)
class Compare:
    """The field's value has the operand's type, and is ordered relative to it as ORDERINGS[order] says."""

    field: str
    order: str
    operand: Typed


Query: TypeAlias = And | Or | Not | OneOf | Compare
"""A checked query: a tree of conditions, made by `parse_query`."""
