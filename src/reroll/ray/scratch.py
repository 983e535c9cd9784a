"""Memory for groups on their way: used again and again, since new memory costs more than what is written to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from types import TracebackType
from typing import Final

from reroll.ray.sharing import Owner, new_memory

_SIZE: Final = 1 << 24
"""Of what puts write to."""
_TRAY: Final = 1 << 23
"""Larger batches arrive by Ray, as views: they would be copied once more here."""
_TRAYS: Final = 8
"""Calls that have one at a time."""

Tray = tuple[mmap, Owner | None]


class Scratch:
    """Used by puts, each `with` it until it is done; the first that comes when nobody uses it begins at its start.

    For one event loop.
    """

    def __init__(self, *, shared: bool) -> None:
        self._memory, self.owner = new_memory(_SIZE, shared=shared)
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


class Trays:
    """Memory that a shard lays groups out in when it hands them out, a tray for each call.

    Only a few calls have one, however many wait: each takes a file. For one event loop.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._free: list[Tray] = []
        self._used = 0

    @contextmanager
    def lend(self) -> Iterator[Tray | None]:
        """Lend a tray, until the reply is here. If it does not come, the tray is not used again: the shard may write to it."""
        if not self._shared or self._used >= _TRAYS:
            yield None
            return
        self._used += 1
        try:
            tray = self._free.pop() if self._free else new_memory(_TRAY, shared=True)
            yield tray
            if not self._free:
                self._free.append(tray)
        finally:
            self._used -= 1
