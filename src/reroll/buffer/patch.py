"""Late fields: rewards or reference log-probs that arrive after the group."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from reroll.errors import InvalidArgument
from reroll.query import Scalar
from reroll.rollout import DictRollout, Rollout, check
from reroll.rollout.rollout import FIELDS
from reroll.rollout.rules import find_invalid, refuse

# These decide where a group is and how old it is; only a put changes them.
_FIXED: Final = frozenset(
    {
        "status",
        "seq_staleness",
        "response_ids",
        "response_model_steps",
        "prompt_ids",
        "tokens",
        "num_tokens",
        "group_uid",
    }
)


class Patch(NamedTuple):
    """Late fields of one group, one value a member, and its new tags."""

    fields: Mapping[str, Sequence[Any]]
    tags: Mapping[str, Scalar] | None


Undo = list[tuple[Any, str, Any]]
"""Rollout, field and old value of each assignment, in order."""


def patch_members(items: Sequence[Any], fields: Mapping[str, Sequence[Any]]) -> Undo:
    """Give each rollout its value of each field: as attribute where it has one, else in its `extra_fields`.

    Return what `undo_patch` needs. Raises InvalidArgument, and leaves all rollouts as they were, if one cannot take it.
    """
    for name, values in fields.items():
        if name == "priority":
            raise InvalidArgument("patch cannot change the priority of a group; call update_priorities")
        if name in _FIXED or name.startswith("_"):
            raise InvalidArgument(f"patch cannot change {name}; take the group and put it again")
        if isinstance(values, str | bytes | Mapping | AbstractSet) or _length(values) != len(items):
            raise InvalidArgument(
                f"patch: {name} must be a list of {len(items)} values, one for each rollout"
            )
    undo: Undo = []
    try:
        for name, values in fields.items():
            for item, value in zip(items, values, strict=True):
                field, new = _target(item, name, value)
                old = getattr(item, field)
                setattr(item, field, new)
                undo.append((item, field, old))
        check(items)
        refuse(find_invalid(items))
    except Exception as error:
        undo_patch(undo)
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"patch: {error}") from error
    return undo


def undo_patch(undo: Undo) -> None:
    """Assign the old values again."""
    for item, field, old in reversed(undo):
        setattr(item, field, old)


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except Exception:  # noqa: BLE001  (it has no length, or a class that fails)
        return None


def _target(item: Any, name: str, value: Any) -> tuple[str, Any]:
    """Return the attribute to assign, and what."""
    if _is_field(item, name):
        return name, value
    if not hasattr(item, "extra_fields"):
        raise InvalidArgument(f"patch: {type(item).__name__} has neither {name} nor extra_fields")
    return "extra_fields", {**(item.extra_fields or {}), name: value}


def _is_field(item: Any, name: str) -> bool:
    """Return whether a rollout holds data under this name."""
    if isinstance(item, Rollout):
        return name in FIELDS
    if isinstance(item, DictRollout):
        return name in item.data
    if callable(getattr(type(item), name, None)):
        raise InvalidArgument(f"patch cannot change {name}: it is a method of {type(item).__name__}")
    return hasattr(item, name)
