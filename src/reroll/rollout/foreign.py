"""Any object can be a rollout: how its attributes are read and written, and dicts made into such objects.

An attribute that an object does not have is absent: it reads as None and is never added.
"""

import copy
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from numbers import Real
from operator import index
from typing import Any, Final, Protocol

import numpy as np

from reroll.errors import InvalidArgument, shown
from reroll.rollout.status import Status


class RolloutLike(Protocol):
    """What an object must have to be put as a rollout; the other fields of `Rollout` are used if they exist."""

    status: Any
    seq_staleness: Any
    response_ids: Any
    response_model_steps: Any


_LARGEST = 1 << 62  # sums and differences of two of these fit into a column
MOST_TOKENS: Final = 1 << 40
"""Sums over all groups of a task fit into a column."""
REQUIRED_FIELDS = ("status", "seq_staleness", "response_ids", "response_model_steps")


class DictRollout:
    """A dict seen as a rollout: attributes read and write the same dict, which stays available as `data`."""

    __slots__ = ("__weakref__", "data")
    __hash__ = None  # type: ignore[assignment]  # equal by content, like the dict

    data: dict[str, Any]
    status: Any
    seq_staleness: Any
    response_ids: Any
    response_model_steps: Any

    def __init__(self, data: dict[str, Any]) -> None:
        object.__setattr__(self, "data", data)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are no slot; "data" is one, so it is unset, which only unpickling meets.
        if name == "data" or name not in self.data:
            raise AttributeError(f"this rollout has no {name!r}")
        return self.data[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.data[name] = value

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, DictRollout) else NotImplemented

    def __copy__(self) -> "DictRollout":
        return DictRollout(dict(self.data))

    def __reduce__(self) -> tuple[type["DictRollout"], tuple[dict[str, Any]]]:
        return DictRollout, (self.data,)

    def __repr__(self) -> str:
        return f"DictRollout({self.data!r})"


def read_integer(field: str, value: Any) -> int:
    """Return a plain int for anything with `__index__` but bool; anything else is an InvalidArgument."""
    if type(value) is int and -_LARGEST < value < _LARGEST:
        return value
    try:
        if not isinstance(value, (bool, np.bool_)) and -_LARGEST < index(value) < _LARGEST:
            return index(value)
    except Exception:  # noqa: BLE001, S110  (no integer, or a class whose `__index__` fails)
        pass
    raise InvalidArgument(f"{field} must be an integer of less than 63 bits, not {shown(value)}")


def read_number(value: object) -> float | None:
    """Return a plain float for one number, also of numpy and torch; None for anything else, booleans included."""
    if type(value) is float:
        return value
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(
            value, "item"
        ):  # arrays, tensors and numbers of numpy
            value = value.item()
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")  # type: ignore[operator]  # an integer
    except Exception:  # noqa: BLE001  (a class whose conversion fails)
        return None


def read_seq_staleness(rollout: RolloutLike) -> int:
    """Return the staleness that the rollout itself states, 0 if it states none; raises InvalidArgument."""
    stated = rollout.seq_staleness
    return 0 if stated is None else read_integer("seq_staleness", stated)


def read_length(field: str, value: Any) -> int | None:
    """Return the number of entries of a list, array or tensor, None for None; others are an InvalidArgument."""
    if value is None:
        return None
    if type(value) is list or (type(value) is np.ndarray and value.ndim == 1):  # nearly always
        return len(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape) != 1:
        raise InvalidArgument(
            f"{field} must have one dimension, not shape {tuple(shape)}; give one entry per token"
        )
    try:
        if not isinstance(value, (str, bytes, Mapping, AbstractSet)):
            return len(value)
    except Exception:  # noqa: BLE001, S110  (it has no length, or a class that fails)
        pass
    raise InvalidArgument(
        f"{field} must be a list, an array or a tensor, one entry per token, not {type(value).__name__}"
    )


def count_tokens(rollout: Any) -> int:
    """Return `num_tokens` if it is given, else prompt + response; without prompt_ids, the whole sequence counts."""
    given = getattr(rollout, "num_tokens", None)
    if given is not None:
        if not 0 <= (count := read_integer("num_tokens", given)) < MOST_TOKENS:
            raise InvalidArgument(f"num_tokens must be at least 0 and below {MOST_TOKENS}, not {count}")
        return count
    return derive_num_tokens(rollout)


def derive_num_tokens(rollout: Any) -> int:
    """Return the number of tokens that the rollout holds, whatever `num_tokens` says."""
    response = read_length("response_ids", rollout.response_ids) or 0
    prompt = read_length("prompt_ids", getattr(rollout, "prompt_ids", None))
    if prompt is not None:
        return prompt + response
    whole = (read_length(field, getattr(rollout, field, None)) or 0 for field in ("tokens", "input_ids"))
    return max(response, *whole)


def write_if_present(rollout: Any, field: str, value: Any) -> None:
    """Assign to an attribute that the object has; others are not added, and a read-only property is left alone."""
    if hasattr(rollout, field):
        try:  # noqa: SIM105  (suppress() takes longer than the assignment, and every put comes here for each rollout)
            setattr(rollout, field, value)
        except AttributeError:  # a property that its class derives from the other fields
            pass


def write_status(rollout: RolloutLike, status: Status) -> None:
    """Assign a status in the form in which the object holds its own: its enum, a plain string, or `Status`."""
    held = rollout.status
    if isinstance(held, Enum) and not isinstance(held, Status):
        # Its enum may not know this status, and the object must not claim another one.
        known = [member for member in type(held) if member.value == status.value]
        rollout.status = known[0] if known else status
    else:
        rollout.status = status.value if type(held) is str else status


def copy_tokens(value: Any) -> Any:
    """Return an independent list, array or tensor with the same entries; None for None."""
    return value.clone() if hasattr(value, "clone") else copy.copy(value)


def empty_like(value: Any) -> Any:
    """Return no entries, of the same kind: a tuple, array or tensor of length 0, else a new list."""
    sliceable = isinstance(value, tuple) or hasattr(value, "shape")
    return copy_tokens(value[:0]) if sliceable else []
