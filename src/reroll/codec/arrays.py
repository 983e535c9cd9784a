"""Arrays of a blob: the table that describes them, their bytes, and what is written by dtype: scalars and tensors.

The table is a list of pairs, dtype and shape. Each array starts at the next multiple of 64 after the one before; offsets
are not stored, so none can point outside or overlap. Arrays are read as views into the blob.

A common dtype is written as a number, others as text ("<M8[ns]"), structured ones as a list. When a dtype is read, its
text must match the pattern of dtypes that reroll writes before numpy parses it; dtypes with Python objects are refused.
"""

import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from reroll.codec.frame import ALIGNMENT, PADDING
from reroll.errors import CorruptData, NotStorable, UnsupportedFormat, missing_extra

Array = npt.NDArray[Any]

# The position is the number in the format: append new dtypes at the end.
STANDARD: Final = tuple(
    np.dtype(text)
    for text in (
        *("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8"),
        *("<f2", "<f4", "<f8", "<c8", "<c16"),
    )
)
CODES: Final = {dtype: code for code, dtype in enumerate(STANDARD)}
UINT8, INT32, INT64, FLOAT32, FLOAT64 = (
    CODES[np.dtype(text)] for text in ("|u1", "<i4", "<i8", "<f4", "<f8")
)

_SIZES: Final = tuple(dtype.itemsize for dtype in STANDARD)
_PAD: Final = ALIGNMENT - 1
_MAX_DIMENSIONS: Final = 64
_MAX_NESTING: Final = 16
_SIMPLE: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUV]\d{1,9}"
    r"|[mM]8(?:\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)",
    re.ASCII,
)
_TENSOR_DTYPES: Final = frozenset(
    (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
)


class ArrayWriter:
    """Collects the arrays of a blob; an array object that occurs twice is stored once."""

    __slots__ = ("_index_of", "_kept", "buffers", "table")

    def __init__(self) -> None:
        self.table: list[Any] = []
        self.buffers: list[Any] = []
        self._index_of: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps ids valid: the id of a deleted object may be reused

    def add(self, array: Array) -> int:
        """Return the number of an array; its bytes are copied when the blob is joined. Raises NotStorable."""
        index = self._index_of.get(id(array))
        if index is None:
            code = CODES.get(array.dtype)
            if code is None or array.ndim != 1 or not array.flags.c_contiguous:
                index = self._add_unusual(array)
                self._kept.append(array)
            else:
                index = self.add_buffer(code, len(array), array, array.nbytes)
            self._index_of[id(array)] = index
        return index

    def add_columns(self, row: list[Any], codes: Sequence[int]) -> None:
        """Replace the arrays at the start of a row by their numbers; None and True stay.

        For the row of a `Rollout`, whose arrays are contiguous, of one dimension, and of the dtypes with these codes.
        Without the checks of `add`, which saves a fifth of the time.
        """
        index_of, table, buffers = self._index_of, self.table, self.buffers
        for at, code in enumerate(codes):
            array = row[at]
            if array is None or array is True:
                continue
            index = index_of.get(id(array))
            if index is None:
                size = len(array)
                index = index_of[id(array)] = len(table)
                table.append((code, size))
                buffers.append(array)
                if padding := -size * _SIZES[code] & _PAD:
                    buffers.append(PADDING[padding])
            row[at] = index

    def add_buffer(self, code: Any, shape: Any, buffer: Any, nbytes: int) -> int:
        """Return the number of an array that is given by its bytes."""
        index = len(self.table)
        self.table.append((code, shape))
        self.buffers.append(buffer)
        if padding := -nbytes & _PAD:
            self.buffers.append(PADDING[padding])
        return index

    def _add_unusual(self, array: Array) -> int:
        code = write_dtype(array.dtype)
        if not array.dtype.itemsize:
            raise NotStorable(f"an array of dtype {array.dtype} has entries without bytes; drop it")
        dims: list[Any] = list(array.shape)
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            array, dims = array.T, [dims]
        flat = np.ascontiguousarray(array).reshape(-1)
        # Some dtypes do not support the buffer protocol; their bytes do.
        return self.add_buffer(code, dims, flat.view(np.uint8) if flat.size else b"", flat.nbytes)


def read_arrays(table: Any, blob: memoryview, start: int) -> list[Array]:
    """Return the arrays that a table describes, as read-only views. Raises CorruptData."""
    if type(table) is not list:
        raise CorruptData("the table of arrays is not a list")
    if not np.frombuffer(blob, np.float64, 1).flags.aligned:
        blob = memoryview(bytes(blob))
    size = len(blob)
    whole: list[Array | None] = [None] * len(STANDARD)
    arrays: list[Array] = []
    at = (start + _PAD) & ~_PAD
    for code, shape in table:
        if type(shape) is int and type(code) is int and 0 <= code < len(STANDARD):
            itemsize = _SIZES[code]
            end = at + shape * itemsize
            if not at <= end <= size:
                raise CorruptData(f"an array of {shape} entries exceeds the blob's {size} bytes")
            # A slice of one view of the whole blob costs a third of a new view.
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
                    f"an array of shape {dims} and dtype {dtype} exceeds the blob's {size} bytes"
                )
            content = np.frombuffer(blob, np.uint8)[at:end]
            try:
                arrays.append(content.view(dtype).reshape(dims, order=order))
            except (TypeError, ValueError, OverflowError) as error:
                raise CorruptData(f"an array of shape {dims} and dtype {dtype}: {error}") from error
        at = (end + _PAD) & ~_PAD
    if at != size:
        raise CorruptData(f"the arrays end at byte {at} of {size}")
    return arrays


def end_of_arrays(table: Sequence[tuple[int, int]], start: int) -> int | None:
    """Return the end of the arrays of a table, None if one has an unusual dtype."""
    at = (start + _PAD) & ~_PAD
    for code, size in table:
        if code >= len(STANDARD):
            return None
        at += (size * _SIZES[code] + _PAD) & ~_PAD
    return at


def _read_shape(shape: Any) -> tuple[Sequence[int], Literal["C", "F"]]:
    order: Literal["C", "F"] = "C"
    if type(shape) is list and len(shape) == 1 and type(shape[0]) is list:
        shape, order = shape[0], "F"
    elif type(shape) is int:
        shape = [shape]
    if type(shape) is not list or not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise CorruptData(f"invalid shape of an array: {shape!r}")
    return tuple(shape), order


def _are_sizes(values: Sequence[Any], limit: int = 1 << 62) -> bool:
    return all(type(value) is int and 0 <= value < limit for value in values)


# --- dtypes


def write_dtype(dtype: np.dtype[Any], nesting: int = 0) -> Any:
    """Return the entry of a dtype in the table. Raises NotStorable."""
    code = CODES.get(dtype)
    if code is not None:
        return code
    if dtype.hasobject:
        raise NotStorable(f"an array of dtype {dtype} holds Python objects; use a list, or a numeric dtype")
    if nesting >= _MAX_NESTING:
        raise NotStorable(f"a dtype is nested more than {_MAX_NESTING} times; use a flatter one")
    if dtype.subdtype is not None:
        part, shape = dtype.subdtype
        return [write_dtype(part, nesting + 1), list(shape)]
    if dtype.fields is not None and dtype.names is not None:
        fields = []
        for name in dtype.names:
            part, offset, title = (*dtype.fields[name], None)[:3]
            if title is not None and type(title) is not str:
                raise NotStorable(f"a dtype's field {name!r} has a title that is not a string: {title!r}")
            fields.append([name, write_dtype(part, nesting + 1), offset, title])
        return [dtype.itemsize, bool(dtype.isalignedstruct), fields]
    if _SIMPLE.fullmatch(dtype.str) is None:
        raise NotStorable(
            f"an array of dtype {dtype} cannot be stored; convert it to a numeric or fixed-length dtype"
        )
    return dtype.str


def read_dtype(written: Any, nesting: int = 0) -> np.dtype[Any]:
    """Return the dtype that `write_dtype` described. Raises CorruptData."""
    if type(written) is int and 0 <= written < len(STANDARD):
        return STANDARD[written]
    try:
        if type(written) is str and _SIMPLE.fullmatch(written):
            return np.dtype(written)
        if type(written) is list and nesting < _MAX_NESTING:
            if len(written) == 2 and _are_sizes(written[1], 1 << 31):
                return np.dtype((read_dtype(written[0], nesting + 1), tuple(written[1])))
            if len(written) == 3:
                return _read_struct(*written, nesting=nesting + 1)
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptData(f"numpy cannot read the dtype {written!r}: {error}") from error
    raise CorruptData(f"invalid dtype of an array: {written!r}")


def _read_struct(itemsize: Any, aligned: Any, fields: Any, *, nesting: int) -> np.dtype[Any]:
    names, written, offsets, titles = zip(*fields, strict=True) if fields else ((), (), (), ())
    if (
        not _are_sizes((itemsize, *offsets), 1 << 31)
        or type(aligned) is not bool
        or not set(map(type, names)) <= {str}
        or not set(map(type, titles)) <= {str, type(None)}
    ):
        raise CorruptData("invalid structured dtype")
    formats = [read_dtype(each, nesting) for each in written]
    if any(at + part.itemsize > itemsize for at, part in zip(offsets, formats, strict=True)):
        raise CorruptData("a structured dtype has fields outside of its bytes")
    spec: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    if any(title is not None for title in titles):
        spec["titles"] = titles
    dtype: np.dtype[Any] = np.dtype(spec, align=aligned)
    return dtype


# --- numpy scalars


def write_scalar(value: np.generic) -> list[Any]:
    """Return the dtype and the bytes of a scalar; of text and bytes the content. Raises NotStorable."""
    # With the methods of str and bytes: numpy would drop zeros at the end.
    if type(value) is np.str_:
        return [None, str.__getitem__(value, slice(None))]
    if type(value) is np.bytes_:
        return [None, bytes.__getitem__(value, slice(None))]
    return [write_dtype(value.dtype), value.tobytes()]


def read_scalar(written: list[Any]) -> np.generic:
    """Return the scalar that `write_scalar` described. Raises CorruptData."""
    dtype_written, content = written
    if dtype_written is None and type(content) in (str, bytes):
        return np.str_(content) if type(content) is str else np.bytes_(content)
    dtype = read_dtype(dtype_written)
    if type(content) is not bytes or len(content) != dtype.itemsize or not content:
        raise CorruptData(f"the bytes of a scalar of dtype {dtype} have a wrong length")
    value = np.frombuffer(content, dtype).copy()[0]  # copied: a structured scalar would be a read-only view
    if not isinstance(value, np.generic):
        raise CorruptData(f"dtype {dtype} has no scalars")
    return value


# --- torch tensors. Writing never imports torch; a tensor that is read is a copy, since torch has no read-only tensors.


def is_tensor(value: Any) -> bool:
    """Return whether a value is a plain tensor (never, unless torch is loaded)."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None)


def write_tensor(tensor: Any, arrays: ArrayWriter) -> list[Any]:
    """Add the bytes of a tensor to the arrays and return its description. Raises NotStorable."""
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TENSOR_DTYPES or tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise NotStorable(
            f"a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device} cannot be stored;"
            f" convert it to a dense tensor of numbers"
        )
    try:
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        if flat.stride(0) != 1:  # a single entry counts as contiguous whatever its stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        content = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    except RuntimeError as error:
        raise NotStorable(f"torch cannot copy a tensor to host memory: {error}") from error
    index = arrays.add_buffer(UINT8, len(content), content, len(content))
    return [index, name, list(tensor.shape), tensor.requires_grad]


def read_tensor(written: list[Any], arrays: list[Array]) -> Any:
    """Return the tensor that `write_tensor` described. Raises CorruptData, UnsupportedFormat."""
    index, name, shape, requires_grad = written
    if (
        name not in _TENSOR_DTYPES
        or type(requires_grad) is not bool
        or type(shape) is not list
        or not _are_sizes(shape)
    ):
        raise CorruptData(f"invalid tensor of dtype {name!r} and shape {shape!r}")
    try:
        import torch  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise UnsupportedFormat(
            f"the blob holds torch tensors: {missing_extra('decoding it', 'torch', 'torch')}"
        ) from error
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise UnsupportedFormat(f"the installed torch does not have the dtype {name}; upgrade torch")
    content = arrays[index]
    size = dtype.itemsize * math.prod(shape)
    if content.dtype != np.uint8 or content.ndim != 1 or len(content) != size:
        raise CorruptData(f"a tensor of {name} and shape {shape!r} has {content.nbytes} bytes")
    if not size:
        return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)
    tensor = torch.from_numpy(content.copy()).view(dtype).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor
