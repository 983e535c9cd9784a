"""How the type of an array's entries is written, and read back without trusting it.

The usual types are a number, others their text ("<M8[ns]"), and structured ones a list. A text is matched
against what reroll writes before numpy sees it; types that hold Python objects do not exist here.
"""

import re
from typing import Any, Final

import numpy as np

from reroll.codec.limits import Refusal
from reroll.errors import CorruptData

# The position is the number in the format: new ones come last.
STANDARD: Final = tuple(
    np.dtype(text)
    for text in (
        *("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8"),
        *("<f2", "<f4", "<f8", "<c8", "<c16"),
    )
)
CODES: Final = {dtype: code for code, dtype in enumerate(STANDARD)}
SIZES: Final = tuple(dtype.itemsize for dtype in STANDARD)

_SIMPLE: Final = re.compile(
    r"[<>|](?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SUV]\d{1,9}"
    r"|[mM]8(?:\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)",
    re.ASCII,
)
_MAX_NESTING: Final = 16


def write_dtype(dtype: np.dtype[Any], nesting: int = 0) -> Any:
    """Return what the table holds for a type; raises Refusal."""
    code = CODES.get(dtype)
    if code is not None:
        return code
    if dtype.hasobject:
        raise Refusal(f"an array of dtype {dtype} holds Python objects; use a list, or a numeric dtype")
    if nesting >= _MAX_NESTING:
        raise Refusal(f"a dtype nested more than {_MAX_NESTING} times")
    if dtype.subdtype is not None:
        part, shape = dtype.subdtype
        return [write_dtype(part, nesting + 1), list(shape)]
    if dtype.fields is not None and dtype.names is not None:
        fields = [_write_field(name, *dtype.fields[name], nesting=nesting + 1) for name in dtype.names]
        return [dtype.itemsize, bool(dtype.isalignedstruct), fields]
    if _SIMPLE.fullmatch(dtype.str) is None:
        raise Refusal(
            f"an array of dtype {dtype} cannot be stored; convert it to a numeric or fixed-length dtype"
        )
    return dtype.str


def _write_field(
    name: str, dtype: np.dtype[Any], offset: int, title: Any = None, *, nesting: int
) -> list[Any]:
    if title is not None and type(title) is not str:
        raise Refusal(f"a dtype whose field {name!r} has the title {title!r}, which is no text")
    return [name, write_dtype(dtype, nesting), offset, title]


def read_dtype(written: Any, nesting: int = 0) -> np.dtype[Any]:
    """Return the type that `write_dtype` described; anything else is CorruptData."""
    if type(written) is int and 0 <= written < len(STANDARD):
        return STANDARD[written]
    try:
        if type(written) is str and _SIMPLE.fullmatch(written):
            return np.dtype(written)
        if type(written) is list and nesting < _MAX_NESTING:
            if len(written) == 2:
                part, shape = written
                dims = tuple(shape)
                if all(type(size) is int and 0 <= size < 1 << 31 for size in dims):
                    return np.dtype((read_dtype(part, nesting + 1), dims))
            elif len(written) == 3:
                return _read_struct(*written, nesting=nesting + 1)
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptData(f"an array of dtype {written!r}, which numpy does not know: {error}") from error
    raise CorruptData(f"an array of dtype {written!r}, which reroll never writes")


def _read_struct(itemsize: Any, aligned: Any, fields: Any, *, nesting: int) -> np.dtype[Any]:
    names, written, offsets, titles = zip(*fields, strict=True) if fields else ((), (), (), ())
    if (
        type(itemsize) is not int
        or not 0 <= itemsize < 1 << 31
        or type(aligned) is not bool
        or not set(map(type, names)) <= {str}
        or not set(map(type, titles)) <= {str, type(None)}
        or not set(map(type, offsets)) <= {int}
    ):
        raise CorruptData("a structured dtype that reroll never writes")
    formats = [read_dtype(each, nesting) for each in written]
    if any(at < 0 or at + part.itemsize > itemsize for at, part in zip(offsets, formats, strict=True)):
        raise CorruptData("a structured dtype whose fields lie outside of it")
    spec: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    if any(title is not None for title in titles):
        spec["titles"] = titles
    dtype: np.dtype[Any] = np.dtype(spec, align=aligned)
    return dtype
