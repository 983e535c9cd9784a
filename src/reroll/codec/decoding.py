"""Bytes to values. Nothing in a blob is trusted, and nothing in it is run.

The checksum only tells damage from health: whoever can write a blob can write its checksum. So every size is
compared with the bytes that are there, every code and type is looked up in a list of known ones, and names lead to
what this process registered.
"""

import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from reroll.codec import codes
from reroll.codec.arrays import Array, read_arrays
from reroll.codec.framing import Buffer, split
from reroll.codec.limits import MAX_DEPTH
from reroll.codec.plain_values import (
    read_complex,
    read_date,
    read_datetime,
    read_decimal,
    read_path,
    read_timedelta,
    read_uuid,
)
from reroll.codec.refs import RefReader
from reroll.codec.registry import BY_NAME
from reroll.codec.rollouts import read_row, read_status, read_versions
from reroll.codec.scalars import read_scalar
from reroll.codec.tensors import read_tensor
from reroll.errors import CorruptData, RerollError, UnsupportedFormat
from reroll.rollout import DictRollout

_unpack: Final = msgspec.msgpack.decode
_GROWTH: Final = 64
"""So many times the bytes of a blob its copied lists and bytes may have: more than any that `encode` writes."""
_LEAST_BUDGET: Final = 1 << 20
_OBJECT_BYTES: Final = 64
_MAX_DEPTH: Final = MAX_DEPTH + 2  # the pair around the body, and what small values are packed into
# Bytes that open no container in MessagePack. What is left after they are deleted bounds the depth of the whole.
_CLOSED: Final = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))


def decode(
    blob: Buffer, *, allow_pickle: bool = False, refs: RefReader | None = None, max_bytes: int | None = None
) -> Any:
    """Return the value that `encode` wrote; its arrays are read-only views into the blob.

    Lists of numbers and bytes are copies. A blob may name an array many times, so that few bytes would become many: all
    copies together have at most 64 times the bytes of the blob, and at most `max_bytes`.

    Raises CorruptData for bytes that were cut or altered, and UnsupportedFormat for what this process cannot read:
    a newer format, a type that is not registered, torch that is not installed, references without `refs`, and parts
    that were pickled, unless `allow_pickle` is given: unpickling runs whatever code the writer chose.
    """
    frame = split(blob)
    try:
        arrays = read_arrays(_unpack(frame.table), frame.blob, frame.arrays_at)
        budget = max(_LEAST_BUDGET, _GROWTH * len(frame.blob))
        budget = budget if max_bytes is None else min(budget, max_bytes)
        return Decoder(arrays, allow_pickle=allow_pickle, refs=refs, budget=budget).value(
            frame.body.tobytes()
        )
    except (RerollError, MemoryError):
        raise
    except RecursionError as error:
        raise CorruptData(
            f"nested more than {MAX_DEPTH} deep, or read where the stack is nearly full"
        ) from error
    except Exception as error:
        raise CorruptData(f"not what reroll writes: {type(error).__name__}: {error}") from error


class Decoder:
    """Reads one body, whose arrays are there already."""

    __slots__ = ("_allow_pickle", "_budget", "_depth", "_refs", "_tensors", "arrays")

    def __init__(
        self, arrays: list[Array], *, allow_pickle: bool, refs: RefReader | None, budget: int = 1 << 62
    ) -> None:
        self.arrays = arrays
        self._budget = budget
        self._allow_pickle = allow_pickle
        self._refs = refs
        self._depth = 0
        self._tensors: dict[int, Any] = {}

    def value(self, body: bytes) -> Any:
        """Return the value of a whole body."""
        form, content = self.unpack(body)
        if form == 0:
            return content
        if form != 1 or type(content) is not list:
            raise CorruptData(f"a body of form {form!r}")
        arrays = self.arrays
        return [read_row(row, arrays) for row in content]

    def unpack(self, data: bytes) -> Any:
        """Return what is packed here; raises CorruptData where it is nested too deep."""
        if self._depth >= _MAX_DEPTH:
            raise CorruptData(f"nested more than {MAX_DEPTH} deep")
        self._depth += 1
        value = _unpack(data, ext_hook=self._extension)
        # Few bytes, or few that open a container, cannot be nested deep: nearly always nothing more has to be done.
        if len(data) > MAX_DEPTH and len(data.translate(None, _CLOSED)) > MAX_DEPTH and _is_deep(value):
            raise CorruptData(f"nested more than {MAX_DEPTH} deep")
        self._depth -= 1
        return value

    def items(self, data: bytes) -> list[Any]:
        """Return what is packed here, which must be a list."""
        value = self.unpack(data)
        if type(value) is not list:
            raise CorruptData(f"a list was expected, not {type(value).__name__}")
        return value

    def _extension(self, code: int, data: memoryview) -> Any:
        reader = _READERS.get(code)
        if reader is None:
            raise CorruptData(f"a value of the unknown type {code}")
        return reader(self, bytes(data))  # a copy, since the view has a wrong length in msgspec 0.18

    def _array(self, data: bytes) -> Array:
        index = int.from_bytes(data, "little")
        if len(data) != 4 or index >= len(self.arrays):
            raise CorruptData(f"array {index} of {len(self.arrays)}")
        return self.arrays[index]

    def _content(self, data: bytes) -> Array:
        array = self._array(data)
        if array.dtype != np.uint8 or array.ndim != 1:
            raise CorruptData(f"bytes in an array of {array.dtype}")
        self._spend(_OBJECT_BYTES + array.nbytes)
        return array

    def _spend(self, num_bytes: int) -> None:
        """Count bytes that are copied. Raises CorruptData for more than the blob may become."""
        self._budget -= num_bytes
        if self._budget < 0:
            raise CorruptData("becomes too many bytes: lists and bytes name the same arrays again and again")

    def _numbers(self, data: bytes) -> list[Any]:
        array = self._array(data)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise CorruptData(f"a list of numbers in an array of {array.dtype}")
        self._spend(_OBJECT_BYTES + len(array) * (8 if array.dtype.itemsize == 1 else 40))
        numbers: list[Any] = array.tolist()
        return numbers

    def _dict(self, data: bytes) -> dict[Any, Any]:
        parts = iter(self.items(data))
        return dict(zip(parts, parts, strict=True))

    def _tensor(self, data: bytes) -> Any:
        written = self.items(data)
        index = written[0] if written else None
        if type(index) is not int or not 0 <= index < len(self.arrays):
            raise CorruptData(f"a tensor in array {index!r} of {len(self.arrays)}")
        if index not in self._tensors:
            self._tensors[index] = read_tensor(written, self.arrays)
        return self._tensors[index]

    def _dict_rollout(self, data: bytes) -> DictRollout:
        fields = self.unpack(data)
        if type(fields) is not dict:
            raise CorruptData(f"a DictRollout of {type(fields).__name__}")
        return DictRollout(fields)

    def _object(self, data: bytes) -> Any:
        name, state = self.items(data)
        entry = BY_NAME.get(name) if type(name) is str else None
        if entry is None:
            raise UnsupportedFormat(
                f"holds objects of the type {name!r}, which is not registered here; import the module that calls"
                f" reroll.register for it, or give the class that it has now this name: register(..., name={name!r})"
            )
        return entry.recipe.make(state)

    def _pickled(self, data: bytes) -> Any:
        if not self._allow_pickle:
            raise UnsupportedFormat(
                "holds pickled parts, and unpickling runs code: read it with allow_pickle=True if you trust who wrote it"
            )
        try:
            return pickle.loads(data)  # noqa: S301  (only where the caller said so)
        except Exception as error:
            raise CorruptData(f"a pickled part cannot be read: {type(error).__name__}: {error}") from error

    def _ref(self, data: bytes) -> Any:
        number = self.unpack(data)
        if type(number) is not int:
            raise CorruptData(f"a reference by {number!r}")
        if self._refs is None:
            raise UnsupportedFormat(
                "holds Ray references; read it with refs=, which knows what they stand for"
            )
        try:
            return self._refs.load(number)
        except LookupError as error:
            raise CorruptData(f"there is no reference of the number {number}") from error


def _is_deep(value: Any) -> bool:
    """Tell whether lists and dicts are nested too deep, level by level; what extensions hold was looked at before."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        lists = [part for part in level if type(part) is list]
        dicts = [part.values() for part in level if type(part) is dict]
        level = [part for part in chain.from_iterable(chain(lists, dicts)) if type(part) in (list, dict)]
        if not level:
            return False
    return True


def _text(data: bytes) -> str:
    return str(data, "utf-8")


_READERS: Final[dict[int, Callable[[Decoder, bytes], Any]]] = {
    codes.TUPLE: lambda self, data: tuple(self.items(data)),
    codes.SET: lambda self, data: set(self.items(data)),
    codes.FROZENSET: lambda self, data: frozenset(self.items(data)),
    codes.DICT: Decoder._dict,  # noqa: SLF001  (its own module)
    codes.INTEGER: lambda _, data: int.from_bytes(data, "little", signed=True),
    codes.TEXT: lambda _, data: str(data, "utf-8", "surrogatepass"),
    codes.BYTES: lambda self, data: self._content(data).tobytes(),
    codes.BYTEARRAY: lambda self, data: bytearray(self._content(data)),
    codes.NUMBERS: Decoder._numbers,  # noqa: SLF001
    codes.COMPLEX: lambda self, data: read_complex(self.items(data)),
    codes.DATETIME: lambda self, data: read_datetime(self.items(data)),
    codes.DATE: lambda _, data: read_date(_text(data)),
    codes.TIMEDELTA: lambda self, data: read_timedelta(self.items(data)),
    codes.UUID: lambda _, data: read_uuid(data),
    codes.DECIMAL: lambda _, data: read_decimal(_text(data)),
    codes.PATH: lambda self, data: read_path(self.items(data)),
    codes.ARRAY: Decoder._array,  # noqa: SLF001
    codes.SCALAR: lambda self, data: read_scalar(self.items(data)),
    codes.TENSOR: Decoder._tensor,  # noqa: SLF001
    codes.ROLLOUT: lambda self, data: read_row(self.unpack(data), self.arrays),
    codes.DICT_ROLLOUT: Decoder._dict_rollout,  # noqa: SLF001
    codes.VERSIONS: lambda self, data: read_versions(self.items(data)),
    codes.STATUS: lambda _, data: read_status(_text(data)),
    codes.OBJECT: Decoder._object,  # noqa: SLF001
    codes.PICKLE: Decoder._pickled,  # noqa: SLF001
    codes.REF: Decoder._ref,  # noqa: SLF001
}
