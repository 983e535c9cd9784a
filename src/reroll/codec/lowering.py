"""Values to what MessagePack holds: plain parts stay the objects that they are, others become extensions.

Arrays become numbers in a table. Whatever is of an exact type that is known is lowered by it; a subclass of a known
type is another type, since it would not come back.
"""

import datetime as dt
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from reroll.codec import codes
from reroll.codec.arrays import FLOAT64, INT32, INT64, UINT8, ArrayWriter
from reroll.codec.limits import ATOMS, MAX_DEPTH, Refusal
from reroll.codec.plain_values import PATH_TYPES, write_complex, write_datetime, write_path, write_timedelta
from reroll.codec.refs import RefWriter, is_ref
from reroll.codec.registry import BY_TYPE, Entry
from reroll.codec.rollouts import PLAIN_AT, VERSIONS_AT, write_row
from reroll.codec.scalars import write_scalar
from reroll.codec.tensors import is_tensor, write_tensor
from reroll.rollout import DictRollout, Rollout, Status, VersionRuns
from reroll.rollout.checkout import MarkedFields

ROWS: Final = 1
"""The body is a list of rows of Rollouts; 0: any value."""

_pack: Final = msgspec.msgpack.encode
_NO_ARRAYS: Final = _pack([])
_LIST: Final = frozenset({list})
_TEXT: Final = frozenset({str})
_MIN_PACKED: Final = 32  # shorter lists are as quick, and smaller, where they stand
_MIN_APART: Final = 1024  # bytes that are copied once less when they lie beside the arrays


class Encoder:
    """Lowers one value. `exact` looks at every number and text, which costs a call for each.

    Otherwise MessagePack raises OverflowError and UnicodeEncodeError for what it cannot hold.
    """

    __slots__ = ("_allow_pickle", "_exact", "_refs", "_tensors", "arrays")

    def __init__(self, *, allow_pickle: bool, refs: RefWriter | None, exact: bool) -> None:
        self.arrays = ArrayWriter()
        self._allow_pickle = allow_pickle
        self._refs = refs
        self._exact = exact
        self._tensors: dict[int, tuple[Any, Ext]] = {}

    def parts(self, value: Any) -> tuple[bytes, bytes, list[Any]]:
        """Return what the blob of a value is made of; raises Refusal, or what MessagePack raises."""
        body: Any
        if type(value) is list and value and list(map(type, value)).count(Rollout) == len(value):
            body = (ROWS, [self._row(rollout, 1) for rollout in value])
        else:
            body = (0, self.lower(value, 0))
        packed = _pack(body)
        return _pack(self.arrays.table), packed, self.arrays.buffers

    def lower(self, value: Any, depth: int) -> Any:
        """Return what MessagePack writes for a value inside `depth` containers; raises Refusal."""
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

    def _nested(self, code: int, value: Any) -> Ext:
        return Ext(code, _pack(value))

    # --- atoms, where every one is looked at

    def _atom(self, value: Any) -> Any:
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            return Ext(codes.INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if type(value) is str and not _is_utf8(value):
            return Ext(codes.TEXT, value.encode("utf-8", "surrogatepass"))
        return value

    # --- containers

    def _list(self, items: list[Any], depth: int) -> Any:
        _check_depth(depth)
        if len(items) >= _MIN_PACKED and (packed := self._numbers(items)) is not None:
            return packed
        if not self._exact and _is_plain(items, MAX_DEPTH - depth):
            return items
        return [self.lower(item, depth + 1) for item in items]

    def _numbers(self, items: list[Any]) -> Ext | None:
        """Return a list of only int or only float as an array, None for others."""
        kind = type(items[0])
        size = len(items)
        if (kind is not int and kind is not float) or list(map(type, items)).count(kind) != size:
            return None
        data: bytes
        if kind is float:
            code, data = FLOAT64, struct.pack(f"<{size}d", *items)
        else:
            packed = _pack_integers(items)
            if packed is None:
                return None
            code, data = packed
        return _numbered(codes.NUMBERS, self.arrays.add_buffer(code, size, data, len(data)))

    def _dict(self, entries: dict[Any, Any], depth: int) -> Any:
        _check_depth(depth)
        if _TEXT.issuperset(map(type, entries)) and not (self._exact and not all(map(_is_utf8, entries))):
            if not self._exact and ATOMS.issuperset(map(type, entries.values())):
                return entries
            return {key: self.lower(value, depth + 1) for key, value in entries.items()}
        flat = [self.lower(part, depth + 1) for part in chain.from_iterable(entries.items())]
        return self._nested(codes.DICT, flat)

    def _sequence(self, code: int, items: Any, depth: int) -> Ext:
        _check_depth(depth)
        return self._nested(code, [self.lower(item, depth + 1) for item in items])

    # --- arrays and bytes

    def _bytes(self, value: bytes, _: int) -> Any:
        if len(value) < _MIN_APART:
            return value
        return _numbered(codes.BYTES, self.arrays.add_buffer(UINT8, len(value), value, len(value)))

    def _bytearray(self, value: bytearray, _: int) -> Ext:
        # A copy, since nobody may resize it while it is looked at.
        return _numbered(codes.BYTEARRAY, self.arrays.add_buffer(UINT8, len(value), bytes(value), len(value)))

    def _array(self, array: np.ndarray[Any, Any], _: int) -> Ext:
        try:
            return _numbered(codes.ARRAY, self.arrays.add(array))
        except Refusal:
            if self._allow_pickle:  # Python objects in it
                return self._pickled(array)
            raise

    def _tensor(self, tensor: Any) -> Ext:
        if id(tensor) not in self._tensors:
            written = write_tensor(tensor, self.arrays)
            self._tensors[id(tensor)] = tensor, self._nested(codes.TENSOR, written)
        return self._tensors[id(tensor)][1]

    # --- rollouts

    def _row(self, rollout: Rollout, depth: int) -> list[Any]:
        _check_depth(depth)
        row = write_row(rollout, self.arrays)
        if self._exact:
            row[VERSIONS_AT] = [list(map(int, part)) for part in row[VERSIONS_AT]]
        elif ATOMS.issuperset(
            map(type, row[PLAIN_AT:])
        ):  # mostly: `lower` would say the same of each, after a call
            return row
        lower = self.lower
        row[PLAIN_AT:] = [value if value is None else lower(value, depth + 1) for value in row[PLAIN_AT:]]
        return row

    def _rollout(self, rollout: Rollout, depth: int) -> Ext:
        return self._nested(codes.ROLLOUT, self._row(rollout, depth))

    def _dict_rollout(self, rollout: DictRollout, depth: int) -> Ext:
        _check_depth(depth)
        return self._nested(codes.DICT_ROLLOUT, self.lower(rollout.data, depth + 1))

    # --- what the user registered, and what nobody did

    def _object(self, entry: Entry, value: Any, depth: int) -> Ext:
        _check_depth(depth)
        try:
            state = entry.recipe.take(value)
        except Exception as error:
            kind = type(value).__qualname__
            raise Refusal(
                f"the state of a {kind} could not be taken: {type(error).__name__}: {error}"
            ) from error
        return self._nested(codes.OBJECT, [entry.name, self.lower(state, depth + 1)])

    def _other(self, value: Any) -> Any:
        if is_tensor(value):
            try:
                return self._tensor(value)
            except RuntimeError as error:  # torch's way to say that it cannot
                raise Refusal(f"a tensor that cannot be copied: {error}") from error
        if isinstance(value, np.generic):
            return self._nested(codes.SCALAR, self.lower(write_scalar(value), 0))
        if is_ref(value):
            return self._ref(value)
        if not self._allow_pickle:
            raise Refusal
        return self._pickled(value)

    def _pickled(self, value: Any) -> Ext:
        try:
            return Ext(codes.PICKLE, pickle.dumps(value, protocol=5))
        except Exception as error:
            raise Refusal(f"{type(value).__name__} cannot be pickled: {error}") from error

    def _ref(self, ref: Any) -> Ext:
        if self._refs is None:
            raise Refusal(
                "a Ray ObjectRef means nothing outside of its cluster; put what ray.get gives for it, or encode with refs="
            )
        number = self._refs.store(ref)
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise Refusal(f"refs.store gave {number!r} for a reference; it must give a number from 0 on")
        return self._nested(codes.REF, number)


def atom_parts(value: int | str) -> tuple[bytes, bytes, list[Any]]:
    """Return the parts of an atom, as `Encoder.parts` does; raises what MessagePack raises."""
    return _NO_ARRAYS, _pack((0, value)), []


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Refusal(f"nested more than {MAX_DEPTH} deep")


def _is_plain(items: list[Any], room: int) -> bool:
    """Tell whether lists of lists hold only atoms, level by level and without a call for each list."""
    while True:
        kinds = set(map(type, items))
        if kinds <= ATOMS:
            return room >= 1
        # The same list twice is left to the long way: it may be the way back into itself.
        if kinds != _LIST or room <= 1 or len(set(map(id, items))) != len(items):
            return False
        items = list(chain.from_iterable(items))
        room -= 1


def _pack_integers(items: list[int]) -> tuple[int, bytes] | None:
    try:
        return UINT8, bytes(items)
    except ValueError:
        pass
    for code, letter in ((INT32, "i"), (INT64, "q")):
        try:
            return code, struct.pack(f"<{len(items)}{letter}", *items)
        except struct.error:
            continue
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbered(code: int, index: int) -> Ext:
    return Ext(code, index.to_bytes(4, "little"))


_HANDLERS: Final[dict[type, Callable[[Encoder, Any, int], Any]]] = {
    list: Encoder._list,  # noqa: SLF001  (its own module)
    dict: Encoder._dict,  # noqa: SLF001
    MarkedFields: lambda self, value, depth: self._dict(dict(value), depth),
    tuple: lambda self, value, depth: self._sequence(codes.TUPLE, value, depth),
    set: lambda self, value, depth: self._sequence(codes.SET, value, depth),
    frozenset: lambda self, value, depth: self._sequence(codes.FROZENSET, value, depth),
    bytes: Encoder._bytes,  # noqa: SLF001
    bytearray: Encoder._bytearray,  # noqa: SLF001
    np.ndarray: Encoder._array,  # noqa: SLF001
    Rollout: Encoder._rollout,  # noqa: SLF001
    DictRollout: Encoder._dict_rollout,  # noqa: SLF001
    VersionRuns: lambda self, value, _: self._nested(
        codes.VERSIONS, [list(map(int, part)) for part in value.parts]
    ),
    Status: lambda _, value, __: Ext(codes.STATUS, value.value.encode()),
    complex: lambda self, value, _: self._nested(codes.COMPLEX, write_complex(value)),
    dt.datetime: lambda self, value, _: self._nested(codes.DATETIME, write_datetime(value)),
    dt.date: lambda _, value, __: Ext(codes.DATE, value.isoformat().encode()),
    dt.timedelta: lambda self, value, _: self._nested(codes.TIMEDELTA, write_timedelta(value)),
    UUID: lambda _, value, __: Ext(codes.UUID, value.bytes),
    Decimal: lambda _, value, __: Ext(codes.DECIMAL, str(value).encode()),
    **{
        kind: lambda self, value, _: self._nested(codes.PATH, self.lower(write_path(value), 0))
        for kind in PATH_TYPES
    },
}
