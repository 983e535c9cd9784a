"""Which classes of the user may be stored, and under which names. One registry serves the process.

Blobs hold names, never code: what is read can only be of a type that this process registered itself.
"""

import datetime as dt
import decimal
import pathlib
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, overload

import numpy as np

from reroll.codec.limits import ATOMS
from reroll.codec.plain_values import PATH_TYPES
from reroll.codec.recipes import CustomRecipe, Recipe, recipe_of
from reroll.errors import InvalidArgument
from reroll.rollout import DictRollout, Rollout, Status, VersionRuns

T = TypeVar("T")

_OWN: Final = frozenset(
    (
        *ATOMS,
        *(list, tuple, dict, set, frozenset, bytes, bytearray, complex, object, type, np.ndarray),
        *(dt.datetime, dt.date, dt.timedelta, decimal.Decimal, uuid.UUID, pathlib.Path, *PATH_TYPES),
        *(Rollout, DictRollout, Status, VersionRuns),
    )
)


class Entry(NamedTuple):
    """A registered type."""

    cls: type
    name: str
    recipe: Recipe


BY_TYPE: Final[dict[type, Entry]] = {}
BY_NAME: Final[dict[str, Entry]] = {}


@overload
def register(
    cls: type[T],
    *,
    name: str | None = None,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
) -> type[T]: ...
@overload
def register(cls: None = None, *, name: str | None = None) -> Callable[[type[T]], type[T]]: ...
def register(
    cls: type[Any] | None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Any:
    """Let objects of a class be stored outside of the process, and return the class; also a decorator.

    Dataclasses, pydantic models, enums, named tuples and subclasses of Rollout need nothing more; `encode` and
    `decode`, to and from a value that can be stored, serve any other class. Objects are restored as they were:
    neither `__init__` nor validators run. A field that is new since gets its default; one that is gone is an error.

    `name` is what is stored in place of the class (default: module and class name), so that it may move. Registering
    a class again replaces what was said before; under another name, both names are read. Raises InvalidArgument.
    """
    if cls is None:
        return lambda decorated: register(decorated, name=name, encode=encode, decode=decode)
    if not isinstance(cls, type):
        raise InvalidArgument(f"register takes a class, not {cls!r}")
    if cls in _OWN or issubclass(cls, np.generic):
        raise InvalidArgument(f"{cls.__qualname__} is stored as it is; it needs no registration")
    if (encode is None) != (decode is None) or not (
        encode is None or (callable(encode) and callable(decode))
    ):
        raise InvalidArgument(f"{cls.__qualname__}: give two functions, encode and decode, or neither")
    recipe = recipe_of(cls) if encode is None or decode is None else CustomRecipe(cls, encode, decode)
    if recipe is None:
        raise InvalidArgument(
            f"{cls.__qualname__} is no dataclass, pydantic model, enum, named tuple or Rollout; give encode= and decode=,"
            f" functions from an object to a dict or list of what it holds, and back"
        )
    if name is None:
        name = _full_name(cls)
    elif not isinstance(name, str) or not name:
        raise InvalidArgument(f"name must be a text that is not empty, not {name!r}")
    other = BY_NAME.get(name)
    # A module that was loaded again brings its classes again.
    if other is not None and _full_name(other.cls) != _full_name(cls):
        raise InvalidArgument(
            f"{name!r} is already the name of {_full_name(other.cls)}; give {_full_name(cls)} another one with name="
        )
    BY_NAME[name] = BY_TYPE[cls] = Entry(cls, name, recipe)
    return cls


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
