"""One writer for a directory: a lock file, held by the operating system as long as the process lives.

The file is removed at the end, by its holder; so whoever gets the lock looks whether the file is still the one in the
directory.
"""

import contextlib
import os
import sys
import weakref
from pathlib import Path

from reroll.errors import StoreFailed, StoreLocked

LOCK_NAME = "replay_buffer.lock"

if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    _FAR = 1 << 30  # locked bytes cannot be read there, and the holder's pid should be

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
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
    """The right to write in a directory. Raises `StoreLocked` if somebody has it, in this process or another."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._descriptor: int | None = None
        try:
            self._descriptor = self._acquire(directory)
        except OSError as error:
            raise StoreFailed(
                f"{directory} cannot be written to ({error}): see to the permissions, or name another directory"
            ) from error
        _HELD.add(self)

    def _acquire(self, directory: Path) -> int:
        while True:  # until the file that was locked is the one in the directory
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
            try:
                if not _try_lock(descriptor):
                    raise StoreLocked(_who_holds(descriptor, directory))  # noqa: TRY301  (as any other error)
                if self._is_in_place(descriptor):
                    os.ftruncate(descriptor, 0)
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    os.write(descriptor, b"%d\n" % os.getpid())
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last holder removed the file meanwhile: once more

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    @property
    def path(self) -> Path:
        """The lock file."""
        return self._path

    def release(self) -> None:
        """Give the right back. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _HELD.discard(self)
        with contextlib.suppress(OSError):  # a file that stays does no harm
            if self._is_in_place(descriptor):  # else it is that of another holder
                self._path.unlink()
        os.close(descriptor)

    def forget(self) -> None:
        """Close the descriptor in a forked child, which must not keep the lock when its parent has ended."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _who_holds(descriptor: int, directory: Path) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        pid = os.read(descriptor, 32).decode("ascii").strip()
    except (OSError, ValueError):
        pid = ""
    holder = "this process" if pid == str(os.getpid()) else f"process {pid}" if pid else "another process"
    return (
        f"{directory} is being written to by {holder}: close that buffer or end that process first, "
        "or name another directory"
    )


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
