"""Late fields: rewards or reference log-probs that arrive after the group."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import numpy as np

from reroll.errors import InvalidArgument
from reroll.group import RolloutGroup
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


def patch_columns(group: RolloutGroup, fields: Mapping[str, Sequence[Any]]) -> RolloutGroup:
    """Return a group with these fields. A field with one number per token becomes a column. Raises InvalidArgument."""
    _check_fields(fields, len(group))
    members = list(group)  # of this delivery alone
    columns = {
        name: values for name, values in fields.items() if name not in FIELDS and _is_column(members, values)
    }
    if columns:
        for place, member in enumerate(members):
            own = {name: np.asarray(values[place]) for name, values in columns.items()}
            member.columns = {**(member.columns or {}), **own}
    patch_members(members, {name: values for name, values in fields.items() if name not in columns})
    try:
        patched = RolloutGroup.of(members)
    except InvalidArgument as error:
        raise InvalidArgument(f"patch: {error}") from error
    return patched


def _is_column(members: Sequence[Rollout], values: Sequence[Any]) -> bool:
    """Return whether values are numbers, one for each response token, or for each token of prompt and response."""
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError:  # ragged
        return False
    responses = [0 if member.response_ids is None else len(member.response_ids) for member in members]
    prompts = [0 if member.prompt_ids is None else len(member.prompt_ids) for member in members]
    sizes = [len(array) if array.ndim and array.dtype.kind in "biuf" else -1 for array in arrays]
    return sum(responses) > 0 and sizes in (
        responses,
        [p + r for p, r in zip(prompts, responses, strict=True)],
    )


def _check_fields(fields: Mapping[str, Sequence[Any]], count: int) -> None:
    for name, values in fields.items():
        if name == "priority":
            raise InvalidArgument("patch cannot change the priority of a group; call update_priorities")
        if name in _FIXED or name.startswith("_"):
            raise InvalidArgument(f"patch cannot change {name}; take the group and put it again")
        if isinstance(values, str | bytes | Mapping | AbstractSet) or _length(values) != count:
            raise InvalidArgument(f"patch: {name} must be a list of {count} values, one for each rollout")


def patch_members(items: Sequence[Any], fields: Mapping[str, Sequence[Any]]) -> Undo:
    """Give each rollout its value of each field: as attribute where it has one, else in its `extra_fields`.

    Return what `undo_patch` needs. Raises InvalidArgument, and leaves all rollouts as they were, if one cannot take it.
    """
    _check_fields(fields, len(items))
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
