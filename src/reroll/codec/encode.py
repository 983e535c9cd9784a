"""Encode values as blobs: convert them to values that MessagePack packs, with arrays beside them.

There are two passes. The fast pass passes plain parts on without inspecting them. If a part cannot be packed or stored,
the exact pass starts again: it converts integers beyond 64 bits and text with lone surrogates, finds cycles, and keeps
the path of the current part for the error.

Types are matched exactly. A subclass of a known type is another type, since it would be restored as its parent.
"""

import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from reroll.codec.arrays import (
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    ArrayWriter,
    is_tensor,
    write_scalar,
    write_tensor,
)
from reroll.codec.frame import ATOMS, MAX_DEPTH, MAX_PART, Code, join
from reroll.codec.registry import BY_TYPE, LEAVES, Entry, needs_functions
from reroll.codec.rows import PLAIN_AT, VERSIONS_AT, write_row
from reroll.errors import NotStorable, shown
from reroll.rollout import Rollout
from reroll.rollout.checkout import MarkedFields
from reroll.rollout.rollout import STATE_SLOTS

_pack: Final = msgspec.msgpack.encode
_NO_ARRAYS: Final = _pack([])
_LIST: Final = frozenset({list})
_TEXT: Final = frozenset({str})
_MIN_NUMBERS: Final = 32  # shorter lists of numbers are smaller in the body than as an array
_MIN_BYTES: Final = 1024  # longer bytes are copied once less as an array
_PLAIN_STEPS: Final = tuple(f".{slot.removeprefix('_')}" for slot in STATE_SLOTS[PLAIN_AT:])
_STATE_STEPS: Final = (" (returned by its encode function)",)

Parts = tuple[bytes, bytes, list[Any]]
"""Table, body and arrays of a blob."""


class RefWriter(Protocol):
    """Stores Ray references outside of the blob, which holds their numbers."""

    def store(self, ref: Any) -> int:
        """Return the number under which a `RefReader` finds this reference, or its successor.

        Args:
            ref: a reference to an object of Ray.

        """
        ...


class Unstorable(NamedTuple):
    """A part of a value that cannot be stored."""

    path: str
    cls: type
    reason: str


def encode(
    value: Any, *, allow_pickle: bool = False, refs: RefWriter | None = None, root: str = "value"
) -> bytes:
    """Return a value as one blob, which `decode` reads without loss. O(size); each array is copied once.

    Args:
        value: Plain Python values, arrays, tensors, rollouts, and objects of registered types.
        allow_pickle: Whether to pickle objects of other types. Reading them runs code and must be allowed as well.
        refs: Stores the Ray references in the value.
        root: The name of the value in errors.

    Raises:
        NotStorable: A part of the value cannot be stored; the message has its path and the remedy.

    """
    return join(*_parts(value, allow_pickle=allow_pickle, refs=refs, root=root))


def find_unstorable(
    value: Any, *, root: str = "value", allow_pickle: bool = False, refs: RefWriter | None = None
) -> Unstorable | None:
    """Return the first part of a value that `encode` would refuse; None if there is none. References are not stored.

    Args:
        value: the value to check.
        root: name of the value in paths.
        allow_pickle: as for `encode`.
        refs: as for `encode`.

    """
    encoder = _Encoder(root, allow_pickle=allow_pickle, refs=None if refs is None else _NoRefs(), exact=True)
    try:
        encoder.parts(value)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        return Unstorable(encoder.path, type(encoder.current(value)), str(error))
    return None


def _parts(value: Any, *, allow_pickle: bool, refs: RefWriter | None, root: str) -> Parts:
    if type(value) is int or type(value) is str:  # group ids: one for each row of a checkpoint
        with suppress(OverflowError, UnicodeEncodeError):
            return _NO_ARRAYS, _pack((0, value)), []
    once = None if refs is None else _RefsOnce(refs)
    encoder = _Encoder(root, allow_pickle=allow_pickle, refs=once, exact=False)
    try:
        try:
            return encoder.parts(value)
        except (OverflowError, TypeError, ValueError):  # NotStorable is a TypeError and a ValueError
            encoder = _Encoder(root, allow_pickle=allow_pickle, refs=once, exact=True)
            return encoder.parts(value)
    except NotStorable as error:
        raise NotStorable(f"{encoder.path}: {error}") from error.__cause__
    except (OverflowError, ValueError) as error:
        raise NotStorable(
            f"{root}: too large for the format, or a name in it is not valid text: {type(error).__name__}: {error}"
        ) from error
    except RecursionError as error:
        raise NotStorable(
            f"{root}: nested more than {MAX_DEPTH} deep, or encoded with little stack left"
        ) from error


class _RefsOnce:
    """Stores each reference once, also if a value is encoded in two passes."""

    def __init__(self, refs: RefWriter) -> None:
        self._refs = refs
        self._numbers: dict[int, tuple[Any, int]] = {}

    def store(self, ref: Any) -> int:
        if id(ref) not in self._numbers:
            self._numbers[id(ref)] = ref, self._refs.store(ref)
        return self._numbers[id(ref)][1]


class _NoRefs:
    """Stores nothing."""

    def store(self, _: Any) -> int:
        return 0


class _Encoder:
    """Encodes one value in one pass.

    In the fast pass, MessagePack raises OverflowError and UnicodeEncodeError for integers and text that it cannot hold.
    """

    __slots__ = ("_allow_pickle", "_around", "_arrays", "_exact", "_refs", "_root", "_steps", "_tensors")

    def __init__(self, root: str, *, allow_pickle: bool, refs: RefWriter | None, exact: bool) -> None:
        self._arrays = ArrayWriter()
        self._root = root
        self._allow_pickle = allow_pickle
        self._refs = refs
        self._exact = exact
        self._tensors: dict[int, tuple[Any, Ext]] = {}
        # In the exact pass: the steps from the root to the current part, and for each object around it (by id) the
        # number of steps to that object. They stay as they are when an error ends the pass.
        self._steps: list[tuple[str, Any]] = []
        self._around: dict[int, int] = {}

    def parts(self, value: Any) -> Parts:
        """Return the parts of the blob of a value. Raises NotStorable, or the errors of MessagePack."""
        if type(value) is list and value and list(map(type, value)).count(Rollout) == len(value):
            body = _pack((1, self._each(value, value, _indexes(value), 0, self._row)))
        else:
            body = _pack((0, self._lower(value, 0)))
        table = _pack(self._arrays.table)
        if max(len(table), len(body)) > MAX_PART:
            raise NotStorable("holds more than 4 GB besides arrays; use numpy arrays, or put smaller groups")
        return table, body, self._arrays.buffers

    @property
    def path(self) -> str:
        """The path of the part at which the exact pass ended."""
        return self._root + "".join(step for step, _ in self._steps)

    def current(self, value: Any) -> Any:
        """Return the part of a value at which the exact pass ended."""
        return self._steps[-1][1] if self._steps else value

    def _lower(self, value: Any, depth: int) -> Any:
        """Return the value that MessagePack packs for a part inside of `depth` containers. Raises NotStorable."""
        kind = type(value)
        if kind in ATOMS:
            return self._atom(value) if self._exact else value
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, value, depth)
        entry = BY_TYPE.get(kind)
        if entry is not None:
            return self._object(entry, value, depth)
        return self._other(value)

    # --- atoms and containers

    def _atom(self, value: Any) -> Any:
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            return Ext(Code.INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if type(value) is str and not _is_utf8(value):
            return Ext(Code.TEXT, value.encode("utf-8", "surrogatepass"))
        return value

    def _each(
        self,
        holder: Any,
        parts: Iterable[Any],
        steps: Iterable[str],
        depth: int,
        lower: Callable[[Any, int], Any] | None = None,
    ) -> list[Any]:
        """Return the lowered parts of an object; `steps` are the ends of their paths, which only the exact pass needs."""
        lower = lower or self._lower
        if not self._exact:
            return [lower(part, depth + 1) for part in parts]
        self._enter(holder)
        lowered = []
        for step, part in zip(steps, parts, strict=True):
            self._steps.append((step, part))
            lowered.append(lower(part, depth + 1))
            self._steps.pop()
        del self._around[id(holder)]
        return lowered

    def _enter(self, holder: Any) -> None:
        if (at := self._around.get(id(holder))) is not None:
            path = self._root + "".join(step for step, _ in self._steps[:at])
            raise NotStorable(f"contains itself: it is {path}; store a key or a copy in place of the cycle")
        self._around[id(holder)] = len(self._steps)

    def _list(self, items: list[Any], depth: int) -> Any:
        _check_depth(depth)
        if len(items) >= _MIN_NUMBERS and (packed := self._numbers(items)) is not None:
            return packed
        if not self._exact:
            if _is_plain(items, MAX_DEPTH - depth):
                return items
            return [self._lower(item, depth + 1) for item in items]
        return self._each(items, items, _indexes(items), depth)

    def _numbers(self, items: list[Any]) -> Ext | None:
        """Return a list of only int or only float as an array, None for other lists."""
        kind, size = type(items[0]), len(items)
        if (kind is not int and kind is not float) or list(map(type, items)).count(kind) != size:
            return None
        data: bytes
        if kind is float:
            code, data = FLOAT64, struct.pack(f"<{size}d", *items)
        elif (packed := _pack_integers(items)) is not None:
            code, data = packed
        else:
            return None
        return _numbered(Code.NUMBERS, self._arrays.add_buffer(code, size, data, len(data)))

    def _dict(self, entries: dict[Any, Any], depth: int, step: Callable[[Any], str] | None = None) -> Any:
        """Lower a dict; `step` returns the step of a key, by default `[key]`."""
        _check_depth(depth)
        step = step or _key_step
        if _TEXT.issuperset(map(type, entries)) and not (self._exact and not all(map(_is_utf8, entries))):
            if self._exact:
                values = self._each(entries, entries.values(), map(step, entries), depth)
                return dict(zip(entries, values, strict=True))
            if ATOMS.issuperset(map(type, entries.values())):
                return entries
            return {key: self._lower(value, depth + 1) for key, value in entries.items()}
        steps = chain.from_iterable((f" (key {shown(key)})", step(key)) for key in entries)
        flat = self._each(entries, chain.from_iterable(entries.items()), steps, depth)
        return Ext(Code.DICT, _pack(flat))

    def _sequence(self, code: int, items: Any, depth: int) -> Ext:
        _check_depth(depth)
        steps = _indexes(items) if code == Code.TUPLE else (f" (item {shown(item)})" for item in items)
        return Ext(code, _pack(self._each(items, items, steps, depth)))

    # --- bytes, arrays and rollouts

    def _bytes(self, value: bytes, _: int) -> Any:
        if len(value) < _MIN_BYTES:
            return value
        return _numbered(Code.BYTES, self._arrays.add_buffer(UINT8, len(value), value, len(value)))

    def _bytearray(self, value: bytearray, _: int) -> Ext:
        content = bytes(value)  # a copy: the caller may resize it
        return _numbered(Code.BYTEARRAY, self._arrays.add_buffer(UINT8, len(content), content, len(content)))

    def _array(self, array: np.ndarray[Any, Any], _: int) -> Ext:
        try:
            return _numbered(Code.ARRAY, self._arrays.add(array))
        except NotStorable:
            if self._allow_pickle:  # it holds Python objects
                return self._pickled(array)
            raise

    def _row(self, rollout: Rollout, depth: int) -> list[Any]:
        _check_depth(depth)
        row = write_row(rollout, self._arrays)
        plain = row[PLAIN_AT:]
        if self._exact:
            row[VERSIONS_AT] = [list(map(int, part)) for part in row[VERSIONS_AT]]
            row[PLAIN_AT:] = self._each(rollout, plain, _PLAIN_STEPS, depth)
        elif not ATOMS.issuperset(map(type, plain)):
            lower = self._lower
            row[PLAIN_AT:] = [value if value is None else lower(value, depth + 1) for value in plain]
        return row

    # --- other objects

    def _object(self, entry: Entry, value: Any, depth: int) -> Ext:
        if entry.cls in LEAVES:
            return Ext(Code.OBJECT, _pack([entry.name, self._lower(entry.to_state(value), 0)]))
        _check_depth(depth)
        try:
            state = entry.to_state(value)
        except NotStorable:
            raise
        except Exception as error:
            kind = type(value).__qualname__
            raise NotStorable(f"cannot read the state of {kind}: {type(error).__name__}: {error}") from error
        if not entry.has_attributes:
            (lowered,) = self._each(value, (state,), _STATE_STEPS, depth)
        else:
            if self._exact:
                self._enter(value)
            lowered = [
                self._dict(part, depth + 2, _attribute_step)
                if type(part) is dict
                else self._lower(part, depth + 2)
                for part in state
            ]
            self._around.pop(id(value), None)
        return Ext(Code.OBJECT, _pack([entry.name, lowered]))

    def _other(self, value: Any) -> Ext:
        if is_tensor(value):
            if id(value) not in self._tensors:
                written = _pack(write_tensor(value, self._arrays))
                self._tensors[id(value)] = value, Ext(Code.TENSOR, written)
            return self._tensors[id(value)][1]
        if isinstance(value, np.generic):
            return Ext(Code.SCALAR, _pack(self._lower(write_scalar(value), 0)))
        if is_ref(value):
            return self._ref(value)
        if not self._allow_pickle:
            raise NotStorable(_not_registered(type(value)))
        return self._pickled(value)

    def _pickled(self, value: Any) -> Ext:
        try:
            return Ext(Code.PICKLE, pickle.dumps(value, protocol=5))
        except Exception as error:
            raise NotStorable(f"{type(value).__name__} cannot be pickled: {error}") from error

    def _ref(self, ref: Any) -> Ext:
        if self._refs is None:
            raise NotStorable(
                "a Ray ObjectRef is valid only in its cluster; put the object that ray.get returns, or encode with refs="
            )
        number = self._refs.store(ref)
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise NotStorable(f"refs.store returned {number!r} for a reference; it must return a number >= 0")
        return Ext(Code.REF, _pack(number))


_HANDLERS: Final[dict[type, Callable[[_Encoder, Any, int], Any]]] = {
    list: _Encoder._list,  # noqa: SLF001  (its own module)
    dict: _Encoder._dict,  # noqa: SLF001
    MarkedFields: lambda self, value, depth: self._dict(dict(value), depth),
    tuple: lambda self, value, depth: self._sequence(Code.TUPLE, value, depth),
    set: lambda self, value, depth: self._sequence(Code.SET, value, depth),
    frozenset: lambda self, value, depth: self._sequence(Code.FROZENSET, value, depth),
    bytes: _Encoder._bytes,  # noqa: SLF001
    bytearray: _Encoder._bytearray,  # noqa: SLF001
    np.ndarray: _Encoder._array,  # noqa: SLF001
    Rollout: lambda self, value, depth: Ext(Code.ROLLOUT, _pack(self._row(value, depth))),
}


def is_ref(value: Any) -> bool:
    """Return whether a value is a Ray ObjectRef (never, unless ray is loaded)."""
    kind = getattr(sys.modules.get("ray"), "ObjectRef", None)
    return isinstance(kind, type) and isinstance(value, kind)


def _indexes(items: Any) -> Iterator[str]:
    return (f"[{at}]" for at in range(len(items)))


def _key_step(key: Any) -> str:
    return f"[{shown(key)}]"


def _attribute_step(name: Any) -> str:
    return f".{name}"


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise NotStorable(f"nested more than {MAX_DEPTH} containers deep; store it in a flatter form")


def _is_plain(items: list[Any], room: int) -> bool:
    """Return whether lists of lists hold only atoms: level by level, without a call for each list."""
    while True:
        kinds = set(map(type, items))
        if kinds <= ATOMS:
            return room >= 1
        # A list that occurs twice may be a cycle; `_lower` ends at the depth limit.
        if kinds != _LIST or room <= 1 or len(set(map(id, items))) != len(items):
            return False
        items = list(chain.from_iterable(items))
        room -= 1


def _pack_integers(items: list[int]) -> tuple[int, bytes] | None:
    with suppress(ValueError):
        return UINT8, bytes(items)
    for code, letter in ((INT32, "i"), (INT64, "q")):
        with suppress(struct.error):
            return code, struct.pack(f"<{len(items)}{letter}", *items)
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbered(code: int, index: int) -> Ext:
    return Ext(code, index.to_bytes(4, "little"))


def _not_registered(kind: type) -> str:
    name = kind.__qualname__
    if not needs_functions(kind):
        return f"{name} is not registered; call reroll.register({name}) beside its definition"
    return (
        f"{name} is not registered; call reroll.register({name}, encode=..., decode=...) with functions from an object to"
        f" a dict or list of its content, and back"
    )
