"""Registry: types that are stored by name and state, the user's and those of the standard library.

Blobs hold names, never code: decoding creates only objects of types that this process registered. Objects are restored
from their state without a constructor or validator; only fields that the class gained since get their defaults.
"""

import dataclasses
import datetime as dt
import enum
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple, TypeVar, overload
from uuid import UUID

import numpy as np

from reroll.codec.frame import ATOMS
from reroll.codec.rows import check_state, read_status, read_versions
from reroll.errors import CorruptData, InvalidArgument, NotStorable, UnsupportedFormat
from reroll.rollout import DictRollout, Rollout, Status, VersionRuns
from reroll.rollout.rollout import STATE_SLOTS

T = TypeVar("T")

_MISSING: Any = object()
_STATE_NAMES: Final = tuple(slot.removeprefix("_") for slot in STATE_SLOTS)
_BUILT_IN: Final = frozenset(
    (
        *ATOMS,
        *(list, tuple, dict, set, frozenset, bytes, bytearray, object, type, np.ndarray, Path, Rollout),
    )
)


class Entry(NamedTuple):
    """A registered type: its name, and functions to and from a state, which is a value that can be stored."""

    cls: type
    name: str
    to_state: Callable[[Any], Any]
    from_state: Callable[[Any], Any]
    """Raises CorruptData, UnsupportedFormat."""
    has_attributes: bool
    """Whether the state is a list in which dicts hold attributes; else it is one value."""


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
    """Allow objects of a class to be stored and sent to other processes. Also a class decorator.

    Objects are restored as they were: neither `__init__` nor validators run. A field that the class gained since gets
    its default; a field that it lost is an error. Registering a class again replaces its options; under a second name,
    blobs with either name can be read.

    Args:
        cls: The class. Dataclasses, pydantic models, enums, named tuples and subclasses of Rollout need no functions.
        name: The name that is stored in place of the class; default: module and class name. With a fixed name the
            class can move to another module.
        encode: A function from an object to a value that can be stored, such as a dict; required for other classes.
        decode: The inverse of `encode`.

    Returns:
        The class.

    Raises:
        InvalidArgument: The class cannot be stored this way, needs no registration, or the name is taken.

    Example:
        >>> register(Environment, encode=vars, decode=lambda state: Environment(**state))

    """
    if cls is None:
        return lambda decorated: register(decorated, name=name, encode=encode, decode=decode)
    if not isinstance(cls, type):
        raise InvalidArgument(f"register takes a class, not {cls!r}")
    if cls in _BUILT_IN or cls in _STANDARD or issubclass(cls, np.generic):
        raise InvalidArgument(f"{cls.__qualname__} can always be stored; it needs no registration")
    if (encode is None) != (decode is None) or not (
        encode is None or (callable(encode) and callable(decode))
    ):
        raise InvalidArgument(f"{cls.__qualname__}: give two functions, encode and decode, or neither")
    adapter = _adapter_of(cls)
    if encode is not None and decode is not None:
        adapter = encode, _guarded(cls, decode), False
    if adapter is None:
        raise InvalidArgument(
            f"{cls.__qualname__} is not a dataclass, pydantic model, enum, named tuple or Rollout; give encode= and"
            f" decode=, functions from an object to a dict or list of its content, and back"
        )
    if name is None:
        name = _full_name(cls)
    elif not isinstance(name, str) or not name:
        raise InvalidArgument(f"name must be a non-empty string, not {name!r}")
    other = BY_NAME.get(name)
    # A module that is reloaded registers its classes again.
    if other is not None and _full_name(other.cls) != _full_name(cls):
        raise InvalidArgument(
            f"{name!r} is already the name of {_full_name(other.cls)}; give {_full_name(cls)} another one with name="
        )
    BY_NAME[name] = BY_TYPE[cls] = Entry(cls, name, *adapter)
    return cls


def needs_functions(cls: type) -> bool:
    """Return whether `register` requires `encode` and `decode` for a class."""
    try:
        return _adapter_of(cls) is None
    except InvalidArgument:
        return True


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# --- adapters of classes that need no functions: to_state, from_state, has_attributes

_Adapter = tuple[Callable[[Any], Any], Callable[[Any], Any], bool]


def _adapter_of(cls: Any) -> _Adapter | None:
    if issubclass(cls, enum.Flag):  # flags can be combined, so that the value is stored
        return lambda value: value.value, partial(_read_member, cls, cls), False
    if issubclass(cls, enum.Enum):
        return lambda value: value.name, partial(_read_member, cls, cls.__members__.__getitem__), False
    if issubclass(cls, Rollout):
        return _write_rollout, partial(_read_rollout, cls), True
    main = sys.modules.get("pydantic.main")  # loaded if a model exists
    if main is not None and issubclass(cls, main.BaseModel):
        _check_plain(cls)
        return _write_model, partial(_read_model, cls), True
    if hasattr(cls, "__dataclass_fields__"):
        _check_plain(cls)
        names = frozenset(field.name for field in dataclasses.fields(cls))
        return partial(_write_dataclass, names), partial(_read_dataclass, cls), True
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return lambda value: [value._asdict()], partial(_read_named_tuple, cls), True
    return None


def _guarded(cls: type, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that raises CorruptData if `decode` fails."""

    def from_state(state: Any) -> Any:
        try:
            return decode(state)
        except (CorruptData, UnsupportedFormat):
            raise
        except Exception as error:
            raise CorruptData(
                f"the decode function of {cls.__qualname__} failed: {type(error).__name__}: {error}"
            ) from error

    return from_state


def _read_member(cls: type, find: Callable[[Any], Any], state: Any) -> Any:
    with suppress(LookupError, TypeError, ValueError):
        return find(state)
    raise UnsupportedFormat(f"{cls.__qualname__} has no member {state!r} any more; add it again")


def _read_named_tuple(cls: Any, state: Any) -> Any:
    (stored,) = _unpacked(state, 1)
    fields = _filled(cls, stored, cls._fields, lambda name: cls._field_defaults.get(name, _MISSING))
    return tuple.__new__(cls, [fields[name] for name in cls._fields])


def _write_dataclass(names: frozenset[str], value: Any) -> list[Any]:
    """Return fields, other attributes, and the names of fields that are not set."""
    held = _attributes(value)
    if held.keys() == names:  # the usual case
        return [held, None, None]
    fields = {name: part for name, part in held.items() if name in names}
    others = {name: part for name, part in held.items() if name not in names}
    return [fields, others, list(names - fields.keys())]


def _read_dataclass(cls: Any, state: Any) -> Any:
    def default(name: str) -> Any:
        field = fields[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        return _MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()

    stored, others, unset = _unpacked(state, 3)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    held = _filled(cls, stored, fields, default, unset or ())
    return _with_attributes(object.__new__(cls), held if others is None else {**held, **others})


def _write_model(value: Any) -> list[Any]:
    """Return fields, cached properties, extra fields, the names of fields that were given, and private attributes."""
    names, held, others = type(value).model_fields, value.__dict__, None
    if not held.keys() <= names.keys():
        others = {name: part for name, part in held.items() if name not in names}
        held = {name: part for name, part in held.items() if name in names}
    given = list(value.__pydantic_fields_set__)
    return [held, others, value.__pydantic_extra__, given, value.__pydantic_private__]


def _read_model(cls: Any, state: Any) -> Any:
    def default(name: str) -> Any:
        field = cls.model_fields[name]
        return _MISSING if field.is_required() else field.get_default(call_default_factory=True)

    stored, others, extra, given, private = _unpacked(state, 5)
    held = _filled(cls, stored, cls.model_fields, default)
    if not set(map(type, given)) <= {str} or not {type(extra), type(private)} <= {dict, type(None)}:
        raise CorruptData(f"invalid state of a {cls.__qualname__}")
    if cls.__private_attributes__:
        undefined = sys.modules["pydantic_core"].PydanticUndefined
        fresh = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
        private = {name: part for name, part in fresh.items() if part is not undefined} | (private or {})
    allows = cls.model_config.get("extra") == "allow"
    if extra and not allows:
        raise UnsupportedFormat(
            f"{cls.__qualname__} was stored with extra fields, which it does not allow any more: {sorted(extra)}"
        )
    value = object.__new__(cls)
    value.__setstate__(
        {
            "__dict__": held if others is None else {**held, **others},
            "__pydantic_extra__": (extra or {}) if allows else None,
            "__pydantic_fields_set__": set(given),
            "__pydantic_private__": private,
        }
    )
    return value


def _write_rollout(value: Rollout) -> list[Any]:
    """Return the state of a Rollout by name, and the attributes that its subclass adds."""
    others = {
        name: part for name, part in _attributes(value).items() if name not in {*STATE_SLOTS, "_others"}
    }
    return [dict(zip(_STATE_NAMES, value.state(), strict=True)), others]


def _read_rollout(cls: type[Rollout], state: Any) -> Rollout:
    stored, others = _unpacked(state, 2)
    fields = _filled(cls, stored, _STATE_NAMES, lambda _: _MISSING)
    value = cls.from_state(check_state([fields[name] for name in _STATE_NAMES]))
    return _with_attributes(value, others)


def _attributes(value: Any) -> dict[str, Any]:
    """Return all attributes of an object that are set, in `__dict__` and in slots."""
    state: Any = object.__getstate__(value)  # of a class with slots: a pair, dict and slots
    if type(state) is tuple:
        return {**state[1], **(state[0] or {})}
    return state or {}


def _with_attributes(value: T, attributes: dict[str, Any]) -> T:
    try:
        for name, part in attributes.items():
            object.__setattr__(value, name, part)
    except (AttributeError, TypeError) as error:
        raise UnsupportedFormat(
            f"{type(value).__qualname__} cannot hold a stored attribute: {error}"
        ) from error
    return value


def _check_plain(cls: type) -> None:
    try:
        object.__new__(cls)
    except TypeError as error:
        raise InvalidArgument(
            f"{cls.__qualname__} cannot be restored from its attributes alone ({error}); register it with encode= and decode="
        ) from error


def _unpacked(state: Any, parts: int) -> list[Any]:
    if type(state) is not list or len(state) != parts:
        raise CorruptData("a stored state is one that its class never had; register the class as before")
    return state


def _filled(
    cls: type, stored: Any, names: Iterable[str], default: Callable[[str], Any], unset: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the stored fields, and the defaults of fields that are new. Raises CorruptData, UnsupportedFormat."""
    if type(stored) is not dict:
        raise CorruptData(f"the fields of a stored {cls.__qualname__} are not a dict")
    names = dict.fromkeys(names)
    if stored.keys() == names.keys():  # the usual case
        return stored
    if gone := sorted(str(name) for name in stored.keys() - names.keys()):
        raise UnsupportedFormat(
            f"{cls.__qualname__} was stored with {', '.join(gone)}, which it does not have any more;"
            f" keep the field, or register the class with a decode= that reads the old state"
        )
    filled = {}
    for name in names:
        if name in stored:
            filled[name] = stored[name]
        elif name not in unset:
            filled[name] = default(name)
            if filled[name] is _MISSING:
                raise UnsupportedFormat(
                    f"{cls.__qualname__} was stored without {name!r}, which has no default; give the field one"
                )
    return filled


# --- types of the standard library and of reroll


def _write_datetime(value: dt.datetime) -> list[Any]:
    zone: Any = value.tzinfo
    if type(zone) is dt.timezone:
        zone = list(zone.__getinitargs__())  # type: ignore[attr-defined]  # offset and name
    elif zone is not None:
        key = getattr(zone, "key", None)
        if type(zone).__module__ != "zoneinfo" or type(key) is not str:
            raise NotStorable(
                f"a time has a zone of class {type(zone).__name__}; use datetime.timezone or zoneinfo.ZoneInfo"
            )
        zone = key
    return [value.replace(tzinfo=None).isoformat(), value.fold, zone]


def _read_datetime(state: Any) -> dt.datetime:
    text, fold, zone = state
    if type(zone) is str:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415  (rarely needed)

        try:
            zone = ZoneInfo(zone)
        except ZoneInfoNotFoundError as error:
            raise UnsupportedFormat(f"time zone {zone!r} is unknown; install tzdata") from error
    elif zone is not None:
        zone = dt.timezone(*zone)
    return dt.datetime.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _read_decimal(state: Any) -> Decimal:
    if type(state) is not str:  # converting a huge integer takes too long
        raise CorruptData(f"invalid decimal number: {state!r}")
    return Decimal(state)


def _read_dict_rollout(state: Any) -> DictRollout:
    (fields,) = _unpacked(state, 1)
    if type(fields) is not dict:
        raise CorruptData(f"the content of a DictRollout is not a dict: {fields!r}")
    return DictRollout(fields)


_FUNCTIONS: Final[tuple[tuple[Any, str, Callable[[Any], Any], Callable[[Any], Any]], ...]] = (
    (complex, "complex", lambda value: [value.real, value.imag], lambda state: complex(*state)),
    (dt.datetime, "datetime", _write_datetime, _read_datetime),
    (dt.date, "date", dt.date.isoformat, dt.date.fromisoformat),
    (
        *(dt.timedelta, "timedelta"),
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda state: dt.timedelta(*state),
    ),
    (UUID, "uuid", lambda value: value.bytes, lambda state: UUID(bytes=state)),
    (Decimal, "decimal", str, _read_decimal),
    (type(Path()), "path", str, Path),
    (PurePosixPath, "posix_path", str, PurePosixPath),
    (PureWindowsPath, "windows_path", str, PureWindowsPath),
    (Status, "status", lambda value: value.value, read_status),
    (VersionRuns, "versions", lambda value: [list(map(int, part)) for part in value.parts], read_versions),
)
for _entry in (
    *(Entry(cls, name, write, _guarded(cls, read), False) for cls, name, write, read in _FUNCTIONS),
    Entry(DictRollout, "dict_rollout", lambda value: [value.data], _read_dict_rollout, True),
):
    BY_NAME[_entry.name] = BY_TYPE[_entry.cls] = _entry


LEAVES: Final = frozenset(entry[0] for entry in _FUNCTIONS)
"""Types of small values, which are not containers: they do not count as a level of nesting."""
_STANDARD: Final = frozenset(BY_TYPE)
