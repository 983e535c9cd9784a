"""One writer for a directory: a lock file, and a check that the files of a store are still in place."""

import contextlib
import os
import sys
import weakref
from pathlib import Path
from typing import Final

from reroll.errors import StoreFailed, StoreLocked

LOCK_NAME: Final = "replay_buffer.lock"


class WatchedFiles:
    """Files that a store writes, by device and inode.

    A file that was removed or replaced under its name accepts writes without an error, and no process can read them.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int] | None] = {}

    def add(self, *paths: str | Path) -> None:
        """Remember the files that these paths name now."""
        self._known.update((str(path), _identity(str(path))) for path in paths)

    def check(self) -> None:
        """Raise StoreFailed if a path names another file by now, or none. One `stat` for each file."""
        for path, known in self._known.items():
            if _identity(path) != known:
                raise StoreFailed(
                    f"{path} was removed or replaced while this process wrote to the buffer: nothing more is written, since "
                    "another process may write there now; end that process, put the files back if they are gone, "
                    "and open the buffer again"
                )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (for each commit: faster than Path.stat)
    except OSError:
        return None
    return found.st_dev, found.st_ino


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(
            descriptor, 1 << 30, os.SEEK_SET
        )  # other processes cannot read locked bytes, and must read the pid
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class DirectoryLock:
    """The right to write in a directory, which is created if need be: a lock file that the operating system releases.

    The holder removes the file at the end; so each new holder checks that the file it locked is still in the directory.
    Raises StoreLocked if another holder has it, in this process or another; StoreFailed.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_NAME
        self._descriptor: int | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._acquire(directory)
        except OSError as error:
            raise StoreFailed(
                f"{directory} cannot be written to ({error}): check the permissions, or name another directory"
            ) from error
        _HELD.add(self)

    def _acquire(self, directory: Path) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
            try:
                if not _try_lock(descriptor):
                    raise StoreLocked(  # noqa: TRY301  (as any other error)
                        f"{directory} is being written to by {_holder(descriptor)}: close that buffer or end that process "
                        "first, or name another directory"
                    )
                if self._is_in_place(descriptor):
                    os.ftruncate(descriptor, 0)
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    os.write(descriptor, b"%d\n" % os.getpid())
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last holder removed the file meanwhile: try again

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock, and remove its file. Idempotent."""
        if self._descriptor is not None:
            _HELD.discard(self)
            with contextlib.suppress(OSError):  # a file that stays does no harm
                if self._is_in_place(self._descriptor):  # else it belongs to another holder
                    self.path.unlink()
            self.drop()

    def drop(self) -> None:
        """Close the descriptor, and leave the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        pid = os.read(descriptor, 32).decode("ascii").strip()
    except (OSError, ValueError):
        pid = ""
    return "this process" if pid == str(os.getpid()) else f"process {pid}" if pid else "another process"


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _drop_inherited() -> None:
    """Drop the locks of the parent in a forked child, which must not hold them when its parent has ended."""
    for lock in list(_HELD):
        lock.drop()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
