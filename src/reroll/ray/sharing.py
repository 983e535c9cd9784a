"""Memory that the processes of one node share: what one writes, others read, without Ray's object store between them.

Its name is in no directory, so it is gone with the process that made it, however that ends. Who reads copies: whoever
wrote may write something else there at any time. Where there is no such memory, nothing is shared.
"""

import os
import uuid
from collections.abc import Sequence
from functools import lru_cache
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import finalize

import ray

from reroll.errors import CorruptData

_KEPT: Final = 16
"""Memories of so many others stay within reach, also when their processes have ended."""
_HEAD: Final = 8
"""So many bytes a group begins with that tell it from others: its checksum is among them."""


class Owner(NamedTuple):
    """Where others on its node find the memory of a process."""

    node: str
    pid: int
    fd: int
    name: str


class Span(NamedTuple):
    """A group in the memory of a process."""

    owner: Owner
    start: int
    size: int
    head: bytes


class Elsewhere(Exception):  # noqa: N818  (no error: the bytes are sent in another way)
    """Whoever shall read this memory cannot: it is on another node, or in another container."""


def new_memory(size: int, *, shared: bool) -> tuple[mmap, Owner | None]:
    """Return memory, and where others find it, None if they cannot. What is written to it takes memory, the rest none."""
    name = f"reroll-{uuid.uuid4().hex}"
    try:
        fd = os.memfd_create(name) if shared else None
    except (AttributeError, OSError):  # not on this system, or no file may be opened any more
        fd = None
    if fd is None:
        return mmap(-1, size, access=ACCESS_COPY), None
    try:
        os.ftruncate(fd, size)
        memory = mmap(fd, size)
    except OSError:
        os.close(fd)
        return mmap(-1, size, access=ACCESS_COPY), None
    finalize(memory, os.close, fd)
    return memory, Owner(ray.get_runtime_context().get_node_id(), os.getpid(), fd, name)


def span_of(owner: Owner, memory: mmap, size: int) -> Span:
    """Return where the last so many bytes are that were written."""
    start = memory.tell() - size
    return Span(owner, start, size, memory[start : start + _HEAD])


def read(span: Span) -> bytes:
    """Return the bytes of a group that lies in the memory of another process.

    Raises Elsewhere, and CorruptData if another one lies there by now: its sender has given it up.
    """
    blob = _memory_of(span.owner)[span.start : span.start + span.size]
    if not blob.startswith(span.head):
        raise CorruptData("the sender of this group has given it up, and its memory is used for another")
    return blob


def write(owner: Owner, blobs: Sequence[Any]) -> bool:
    """Write groups one after the other into the memory of another process; return whether it can be reached, and has room."""
    try:
        memory = _memory_of(owner)
    except Elsewhere:
        return False
    if sum(map(len, blobs)) > len(memory):
        return False
    memory.seek(0)
    for blob in blobs:
        memory.write(blob)
    return True


@lru_cache(_KEPT)
def _memory_of(owner: Owner) -> mmap:
    """Return the memory of another process. Raises Elsewhere."""
    path = Path(f"/proc/{owner.pid}/fd/{owner.fd}")
    try:
        if owner.node != ray.get_runtime_context().get_node_id():
            raise Elsewhere
        if str(path.readlink()) != f"/memfd:{owner.name} (deleted)":
            raise Elsewhere
        with path.open("r+b") as file:
            return mmap(file.fileno(), 0)
    except OSError:
        raise Elsewhere from None
