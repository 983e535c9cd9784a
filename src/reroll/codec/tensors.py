"""torch tensors, to and from bytes in host memory. torch is never loaded for writing.

A tensor that is read is a copy: torch cannot mark memory as read-only, and the blob is shared.
"""

import sys
from typing import Any, Final

import numpy as np

from reroll.codec.arrays import UINT8, Array, ArrayWriter
from reroll.codec.limits import Refusal
from reroll.errors import CorruptData, UnsupportedFormat

_DTYPES: Final = frozenset(
    (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a plain tensor; without torch nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None)


def write_tensor(tensor: Any, arrays: ArrayWriter) -> list[Any]:
    """Return what describes a tensor, whose bytes are added to the arrays; raises Refusal."""
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES or tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise Refusal(
            f"a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}; make it a dense tensor of numbers"
        )
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.stride(0) != 1:  # a single entry counts as contiguous whatever its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    content = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    index = arrays.add_buffer(UINT8, len(content), content, len(content))
    return [index, name, list(tensor.shape), tensor.requires_grad]


def read_tensor(written: list[Any], arrays: list[Array]) -> Any:
    """Return the tensor that was written; raises CorruptData, UnsupportedFormat."""
    index, name, shape, requires_grad = written
    if name not in _DTYPES or type(requires_grad) is not bool or not _is_shape(shape):
        raise CorruptData(f"a tensor of {name!r} and shape {shape!r}")
    try:
        import torch  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise UnsupportedFormat("holds torch tensors: pip install reroll[torch]") from error
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise UnsupportedFormat(f"holds tensors of {name}, which this torch does not have; upgrade torch")
    content = arrays[index]
    size = dtype.itemsize
    for dimension in shape:
        size *= dimension
    if content.dtype != np.uint8 or content.ndim != 1 or len(content) != size:
        raise CorruptData(f"a tensor of {name} and shape {shape!r} in {content.nbytes} bytes")
    if not size:
        return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)
    tensor = torch.from_numpy(content.copy()).view(dtype).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _is_shape(shape: Any) -> bool:
    return type(shape) is list and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
