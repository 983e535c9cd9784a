"""Forked children: an object of the parent raises ForkedProcess there, at once, and its finalizers do nothing.

Threads, sockets and SQLite connections do not survive a fork, and a copy of a buffer in memory would hand out the same
groups as the original. An object remembers the process that made it (`here()`), and every call compares.
"""

import os

from reroll.errors import ForkedProcess


class Process:
    """The process that made an object; identical in all objects that it made."""

    def __init__(self) -> None:
        self.pid = os.getpid()


_current = Process()


def here() -> Process:
    """Return the current process."""
    return _current


def is_elsewhere(home: Process) -> bool:
    """Return whether this process is a forked child of the one that `home` stands for."""
    return home is not _current


def check(home: Process, what: str) -> None:
    """Raise ForkedProcess if this process is a forked child of the one that `home` stands for. Costs 0.1 us."""
    if home is not _current:
        raise ForkedProcess(
            f"{what} belongs to process {home.pid}, and this is its forked child {_current.pid}; start the child with "
            "the spawn method and build or connect there, or serve the buffer and connect in the child"
        )


def _forked() -> None:
    global _current  # noqa: PLW0603  (there is one process)
    _current = Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
