"""Where in a value the part is that cannot be stored, and what to do about it. Only asked after a refusal.

It goes the way that the encoder goes, with the path in hand, and asks the encoder about each part that holds no others.
"""

import reprlib
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from reroll.codec.limits import ATOMS, MAX_DEPTH, Refusal
from reroll.codec.lowering import Encoder
from reroll.codec.recipes import recipe_of
from reroll.codec.refs import RefWriter, is_ref
from reroll.codec.registry import BY_TYPE
from reroll.errors import InvalidArgument
from reroll.rollout import DictRollout, Rollout
from reroll.rollout.checkout import MarkedFields
from reroll.rollout.model import STATE_SLOTS

Parts = Iterable[tuple[str, Any]]


class Unstorable(NamedTuple):
    """One part that cannot be stored."""

    path: str
    cls: type
    reason: str


def find_unstorable(
    value: Any, *, root: str = "value", allow_pickle: bool = False, refs: RefWriter | None = None
) -> Unstorable | None:
    """Return the first part of a value that `encode` would refuse, None where there is none.

    `root` is what the value is called in the path. Costs about one look at every container.
    """
    return _Search(allow_pickle, refs).look(value, root, {})


class _Search:
    def __init__(self, allow_pickle: bool, refs: RefWriter | None) -> None:
        self._allow_pickle = allow_pickle
        self._refs = refs

    def look(self, value: Any, path: str, around: dict[int, str]) -> Unstorable | None:
        kind = type(value)
        parts = _PARTS.get(kind)
        entry = BY_TYPE.get(kind)
        if parts is None and entry is None:
            return self._look_at_leaf(value, path)
        if id(value) in around:
            reason = (
                f"holds itself: it is {around[id(value)]}; store a key or a copy in place of the way back"
            )
            return Unstorable(path, kind, reason)
        if len(around) >= MAX_DEPTH:
            return Unstorable(path, kind, f"lies more than {MAX_DEPTH} containers deep; store it flatter")
        if _is_flat(value):
            return None
        try:
            inside = list(parts(value) if parts is not None else entry.recipe.parts(value))  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001  (the user's code)
            reason = f"the state of a {kind.__qualname__} could not be taken: {type(error).__name__}: {error}"
            return Unstorable(path, kind, reason)
        around = {**around, id(value): path}
        for suffix, part in inside:
            found = self.look(part, f"{path}{suffix}", around)
            if found is not None:
                return found
        return None

    def _look_at_leaf(self, value: Any, path: str) -> Unstorable | None:
        if self._refs is not None and is_ref(value):
            return None  # not stored for a look
        try:
            Encoder(allow_pickle=self._allow_pickle, refs=self._refs, exact=True).lower(value, 0)
        except Refusal as refusal:
            return Unstorable(path, type(value), str(refusal) or _not_registered(type(value)))
        return None


def _is_flat(value: Any) -> bool:
    return type(value) is list and ATOMS.issuperset(map(type, value))


def _not_registered(kind: type) -> str:
    name = kind.__qualname__
    try:
        is_known = recipe_of(kind) is not None
    except InvalidArgument:
        is_known = False
    if is_known:
        return f"{name} is not registered; call reroll.register({name}) beside its definition"
    return (
        f"{name} is not registered; call reroll.register({name}, encode=..., decode=...) with functions from an object to"
        f" a dict or list of what it holds, and back"
    )


def _parts_of_dict(entries: dict[Any, Any]) -> Parts:
    for key, value in entries.items():
        if type(key) not in ATOMS:
            yield f" (key {_short(key)})", key
        yield f"[{_short(key)}]", value


def _short(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001  (the user's code, while another error is told)
        return type(value).__name__


_PARTS: Final[dict[type, Callable[[Any], Parts]]] = {
    list: lambda items: ((f"[{at}]", item) for at, item in enumerate(items)),
    tuple: lambda items: ((f"[{at}]", item) for at, item in enumerate(items)),
    set: lambda items: ((f" (item {_short(item)})", item) for item in items),
    frozenset: lambda items: ((f" (item {_short(item)})", item) for item in items),
    dict: _parts_of_dict,
    MarkedFields: _parts_of_dict,
    Rollout: lambda rollout: zip(
        [f".{slot.removeprefix('_')}" for slot in STATE_SLOTS], rollout.state(), strict=True
    ),
    DictRollout: lambda rollout: ((f".{name}", part) for name, part in rollout.data.items()),
}
