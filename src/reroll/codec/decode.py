"""Decode blobs: bytes to values. Nothing in a blob is trusted, and nothing in it is executed.

The checksum detects damage only: the writer of a forged blob can compute it. So each size is compared with the bytes
that exist, each code and dtype is looked up, and names lead only to types that this process registered.
"""

import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from reroll.codec.arrays import Array, read_arrays, read_scalar, read_tensor
from reroll.codec.frame import MAX_DEPTH, Buffer, Code, split
from reroll.codec.registry import BY_NAME
from reroll.codec.rows import read_row
from reroll.errors import CorruptData, RerollError, UnsupportedFormat

_unpack: Final = msgspec.msgpack.decode
_GROWTH: Final = 64
"""Limit of copied lists and bytes, in multiples of the blob's bytes: more than any value that `encode` writes needs."""
_LEAST_BUDGET: Final = 1 << 20
_OBJECT_BYTES: Final = 64
_MAX_LEVELS: Final = (
    MAX_DEPTH + 3
)  # with the pair around the body, and small objects, such as a datetime with the offset of its zone
# Bytes that do not open a container in MessagePack. The number of other bytes is an upper bound of the depth.
_CLOSED: Final = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))


class RefReader(Protocol):
    """Finds the Ray references of a blob."""

    def load(self, number: int) -> Any:
        """Return the reference with a number.

        Args:
            number: returned by `RefWriter.store`.

        Raises:
            LookupError: no reference has this number.

        """
        ...


def decode(
    blob: Buffer, *, allow_pickle: bool = False, refs: RefReader | None = None, max_bytes: int | None = None
) -> Any:
    """Return the value of a blob. O(bytes); arrays are read-only views into the blob, lists and bytes are copies.

    Args:
        blob: Bytes that `encode` returned.
        allow_pickle: Whether to unpickle parts, which runs any code that the writer chose.
        refs: Finds the Ray references of the blob.
        max_bytes: Limit of all copies together. A blob may name the same array many times; the limit is at most 64
            times the bytes of the blob.

    Raises:
        CorruptData: The blob was truncated, altered or forged, or exceeds a limit.
        UnsupportedFormat: This process cannot read the blob: it has a newer format, a type that is not registered,
            tensors without torch installed, references without `refs`, or pickled parts without `allow_pickle`.

    """
    frame = split(blob)
    try:
        arrays = read_arrays(_unpack(frame.table), frame.blob, frame.arrays_at)
        budget = max(_LEAST_BUDGET, _GROWTH * len(frame.blob))
        budget = budget if max_bytes is None else min(budget, max_bytes)
        decoder = _Decoder(arrays, allow_pickle=allow_pickle, refs=refs, budget=budget)
        return decoder.body(frame.body.tobytes())
    except (RerollError, MemoryError):
        raise
    except RecursionError as error:
        raise CorruptData(f"nested more than {MAX_DEPTH} deep, or decoded with little stack left") from error
    except Exception as error:
        raise CorruptData(f"not a blob that reroll wrote: {type(error).__name__}: {error}") from error


class _Decoder:
    """Decodes the body of one blob."""

    __slots__ = ("_allow_pickle", "_arrays", "_budget", "_depth", "_refs", "_tensors")

    def __init__(
        self, arrays: list[Array], *, allow_pickle: bool, refs: RefReader | None, budget: int
    ) -> None:
        self._arrays = arrays
        self._budget = budget
        self._allow_pickle = allow_pickle
        self._refs = refs
        self._depth = 0
        self._tensors: dict[int, Any] = {}

    def body(self, data: bytes) -> Any:
        """Return the value of the body."""
        form, content = self._unpack(data)
        if form == 0:
            return content
        if form != 1 or type(content) is not list:
            raise CorruptData(f"the body has the unknown form {form!r}")
        arrays = self._arrays
        return [read_row(row, arrays) for row in content]

    def _unpack(self, data: bytes) -> Any:
        """Return the value of packed bytes. Raises CorruptData if it is nested too deep."""
        if self._depth >= _MAX_LEVELS:
            raise CorruptData(f"nested more than {MAX_DEPTH} deep")
        self._depth += 1
        value = _unpack(data, ext_hook=self._extension)
        # Few bytes, or few that open a container, cannot be deep: the values are rarely walked.
        if len(data) > MAX_DEPTH and len(data.translate(None, _CLOSED)) > MAX_DEPTH and _is_deep(value):
            raise CorruptData(f"nested more than {MAX_DEPTH} deep")
        self._depth -= 1
        return value

    def _items(self, data: bytes) -> list[Any]:
        value = self._unpack(data)
        if type(value) is not list:
            raise CorruptData(f"expected a list, got {type(value).__name__}")
        return value

    def _extension(self, code: int, data: memoryview) -> Any:
        reader = _READERS.get(code)
        if reader is None:
            raise CorruptData(f"a value has the unknown type {code}")
        return reader(self, bytes(data))  # a copy: the view has a wrong length in msgspec 0.18

    def _array(self, data: bytes) -> Array:
        index = int.from_bytes(data, "little")
        if len(data) != 4 or index >= len(self._arrays):
            raise CorruptData(f"array {index} does not exist; there are {len(self._arrays)}")
        return self._arrays[index]

    def _content(self, data: bytes) -> Array:
        """Return an array of bytes, which the caller copies."""
        array = self._array(data)
        if array.dtype != np.uint8 or array.ndim != 1:
            raise CorruptData(f"bytes have an array of dtype {array.dtype}")
        self._spend(_OBJECT_BYTES + array.nbytes)
        return array

    def _numbers(self, data: bytes) -> list[Any]:
        array = self._array(data)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise CorruptData(f"a list of numbers has an array of dtype {array.dtype}")
        self._spend(_OBJECT_BYTES + len(array) * (8 if array.dtype.itemsize == 1 else 40))
        numbers: list[Any] = array.tolist()
        return numbers

    def _spend(self, num_bytes: int) -> None:
        self._budget -= num_bytes
        if self._budget < 0:
            raise CorruptData(
                "copies exceed the limit of bytes: lists and bytes name the same arrays many times"
            )

    def _dict(self, data: bytes) -> dict[Any, Any]:
        parts = iter(self._items(data))
        return dict(zip(parts, parts, strict=True))

    def _tensor(self, data: bytes) -> Any:
        written = self._items(data)
        index = written[0] if written else None
        if type(index) is not int or not 0 <= index < len(self._arrays):
            raise CorruptData(f"array {index!r} of a tensor does not exist; there are {len(self._arrays)}")
        if index not in self._tensors:
            self._tensors[index] = read_tensor(written, self._arrays)
        return self._tensors[index]

    def _object(self, data: bytes) -> Any:
        name, state = self._items(data)
        entry = BY_NAME.get(name) if type(name) is str else None
        if entry is None:
            raise UnsupportedFormat(
                f"the blob holds objects of type {name!r}, which is not registered here; import the module that registers"
                f" it, or register its present class under this name: reroll.register(..., name={name!r})"
            )
        return entry.from_state(state)

    def _pickled(self, data: bytes) -> Any:
        if not self._allow_pickle:
            raise UnsupportedFormat(
                "the blob holds pickled parts, and unpickling runs code; decode with allow_pickle=True if you trust its source"
            )
        try:
            return pickle.loads(data)  # noqa: S301  (only if the caller allows it)
        except Exception as error:
            raise CorruptData(f"cannot read a pickled part: {type(error).__name__}: {error}") from error

    def _ref(self, data: bytes) -> Any:
        number = self._unpack(data)
        if type(number) is not int:
            raise CorruptData(f"invalid number of a reference: {number!r}")
        if self._refs is None:
            raise UnsupportedFormat("the blob holds Ray references; decode with refs=, which finds them")
        try:
            return self._refs.load(number)
        except LookupError as error:
            raise CorruptData(f"there is no reference with the number {number}") from error


_READERS: Final[dict[int, Callable[[_Decoder, bytes], Any]]] = {
    Code.TUPLE: lambda self, data: tuple(self._items(data)),
    Code.SET: lambda self, data: set(self._items(data)),
    Code.FROZENSET: lambda self, data: frozenset(self._items(data)),
    Code.DICT: _Decoder._dict,  # noqa: SLF001  (its own module)
    Code.INTEGER: lambda _, data: int.from_bytes(data, "little", signed=True),
    Code.TEXT: lambda _, data: str(data, "utf-8", "surrogatepass"),
    Code.BYTES: lambda self, data: self._content(data).tobytes(),
    Code.BYTEARRAY: lambda self, data: bytearray(self._content(data)),
    Code.NUMBERS: _Decoder._numbers,  # noqa: SLF001
    Code.ARRAY: _Decoder._array,  # noqa: SLF001
    Code.SCALAR: lambda self, data: read_scalar(self._items(data)),
    Code.TENSOR: _Decoder._tensor,  # noqa: SLF001
    Code.ROLLOUT: lambda self, data: read_row(self._unpack(data), self._arrays),
    Code.OBJECT: _Decoder._object,  # noqa: SLF001
    Code.PICKLE: _Decoder._pickled,  # noqa: SLF001
    Code.REF: _Decoder._ref,  # noqa: SLF001
}


def _is_deep(value: Any) -> bool:
    """Return whether lists and dicts are nested too deep, level by level; extensions have been checked before."""
    level = [value]
    for _ in range(_MAX_LEVELS):
        lists = [part for part in level if type(part) is list]
        dicts = [part.values() for part in level if type(part) is dict]
        level = [part for part in chain.from_iterable(chain(lists, dicts)) if type(part) in (list, dict)]
        if not level:
            return False
    return True
