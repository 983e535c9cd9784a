"""Errors across a boundary: the class by its name, and its arguments; the same class again on the other side.

Only classes of a fixed list are made, so that nobody on the other side chooses what is run here.
"""

import builtins
from typing import Any, Final

from reroll import errors
from reroll.errors import RerollError
from reroll.remote.values import to_bytes, to_value

_STANDARD: Final = (
    "ValueError",
    "TypeError",
    "KeyError",
    "RuntimeError",
    "ImportError",
    "NotImplementedError",
)
KNOWN: Final[dict[str, type[Exception]]] = {
    **{name: getattr(builtins, name) for name in _STANDARD},
    **{
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, RerollError)
    },
}


def failure_to_bytes(error: BaseException) -> bytes:
    """Return an error as bytes; one of an unknown class becomes its nearest known parent, and names its own."""
    kind = next((kind for kind in type(error).__mro__ if KNOWN.get(kind.__name__) is kind), None)
    args: tuple[Any, ...] = error.args
    if kind is None:
        kind, args = RerollError, (f"{type(error).__name__}: {error}",)
    elif kind is not type(error):
        args = (f"{type(error).__name__}: {error}",)
    try:
        return to_bytes((kind.__name__, args))
    except ValueError:  # an argument that cannot be sent
        return to_bytes((kind.__name__, (str(error),)))


def to_failure(blob: bytes | memoryview) -> Exception:
    """Return the error again. Raises CorruptData for bytes that are none."""
    match to_value(blob):
        case (str(name), tuple(args)) if name in KNOWN:
            return KNOWN[name](*args)
    raise errors.CorruptData("these bytes are no error of a verb")
