"""How objects of registered types are taken apart and put together: by state, never by `__init__`.

A recipe belongs to one type. `take` gives a value that the codec can write, `make` turns it into an object
again, without running a constructor or a validator. Only fields that are new since are filled, by their defaults.
"""

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from reroll.codec.rollouts import check_state
from reroll.errors import CorruptData, InvalidArgument, UnsupportedFormat
from reroll.rollout import Rollout
from reroll.rollout.model import STATE_SLOTS

_MISSING: Any = object()


class Recipe(Protocol):
    """How one registered type is stored."""

    def take(self, value: Any) -> Any:
        """Return the state of an object."""
        ...

    def make(self, state: Any) -> Any:
        """Return the object of a state; raises CorruptData, UnsupportedFormat."""
        ...

    def parts(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Yield what an object holds, each with the path that leads to it."""
        ...


def recipe_of(cls: type) -> Recipe | None:
    """Return how a type is stored that says by itself what it holds, None for others."""
    if issubclass(cls, enum.Enum):
        return EnumRecipe(cls)
    if issubclass(cls, Rollout):
        return RolloutRecipe(cls)
    if _is_pydantic(cls):
        return PydanticRecipe(cls)
    if dataclasses.is_dataclass(cls):
        return DataclassRecipe(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return NamedTupleRecipe(cls)
    return None


def _is_pydantic(cls: type) -> bool:
    main = sys.modules.get("pydantic.main")  # a model cannot exist without it
    return main is not None and issubclass(cls, main.BaseModel)


class CustomRecipe:
    """Two functions of the user."""

    def __init__(self, cls: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        self.take = encode
        self._decode = decode
        self._name = cls.__qualname__

    def make(self, state: Any) -> Any:
        try:
            return self._decode(state)
        except Exception as error:
            raise CorruptData(
                f"the decode function of {self._name} failed: {type(error).__name__}: {error}"
            ) from error

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield " (what its encode function gives)", self.take(value)


class EnumRecipe:
    """A member is its name; a combination of flags its value."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        self._cls = cls
        self._is_flag = issubclass(cls, enum.Flag)

    def take(self, value: enum.Enum) -> Any:
        return value.value if self._is_flag else value.name

    def make(self, state: Any) -> enum.Enum:
        with suppress(LookupError, TypeError, ValueError):
            return self._cls(state) if self._is_flag else self._cls.__members__[state]
        raise UnsupportedFormat(f"{self._cls.__qualname__} has no member {state!r} any more; add it again")

    def parts(self, value: enum.Enum) -> Iterator[tuple[str, Any]]:
        yield ".value", self.take(value)


class NamedTupleRecipe:
    """The fields by name."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._names: tuple[str, ...] = cls._fields

    def take(self, value: Any) -> dict[str, Any]:
        return dict(zip(self._names, value, strict=True))

    def make(self, state: Any) -> Any:
        fields = _filled(self._cls, state, self._names, self._default)
        return tuple.__new__(self._cls, [fields[name] for name in self._names])

    def _default(self, name: str) -> Any:
        return self._cls._field_defaults.get(name, _MISSING)

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", part) for name, part in self.take(value).items())


class _Slots:
    """What an object holds besides its `__dict__`: the slots of its class and of all parents."""

    def __init__(self, cls: type) -> None:
        self.names: list[str] = []
        for parent in cls.__mro__:
            slots = parent.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__"):
                    hidden = name.startswith("__") and not name.endswith("__")
                    self.names.append(f"_{parent.__name__.lstrip('_')}{name}" if hidden else name)

    def held(self, value: Any) -> dict[str, Any]:
        """Return all attributes that are set."""
        held = {
            name: found for name in self.names if (found := getattr(value, name, _MISSING)) is not _MISSING
        }
        held.update(getattr(value, "__dict__", ()))
        return held

    def restore(self, value: Any, held: dict[str, Any]) -> None:
        own = getattr(value, "__dict__", None)
        for name, part in held.items():
            if own is None or name in self.names:
                object.__setattr__(value, name, part)
            else:
                own[name] = part


class DataclassRecipe:
    """Every attribute that is set: fields, and what was added to the object besides."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._fields = {field.name: field for field in dataclasses.fields(cls)}
        self._slots = _Slots(cls)
        _check_plain(cls)

    def take(self, value: Any) -> list[Any]:
        held = self._slots.held(value) if self._slots.names else value.__dict__
        if held.keys() == self._fields.keys():  # nearly always
            return [held, None, None]
        fields = {name: part for name, part in held.items() if name in self._fields}
        others = {name: part for name, part in held.items() if name not in self._fields}
        return [fields, others, [name for name in self._fields if name not in fields]]

    def make(self, state: Any) -> Any:
        fields, others, unset = _unpacked(state, 3)
        fields = _filled(self._cls, fields, self._fields, self._default, unset or ())
        value = object.__new__(self._cls)
        try:
            self._slots.restore(value, fields if others is None else {**fields, **others})
        except (AttributeError, TypeError) as error:
            raise UnsupportedFormat(
                f"{self._cls.__qualname__} cannot hold what was stored: {error}"
            ) from error
        return value

    def _default(self, name: str) -> Any:
        field = self._fields[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        return _MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", part) for name, part in self._slots.held(value).items())


class PydanticRecipe:
    """The four things that a model holds, as they are: fields, extra fields, which were set, private attributes."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        _check_plain(cls)

    def take(self, value: Any) -> list[Any]:
        names = self._cls.model_fields
        held = value.__dict__
        others = None
        if not held.keys() <= names.keys():  # cached properties
            others = {name: part for name, part in held.items() if name not in names}
            held = {name: part for name, part in held.items() if name in names}
        return [
            *(held, others, value.__pydantic_extra__),
            *(list(value.__pydantic_fields_set__), value.__pydantic_private__),
        ]

    def make(self, state: Any) -> Any:
        fields, others, extra, fields_set, private = _unpacked(state, 5)
        held = _filled(self._cls, fields, self._cls.model_fields, self._default)
        if not set(map(type, fields_set)) <= {str} or not {type(extra), type(private)} <= {dict, type(None)}:
            raise CorruptData(f"a {self._cls.__qualname__} that reroll never wrote")
        value = object.__new__(self._cls)
        attributes = self._cls.__private_attributes__
        if attributes:
            fresh = {name: attribute.get_default() for name, attribute in attributes.items()}
            undefined = sys.modules["pydantic_core"].PydanticUndefined
            private = {name: part for name, part in fresh.items() if part is not undefined} | (private or {})
        allows = self._cls.model_config.get("extra") == "allow"
        if extra and not allows:
            raise UnsupportedFormat(
                f"{self._cls.__qualname__} was stored with extra fields, which it does not allow any more: {sorted(extra)}"
            )
        object.__setattr__(value, "__dict__", held if others is None else {**held, **others})
        object.__setattr__(value, "__pydantic_extra__", (extra or {}) if allows else None)
        object.__setattr__(value, "__pydantic_fields_set__", set(fields_set))
        object.__setattr__(value, "__pydantic_private__", private)
        return value

    def _default(self, name: str) -> Any:
        field = self._cls.model_fields[name]
        return _MISSING if field.is_required() else field.get_default(call_default_factory=True)

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        for held in (value.__dict__, value.__pydantic_extra__, value.__pydantic_private__):
            for name, part in (held or {}).items():
                yield f".{name}", part


class RolloutRecipe:
    """A Rollout, and what its subclass adds."""

    def __init__(self, cls: type[Rollout]) -> None:
        self._cls = cls
        self._slots = _Slots(cls)

    def take(self, value: Rollout) -> list[Any]:
        held = self._slots.held(value)
        others = {name: part for name, part in held.items() if name not in STATE_SLOTS}
        return [list(value.state()), others]

    def make(self, state: Any) -> Rollout:
        rollout, others = _unpacked(state, 2)
        value = self._cls.from_state(check_state(rollout))
        try:
            self._slots.restore(value, others)
        except (AttributeError, TypeError) as error:
            raise UnsupportedFormat(
                f"{self._cls.__qualname__} cannot hold what was stored: {error}"
            ) from error
        return value

    def parts(self, value: Rollout) -> Iterator[tuple[str, Any]]:
        return ((f".{name.removeprefix('_')}", part) for name, part in self._slots.held(value).items())


def _check_plain(cls: type) -> None:
    try:
        object.__new__(cls)
    except TypeError as error:
        raise InvalidArgument(
            f"{cls.__qualname__} cannot be restored by its attributes alone ({error}); register it with encode= and decode="
        ) from error


def _unpacked(state: Any, parts: int) -> list[Any]:
    if type(state) is not list or len(state) != parts:
        raise CorruptData(
            "the state of an object that this type never had; was it registered in another way?"
        )
    return state


def _filled(
    cls: type,
    stored: Any,
    names: Iterable[str],
    default: Callable[[str], Any],
    unset: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the stored fields and the defaults of those that are new since; raises UnsupportedFormat."""
    if type(stored) is not dict:
        raise CorruptData("the fields of an object are no dict")
    names = dict.fromkeys(names)
    if stored.keys() == names.keys():  # nearly always
        return stored
    gone = sorted(str(name) for name in stored.keys() - names.keys())
    if gone:
        raise UnsupportedFormat(
            f"{cls.__qualname__} was stored with {', '.join(gone)}, which it does not have any more;"
            f" keep the field, or register the type with a decode= that reads the old state"
        )
    filled = {}
    for name in names:
        if name in stored:
            filled[name] = stored[name]
        elif name not in unset:
            try:
                filled[name] = default(name)
            except Exception as error:
                raise UnsupportedFormat(
                    f"{cls.__qualname__} was stored without {name!r}, whose default cannot be made: {error}"
                ) from error
            if filled[name] is _MISSING:
                raise UnsupportedFormat(
                    f"{cls.__qualname__} was stored without {name!r}, which has no default; give the field one"
                )
    return filled
