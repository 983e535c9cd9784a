"""Work in two threads: the next part is made while the last one is being used."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def ahead(parts: Iterable[T], name: str) -> Iterator[Iterator[T]]:
    """Lend the same parts, made in a thread of this name. What goes wrong there is raised to whoever reads.

    One part is ready while the one before is used, and no more: a maker that went on would keep the interpreter from
    whoever uses them, who mostly works without it. Whoever stops early waits for the part that is being made.
    """
    made: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    wanted = threading.Semaphore(0)
    is_over = threading.Event()

    def make() -> None:
        try:
            for part in parts:
                made.put(("part", part))
                wanted.acquire()
                if is_over.is_set():
                    return
            made.put(("end", None))
        except BaseException as error:  # noqa: BLE001  (raised where it is read)
            made.put(("error", error))

    def read() -> Iterator[T]:
        while True:
            kind, value = made.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            wanted.release()
            yield value

    thread = threading.Thread(target=make, name=name, daemon=True)
    thread.start()
    try:
        yield read()
    finally:
        is_over.set()
        wanted.release()
        thread.join()
