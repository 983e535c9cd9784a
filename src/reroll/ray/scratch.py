"""Memory for groups on their way: used again and again, since new memory costs more than what is written to it."""

from mmap import mmap
from types import TracebackType
from typing import Final

from reroll.ray.sharing import Owner, new_memory

_SIZE: Final = 1 << 24
_TRAY: Final = 1 << 23
"""Larger batches arrive by Ray, as views: they would be copied once more here."""


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

    A tray that is not given back is not used again: the shard may still write to it. For one event loop.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._free: Tray | None = None

    def take(self) -> Tray:
        """Return a tray that nobody else uses."""
        tray, self._free = self._free, None
        return new_memory(_TRAY, shared=self._shared) if tray is None else tray

    def give_back(self, tray: Tray) -> None:
        """Keep a tray for the next call: the reply is here, and nobody writes to it any more."""
        self._free = tray
