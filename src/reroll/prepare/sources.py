"""Sources of results: any object that has `get`, can be called, or can be iterated, with or without `await`.

A blocking source is read in its own thread, one item at a time; the next item is read when the last is in the buffer, so a
full buffer holds the source back. After `shutdown` nothing more is read: a thread that waits in a `queue.Queue` is woken. A
thread in another queue cannot be woken; if its `get` takes a timeout, the thread checks regularly whether to stop, because an
item that it takes later would be missing for the next reader.
"""

import asyncio
import concurrent.futures
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from reroll.errors import InvalidArgument

Deliver = Callable[[Any], Coroutine[Any, Any, None]]

_CHECK_S: Final = 0.25
"""How often a thread that cannot be woken checks whether to stop. Items wake it at once."""
_ENDS: Final[tuple[type[Exception], ...]] = (
    StopIteration,
    StopAsyncIteration,
    *(kind for kind in (getattr(queue, "ShutDown", None), getattr(asyncio, "QueueShutDown", None)) if kind),
)
"""Exceptions that mean the end of a source; queues can be shut down since Python 3.13."""


async def pump(source: Any, sentinel: Any, deliver: Deliver) -> None:
    """Pass each item of a source to `deliver`, until the source ends or returns the sentinel.

    Raises what the source raises. On cancellation, an item that was read already is still delivered.
    """
    read = _awaitable(source)
    if read is None:
        await _Reader(source, sentinel, deliver).run()
        return
    try:
        while not is_end(item := await read(), sentinel):
            await deliver(item)
    except _ENDS:
        return


def is_end(item: Any, sentinel: Any) -> bool:
    """Return whether an item is the sentinel; text and numbers are compared by value (a process sends copies)."""
    return item is sentinel or (isinstance(sentinel, str | bytes | int) and bool(item == sentinel))


def _awaitable(source: Any) -> Callable[[], Awaitable[Any]] | None:
    """Return a coroutine function that reads the next item; None if the source blocks."""
    if hasattr(source, "__aiter__"):
        iterator: AsyncIterator[Any] = aiter(source)
        return lambda: anext(iterator)
    for read in (getattr(source, "get", None), source, getattr(source, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(read):
            found: Callable[[], Awaitable[Any]] = read
            return found
    return None


def _blocking(source: Any) -> Callable[[], Any]:
    """Return a function that reads the next item. Raises InvalidArgument if the source has no known shape."""
    get = getattr(source, "get", None)
    if callable(get) and not isinstance(source, dict):
        try:
            takes_timeout = "timeout" in inspect.signature(get).parameters
        except (TypeError, ValueError):  # a C function without a signature
            takes_timeout = False
        return (lambda: get(timeout=_CHECK_S)) if takes_timeout else get
    if callable(source):
        found: Callable[[], Any] = source
        return found
    if isinstance(source, Iterable):
        return iter(source).__next__
    raise InvalidArgument(
        f"a source has get(), can be called, or can be iterated, with or without await; {source!r} is none of these"
    )


class _Reader:
    """Reads a blocking source in a thread, and delivers its items in the event loop."""

    def __init__(self, source: Any, sentinel: Any, deliver: Deliver) -> None:
        self._queue: queue.Queue[Any] | None = source if isinstance(source, queue.Queue) else None
        self._read = _blocking(source) if self._queue is None else partial(self._read_queue, self._queue)
        self._sentinel = sentinel
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._delivery: concurrent.futures.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        threading.Thread(target=self._work, name="reroll-source", daemon=True).start()
        try:
            await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self._is_stopped = True
            if self._queue is not None:
                with self._queue.not_empty:
                    self._queue.not_empty.notify_all()
            if self._delivery is not None:  # it may wait for room
                self._delivery.cancel()
            # A thread that was woken, or that checks, ends soon. Another one is left waiting in its source.
            await asyncio.wait([self._ended], timeout=2 * _CHECK_S)
            raise

    def _read_queue(self, source: "queue.Queue[Any]") -> Any:
        """Wait on the condition that the queue itself waits on, so that `run` can wake the thread."""
        with source.not_empty:
            while not (source._qsize() or self._is_stopped or getattr(source, "is_shutdown", False)):  # noqa: SLF001  (made to be overridden)
                source.not_empty.wait()
        if self._is_stopped:
            raise queue.Empty
        return source.get_nowait()

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            while not self._is_stopped:
                try:
                    item = self._read()
                except queue.Empty:
                    continue
                if is_end(item, self._sentinel):
                    break
                self._delivery = asyncio.run_coroutine_threadsafe(self._deliver(item), self._loop)
                self._delivery.result()
        except _ENDS:
            pass
        except BaseException as failure:  # noqa: BLE001  (raised again in the loop)
            error = failure
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:
            return  # the loop is closed

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None or self._is_stopped:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
