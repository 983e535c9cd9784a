"""The arrays of a blob: the table that describes them, and their bytes.

The table is a list of pairs, dtype and shape. Each array starts at the next multiple of 64 after the one
before, so no offset is stored, and none can point outside or overlap. What is read are views into the blob.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from reroll.codec.dtypes import CODES, SIZES, STANDARD, read_dtype, write_dtype
from reroll.codec.framing import ALIGNMENT, PADDING
from reroll.codec.limits import Refusal
from reroll.errors import CorruptData

Array = npt.NDArray[Any]

UINT8, INT32, INT64, FLOAT64 = (CODES[np.dtype(text)] for text in ("|u1", "<i4", "<i8", "<f8"))

_PAD: Final = ALIGNMENT - 1
_CODES: Final = len(STANDARD)
_MAX_DIMENSIONS: Final = 64


class ArrayWriter:
    """Collects arrays, each object once."""

    __slots__ = ("_index_of", "_kept", "buffers", "table")

    def __init__(self) -> None:
        self.table: list[Any] = []
        self.buffers: list[Any] = []
        self._index_of: dict[int, int] = {}
        self._kept: list[Any] = []  # an id may be given again once its object is gone

    def add(self, array: Array) -> int:
        """Return the number of an array, which is copied into the blob later; raises Refusal."""
        index = self._index_of.get(id(array))
        if index is not None:
            return index
        code = CODES.get(array.dtype)
        if code is None or array.ndim != 1 or not array.flags.c_contiguous:
            index = self._add_any(array)
            self._kept.append(array)
        else:  # `add_buffer`, without another call
            table, size = self.table, len(array)
            index = len(table)
            table.append((code, size))
            self.buffers.append(array)
            if padding := -size * SIZES[code] & _PAD:
                self.buffers.append(PADDING[padding])
        self._index_of[id(array)] = index
        return index

    def add_columns(self, row: list[Any], types: Sequence[int]) -> None:
        """Put numbers in place of the arrays that a row begins with: what is no None and no True there.

        For a `Rollout`, which made sure that each is contiguous, of one dimension, and of the type with this code.
        Groups spend most of their encoding here.
        """
        index_of, table, buffers = self._index_of, self.table, self.buffers
        for at, code in enumerate(types):
            array = row[at]
            if array is None or array is True:
                continue
            index = index_of.get(id(array))
            if index is None:
                size = len(array)
                index = index_of[id(array)] = len(table)
                table.append((code, size))
                buffers.append(array)
                if padding := -size * SIZES[code] & _PAD:
                    buffers.append(PADDING[padding])
            row[at] = index

    def add_buffer(self, code: Any, shape: Any, buffer: Any, nbytes: int) -> int:
        """Return the number of an array that is given as its bytes."""
        table = self.table
        index = len(table)
        table.append((code, shape))
        self.buffers.append(buffer)
        if padding := -nbytes & _PAD:
            self.buffers.append(PADDING[padding])
        return index

    def _add_any(self, array: Array) -> int:
        code = write_dtype(array.dtype)
        if not array.dtype.itemsize:
            raise Refusal(f"an array of dtype {array.dtype}, whose entries have no bytes")
        dims: list[Any] = list(array.shape)
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            array, dims = array.T, [dims]
        plain = np.ascontiguousarray(array).reshape(-1)
        # Not every dtype can be seen as a buffer; its bytes can.
        return self.add_buffer(code, dims, plain.view(np.uint8) if plain.size else b"", plain.nbytes)


def read_arrays(table: Any, blob: memoryview, start: int) -> list[Array]:
    """Return the arrays that the table describes, as read-only views; raises CorruptData."""
    if type(table) is not list:
        raise CorruptData("the table of arrays is no list")
    blob = _aligned(blob)
    size = len(blob)
    whole: list[Array | None] = [None] * len(STANDARD)
    arrays: list[Array] = []
    at = (start + _PAD) & ~_PAD
    for code, shape in table:
        if type(shape) is int and type(code) is int and 0 <= code < _CODES:
            itemsize = SIZES[code]
            end = at + shape * itemsize
            if not at <= end <= size:
                raise CorruptData(f"an array of {shape} entries does not fit into {size} bytes")
            # A slice of one view over everything costs a third of a view of its own.
            entries = whole[code]
            if entries is None:
                entries = whole[code] = np.frombuffer(blob, STANDARD[code], size // itemsize)
            first = at // itemsize
            arrays.append(entries[first : first + shape])
        else:
            dtype, dims, order = read_dtype(code), *_read_shape(shape)
            end = at + math.prod(dims) * dtype.itemsize
            if end > size or not dtype.itemsize or dtype.subdtype is not None:
                raise CorruptData(
                    f"an array of shape {dims} and dtype {dtype} does not fit into {size} bytes"
                )
            content = np.frombuffer(blob, np.uint8)[at:end]
            try:
                arrays.append(content.view(dtype).reshape(dims, order=order))
            except (TypeError, ValueError, OverflowError) as error:
                raise CorruptData(f"an array of shape {dims} and dtype {dtype}: {error}") from error
        at = (end + _PAD) & ~_PAD
    if at != size:
        raise CorruptData(f"arrays end at byte {at} of {size}")
    return arrays


def end_of_arrays(table: Sequence[tuple[int, int]], start: int) -> int | None:
    """Return where the arrays of a table of usual ones end, None if one is of an unusual type."""
    at = (start + _PAD) & ~_PAD
    for code, size in table:
        if code >= _CODES:
            return None
        at += (size * SIZES[code] + _PAD) & ~_PAD
    return at


def _aligned(blob: memoryview) -> memoryview:
    """Return the same bytes where an array of any usual type is aligned: as they are, nearly always."""
    if np.frombuffer(blob, np.float64, 1).flags.aligned:
        return blob
    return memoryview(bytes(blob))


def _read_shape(shape: Any) -> tuple[Sequence[int], Literal["C", "F"]]:
    order: Literal["C", "F"] = "C"
    if type(shape) is list and len(shape) == 1 and type(shape[0]) is list:
        shape, order = shape[0], "F"
    elif type(shape) is int:
        shape = [shape]
    if type(shape) is not list or not set(map(type, shape)) <= {int} or len(shape) > _MAX_DIMENSIONS:
        raise CorruptData(f"an array of shape {shape!r}")
    if any(size < 0 for size in shape):
        raise CorruptData(f"an array of shape {shape!r}: a size is below 0")
    return tuple(shape), order
