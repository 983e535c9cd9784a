"""numpy scalars, to and from their dtype and bytes; text scalars as text."""

from typing import Any

import numpy as np

from reroll.codec.dtypes import read_dtype, write_dtype
from reroll.errors import CorruptData


def write_scalar(value: np.generic) -> list[Any]:
    """Return the dtype and the bytes of a scalar; raises Refusal."""
    # By Python's own means: numpy would drop zeros at the end.
    if type(value) is np.str_:
        return [None, str.__getitem__(value, slice(None))]
    if type(value) is np.bytes_:
        return [None, bytes.__getitem__(value, slice(None))]
    return [write_dtype(value.dtype), value.tobytes()]


def read_scalar(written: list[Any]) -> np.generic:
    """Return the scalar that was written; raises CorruptData."""
    dtype_written, content = written
    if dtype_written is None and type(content) in (str, bytes):
        return np.str_(content) if type(content) is str else np.bytes_(content)
    dtype = read_dtype(dtype_written)
    if type(content) is not bytes or len(content) != dtype.itemsize or not content:
        raise CorruptData(f"a scalar of dtype {dtype}, whose bytes have another length")
    # Copied, since a structured scalar would be a view that nobody may write to.
    value = np.frombuffer(content, dtype).copy()[0]
    if not isinstance(value, np.generic):
        raise CorruptData(f"a scalar of dtype {dtype}")
    return value
