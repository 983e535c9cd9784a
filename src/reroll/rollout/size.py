"""About how many bytes a rollout's payload takes, found without walking its tokens.

Arrays and tensors count their own bytes, text its length, and a list 8 bytes an entry: the pointer. Python's
numbers behind those pointers may be shared or take up to 28 bytes more each, so for lists this is the floor.
"""

from typing import Any

import numpy as np

from reroll.rollout.fields import HEAVY_FIELDS, TOKEN_FIELDS
from reroll.rollout.model import Rollout

_MAX_DEPTH = 4  # as deep as {"images": [{"pixels": array}]}; what lies deeper is not worth a walk at each put


def count_bytes(rollout: Any) -> int:
    """Return the estimated bytes of a rollout's payload."""
    held = rollout.stored_payload() if isinstance(rollout, Rollout) else _held(rollout, _ALL)
    return sum([value.nbytes if type(value) is np.ndarray else count_value(value) for value in held])


def count_bytes_beside_tokens(rollout: Any) -> int:
    """Return the part of `count_bytes` that is in other fields than those with an entry per token: mostly nothing."""
    held = rollout.stored_beside_tokens() if isinstance(rollout, Rollout) else _held(rollout, _BESIDE_TOKENS)
    return sum(map(count_value, held)) if held else 0


def holds_only_tokens(rollout: Any) -> bool:
    """Return whether a foreign object has no other heavy field than those with an entry per token, nor a `num_tokens`.

    Quick, for most have none: it is known of their class, or one look into their `__dict__` tells.
    """
    known = _ONLY_TOKENS[type(rollout)]
    return _OTHERS.isdisjoint(rollout.__dict__) if known is None else known


class _OnlyTokens(dict[type, bool | None]):
    """By class: whether its objects hold nothing but tokens; None: their `__dict__` tells."""

    def __missing__(self, kind: type) -> bool | None:
        if hasattr(kind, "__getattr__") or any(hasattr(kind, field) for field in _OTHERS):
            self[kind] = False
        else:
            self[kind] = None if kind.__dictoffset__ else True
        return self[kind]


class _FieldsOf(dict[type, tuple[tuple[str, ...], tuple[str, ...]]]):
    """By class: which fields to ask each object for, and which it may have besides, in its `__dict__`.

    Asking for an attribute that is not there is slow, and most objects have few of the fields: what a class has is
    found out once.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__()
        self._fields = fields

    def __missing__(self, kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
        anything = hasattr(kind, "__getattr__")
        asked = tuple(field for field in self._fields if anything or hasattr(kind, field))
        self[kind] = asked, tuple(field for field in self._fields if field not in asked)
        return self[kind]


_ALL = _FieldsOf(HEAVY_FIELDS)
_BESIDE_TOKENS = _FieldsOf(tuple(field for field in HEAVY_FIELDS if field not in TOKEN_FIELDS))
_OTHERS = frozenset(HEAVY_FIELDS).difference(TOKEN_FIELDS) | {"num_tokens"}
_ONLY_TOKENS = _OnlyTokens()


def _held(rollout: Any, fields_of: _FieldsOf) -> list[Any]:
    """Return the heavy values that a foreign object holds."""
    asked, others = fields_of[type(rollout)]
    held = [getattr(rollout, field, None) for field in asked] if asked else []
    own = getattr(rollout, "__dict__", None)
    if own and others:
        held += [own[field] for field in others if field in own]
    return [value for value in held if value is not None] if held else held


def count_value(value: Any, depth: int = 0) -> int:
    """Return the estimated bytes of one field's value."""
    if type(value) is list and value and type(value[0]) in (int, float):  # nearly always
        return 8 * len(value)
    if isinstance(value, (list, tuple)):
        # A list of tokens is told by its first entry.
        flat = not value or depth >= _MAX_DEPTH or isinstance(value[0], (int, float))
        return 8 * len(value) + (0 if flat else sum(count_value(entry, depth + 1) for entry in value))
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, dict):
        return 16 * len(value) + (
            0 if depth >= _MAX_DEPTH else sum(count_value(v, depth + 1) for v in value.values())
        )
    size = getattr(value, "nbytes", None)  # of arrays and tensors
    return size if isinstance(size, int) else 8
