"""Whether the files that a store writes are still those that their paths name.

A file that was removed or replaced under its name takes writes without an error, and nobody can read them.
"""

import os
from pathlib import Path

from reroll.errors import StoreFailed


class InPlace:
    """Remembers files by device and inode. A check costs one `stat` for each."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int] | None] = {}

    def watch(self, path: Path) -> None:
        """Remember the file that this path names now."""
        self._known[str(path)] = _identity(str(path))

    def check(self) -> None:
        """Raise StoreFailed if a path names another file by now, or none."""
        for path, known in self._known.items():
            if _identity(path) != known:
                raise StoreFailed(
                    f"{path} was removed or replaced while this process wrote to the buffer: nothing more is written, since "
                    "another process may write there now; end that process, put the files back if they are gone, "
                    "and open the buffer again"
                )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (for each commit: quicker than by Path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
