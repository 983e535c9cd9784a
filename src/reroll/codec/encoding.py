"""Values to bytes: quickly, then carefully, and in the end with a reason.

Large integers and broken text are not looked for at first: when MessagePack refuses one, everything is done again
with a look at each number and text. What cannot be written at all is looked for only after it was refused.
"""

from collections.abc import Callable
from functools import partial
from mmap import mmap
from typing import Any, TypeVar

from reroll.codec.framing import join, join_into
from reroll.codec.limits import MAX_DEPTH, Refusal
from reroll.codec.lowering import Encoder, atom_parts
from reroll.codec.refs import RefWriter
from reroll.codec.search import find_unstorable
from reroll.errors import NotStorable

T = TypeVar("T")


def encode(
    value: Any, *, allow_pickle: bool = False, refs: RefWriter | None = None, root: str = "value"
) -> bytes:
    """Return a value as one blob, which `decode` reads without loss.

    Raises NotStorable with the path of the first part that cannot be written, under the name `root`. `refs` stores
    what Ray references stand for. With `allow_pickle`, objects of types that are not registered are pickled; reading
    them then runs code, and has to be allowed as well.
    """
    return _joined(value, join, allow_pickle=allow_pickle, refs=refs, root=root)


def encode_into(memory: mmap, value: Any, *, root: str = "value") -> bytes | memoryview:
    """Write a value as `encode` does, where the memory's position is; return a view of it, or bytes if it has no room.

    For those who are done with a blob soon, and use the memory again: new memory costs more than what is written to it.
    Raises NotStorable.
    """
    return _joined(value, partial(join_into, memory), root=root)


def _joined(
    value: Any,
    join: Callable[[bytes, bytes, list[Any]], T],
    *,
    allow_pickle: bool = False,
    refs: RefWriter | None = None,
    root: str,
) -> T:
    once = None if refs is None else _Once(refs)
    try:
        try:
            if type(value) is int or type(value) is str:  # ids, one for each row
                return join(*atom_parts(value))
            return join(*Encoder(allow_pickle=allow_pickle, refs=once, exact=False).parts(value))
        except (OverflowError, TypeError, ValueError):
            return join(*Encoder(allow_pickle=allow_pickle, refs=once, exact=True).parts(value))
    except Refusal as refusal:
        found = find_unstorable(value, root=root, allow_pickle=allow_pickle, refs=once)
        text = f"{root}: {refusal}" if found is None else f"{found.path}: {found.reason}"
        raise NotStorable(text) from refusal.__cause__
    except (OverflowError, ValueError) as error:
        raise NotStorable(
            f"{root}: too large for the format, or a name in it is no text: {type(error).__name__}: {error}"
        ) from error
    except RecursionError as error:
        raise NotStorable(
            f"{root}: nested more than {MAX_DEPTH} deep, or stored where the stack is nearly full"
        ) from error


class _Once:
    """Stores each reference once, also if a value is written in two attempts."""

    def __init__(self, refs: RefWriter) -> None:
        self._refs = refs
        self._numbers: dict[int, tuple[Any, int]] = {}

    def store(self, ref: Any) -> int:
        if id(ref) not in self._numbers:
            self._numbers[id(ref)] = ref, self._refs.store(ref)
        return self._numbers[id(ref)][1]
