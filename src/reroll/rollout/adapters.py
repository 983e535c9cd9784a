"""Any object as a rollout: read, check and write its attributes; `DictRollout` for dicts.

An attribute that an object does not have is absent: it reads as None and is never added.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from numbers import Real
from operator import index
from typing import Any, Final, Protocol

import numpy as np

from reroll.errors import InvalidArgument, shown
from reroll.rollout.status import Status, read_status

_LARGEST: Final = 1 << 62  # the sum or difference of two such integers fits into a column
MOST_TOKENS: Final = 1 << 40
"""Limit of tokens of a rollout or group: the sum over all groups of a task fits into a column."""
_REQUIRED_FIELDS: Final = ("status", "seq_staleness", "response_ids", "response_model_steps")


class RolloutLike(Protocol):
    """Attributes that an object needs to be put as a rollout; other fields of `Rollout` are used if it has them."""

    status: Any
    seq_staleness: Any
    response_ids: Any
    response_model_steps: Any


class DictRollout:
    """A dict as a rollout: attributes read and write the dict, which is available as `data`."""

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
        # "data" arrives here only while it is unset, during unpickling.
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


# --- read


def read_integer(field: str, value: Any) -> int:
    """Return a plain int for a value with `__index__`, except bool. Raises InvalidArgument for other values."""
    if type(value) is int and -_LARGEST < value < _LARGEST:
        return value
    try:
        if not isinstance(value, (bool, np.bool_)) and -_LARGEST < index(value) < _LARGEST:
            return index(value)
    except Exception:  # noqa: BLE001, S110  (not an integer, or a class whose `__index__` fails)
        pass
    raise InvalidArgument(f"{field} must be an integer of less than 63 bits, not {shown(value)}")


def read_number(value: object) -> float | None:
    """Return a plain float for one number, also of numpy or torch; None for other values, booleans included."""
    if type(value) is float:
        return value
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # of numpy or torch
            value = value.item()
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")  # type: ignore[operator]  # an integer
    except Exception:  # noqa: BLE001  (a class whose conversion fails)
        return None


def read_score(reward: Any) -> float | None:
    """Return the score of a reward: the number itself, or `score` of a dict; None before it is known.

    Raises:
        InvalidArgument: The reward is not a number, such as a string or a list.

    """
    score = reward.get("score") if isinstance(reward, dict) else reward
    if score is None or isinstance(score, float):
        return score
    try:
        # Numbers of numpy and torch have this method; float() would parse strings as well.
        return float(score.__float__())
    except Exception:  # noqa: BLE001  (not a number, too large for a float, or a class that fails)
        raise InvalidArgument(
            f"reward must be a number, a dict with `score`, or None, not {shown(reward)}"
        ) from None


def read_seq_staleness(rollout: RolloutLike) -> int:
    """Return the staleness that the rollout declares, 0 for None. Raises InvalidArgument."""
    declared = rollout.seq_staleness
    return 0 if declared is None else read_integer("seq_staleness", declared)


def read_length(field: str, value: Any) -> int | None:
    """Return the number of entries of a list, array or tensor, None for None. Raises InvalidArgument for other values."""
    if value is None:
        return None
    if type(value) is list or (type(value) is np.ndarray and value.ndim == 1):  # the usual case
        return len(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape) != 1:
        raise InvalidArgument(
            f"{field} must have one dimension, not shape {tuple(shape)}; give one entry per token"
        )
    try:
        if not isinstance(value, (str, bytes, Mapping, AbstractSet)):
            return len(value)
    except Exception:  # noqa: BLE001, S110  (no length, or a class that fails)
        pass
    raise InvalidArgument(
        f"{field} must be a list, an array or a tensor, one entry per token, not {type(value).__name__}"
    )


def count_tokens(rollout: Any) -> int:
    """Return `num_tokens` if it is given, else the number of tokens of prompt and response. Raises InvalidArgument."""
    given = getattr(rollout, "num_tokens", None)
    if given is not None:
        if not 0 <= (count := read_integer("num_tokens", given)) < MOST_TOKENS:
            raise InvalidArgument(f"num_tokens must be at least 0 and below {MOST_TOKENS}, not {count}")
        return count
    return derive_num_tokens(rollout)


def derive_num_tokens(rollout: Any) -> int:
    """Return the tokens of prompt and response, whatever `num_tokens` is; without prompt_ids, of the whole sequence."""
    response = read_length("response_ids", rollout.response_ids) or 0
    prompt = read_length("prompt_ids", getattr(rollout, "prompt_ids", None))
    if prompt is not None:
        return prompt + response
    whole = (read_length(field, getattr(rollout, field, None)) or 0 for field in ("tokens", "input_ids"))
    return max(response, *whole)


# --- check


def find_mismatch(rollout: Any, *, partial: bool) -> str | None:
    """Return an error text if fields with one entry per response token differ in length, else None.

    Fields are compared with `response_ids`, if that is given. None and empty mean absent.

    Args:
        rollout: Any rollout.
        partial: Whether the last tokens may have no version, because they will be stamped.

    Raises:
        InvalidArgument: A field has no length.

    """
    tokens = read_length("response_ids", rollout.response_ids)
    if tokens is None:
        return None
    for field in ("response_mask", "logprobs"):
        entries = read_length(field, getattr(rollout, field, None))
        if not entries or entries == tokens:
            continue
        # A rollout that is prepared for training may have a log-probability for each token of the whole sequence.
        if field == "logprobs" and entries == read_length("input_ids", getattr(rollout, "input_ids", None)):
            continue
        return f"{field} has {entries} entries, but response_ids has {tokens}; give one per response token"
    columns = getattr(rollout, "_columns", None)  # of a Rollout
    if type(columns) is dict:
        whole = tokens + (read_length("prompt_ids", rollout.prompt_ids) or 0)
        for name, column in columns.items():
            if len(column) not in (tokens, whole):
                return (
                    f"column {name!r} has {len(column)} entries, but response_ids has {tokens} and prompt and "
                    f"response have {whole}; give one per token of either"
                )
    versions = read_length("response_model_steps", rollout.response_model_steps)
    if versions and (versions > tokens or (versions < tokens and not partial)):
        return (
            f"response_model_steps has {versions} entries, but response_ids has {tokens}; "
            f"give one per response token"
            + ("" if versions > tokens else ", or put with model_step to fill it up")
        )
    return None


def check_rollout(rollout: Any, *, partial: bool) -> None:
    """Raise InvalidArgument, which names the field, unless a rollout can be stamped, expired and stored."""
    if isinstance(rollout, dict):
        raise InvalidArgument("a dict has no attributes; wrap it as reroll.DictRollout(d)")
    missing = [field for field in _REQUIRED_FIELDS if not hasattr(rollout, field)]
    if missing:
        raise InvalidArgument(
            f"{type(rollout).__name__} has no {', '.join(missing)}; a rollout needs {', '.join(_REQUIRED_FIELDS)}"
        )
    try:
        read_status(rollout.status)
    except InvalidArgument as error:
        raise InvalidArgument(f"status: {error}") from error
    read_seq_staleness(rollout)
    read_score(getattr(rollout, "reward", None))
    count_tokens(rollout)
    if (mismatch := find_mismatch(rollout, partial=partial)) is not None:
        raise InvalidArgument(mismatch)


def check_writable(rollout: Any) -> None:
    """Raise InvalidArgument for frozen objects: status, staleness and versions are assigned later.

    Assigning the present value is the one test that works for every class.
    """
    given = getattr(
        rollout, "__pydantic_fields_set__", None
    )  # names of the fields that were given, of a model
    before = None if given is None else set(given)
    for field in ("status", "seq_staleness", "response_model_steps"):
        try:
            setattr(rollout, field, getattr(rollout, field))
            if given is not None and before is not None:
                given.intersection_update(before)
        except Exception as error:
            raise InvalidArgument(
                f"{field} of {type(rollout).__name__} cannot be assigned ({error}); put objects that can change"
            ) from error


# --- write


def write_if_present(rollout: Any, field: str, value: Any) -> None:
    """Assign to an attribute that the object has; skip absent attributes and read-only properties."""
    if hasattr(rollout, field):
        try:  # noqa: SIM105  (suppress() takes longer than the assignment, and each put assigns to each rollout)
            setattr(rollout, field, value)
        except AttributeError:  # a property that its class derives from other fields
            pass


def write_status(rollout: RolloutLike, status: Status) -> None:
    """Assign a status in the form that the object uses: its own enum, a plain string, or `Status`."""
    held = rollout.status
    if isinstance(held, Enum) and not isinstance(held, Status):
        known = [member for member in type(held) if member.value == status.value]
        rollout.status = known[0] if known else status  # its enum may not have this status
    else:
        rollout.status = status.value if type(held) is str else status
