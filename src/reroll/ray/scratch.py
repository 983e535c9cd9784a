"""Memory that groups are written to on their way: used again and again, since new memory costs more than what is written."""

from mmap import ACCESS_COPY, mmap
from types import TracebackType
from typing import Final

_SIZE: Final = 1 << 24
"""What is written to it takes memory, the rest none."""


class Scratch:
    """Used by puts, each `with` it until it is done; the first that comes when nobody uses it begins at its start.

    For one event loop.
    """

    def __init__(self) -> None:
        self._memory = mmap(-1, _SIZE, access=ACCESS_COPY)
        self._users = 0

    def __enter__(self) -> mmap:
        if not self._users:
            self._memory.seek(0)
        self._users += 1
        return self._memory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
