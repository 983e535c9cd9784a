"""Where results come from: whatever has `get`, can be called, or can be iterated, with or without `await`.

A source that blocks is read in a thread of its own, one item at a time: the next is read when the last is in the buffer,
so that a full buffer holds the source back. Nothing is read after the end: a thread that waits in a `queue.Queue` is woken.
Other sources have no way to wake who waits in them; where their `get` takes a timeout, it looks now and then whether it is
still wanted, since one that waits on would take an item that is meant for the next reader.
"""

import asyncio
import concurrent.futures
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from reroll.errors import InvalidArgument

Deliver = Callable[[Any], Coroutine[Any, Any, None]]

_LOOK_S: Final = 0.25
"""How often a thread that cannot be woken looks whether it is still wanted. Items wake it at once."""
_ENDS: Final[tuple[type[Exception], ...]] = (
    StopIteration,
    StopAsyncIteration,
    *(kind for kind in (getattr(queue, "ShutDown", None), getattr(asyncio, "QueueShutDown", None)) if kind),
)
"""What says that nothing will come any more; queues have been able to since Python 3.13."""


async def pump(source: Any, sentinel: Any, deliver: Deliver) -> None:
    """Deliver what a source gives, until it ends or gives the sentinel. Raises what the source raises.

    An item that was read when this is cancelled was given to `deliver`, or will be when the source lets go of it.
    """
    read = _awaitable(source)
    if read is None:
        await _Reader(_blocking(source), sentinel, deliver).run()
        return
    try:
        while not is_end(item := await read(), sentinel):
            await deliver(item)
    except _ENDS:
        return


def is_end(item: Any, sentinel: Any) -> bool:
    """Return whether an item says that nothing will come any more: a word that came from another process is a copy."""
    return item is sentinel or (isinstance(sentinel, str | bytes | int) and bool(item == sentinel))


def _awaitable(source: Any) -> Callable[[], Awaitable[Any]] | None:
    """Return how to await the next item; None if the source blocks."""
    if hasattr(source, "__aiter__"):
        iterator: AsyncIterator[Any] = aiter(source)
        return lambda: anext(iterator)
    for read in (getattr(source, "get", None), source, getattr(source, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(read):
            found: Callable[[], Awaitable[Any]] = read
            return found
    return None


class Reading(Protocol):
    """How a thread reads a source that blocks."""

    def read(self) -> Any:
        """Return the next item. Raises queue.Empty if there is none yet, StopIteration at the end."""

    def stop(self) -> None:
        """Let `read` return soon, if that can be done."""


class _Calling:
    """Calls something for each item."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    def stop(self) -> None:
        pass


class _Queueing:
    """Waits in a `queue.Queue` on the condition that the queue itself waits on, so that it can be woken."""

    def __init__(self, source: "queue.Queue[Any]") -> None:
        self._source = source
        self._stopped = False

    def read(self) -> Any:
        source = self._source
        with source.not_empty:
            while not (source._qsize() or self._stopped or getattr(source, "is_shutdown", False)):  # noqa: SLF001  (made to be overridden)
                source.not_empty.wait()
        if self._stopped:
            raise queue.Empty
        return source.get_nowait()

    def stop(self) -> None:
        self._stopped = True
        with self._source.not_empty:
            self._source.not_empty.notify_all()


def _blocking(source: Any) -> Reading:
    """Return how to read a source that blocks. Raises InvalidArgument for what is none."""
    if isinstance(source, queue.Queue):
        return _Queueing(source)
    get = getattr(source, "get", None)
    if callable(get) and not isinstance(source, dict):
        return _Calling((lambda: get(timeout=_LOOK_S)) if _takes_timeout(get) else get)
    if callable(source):
        return _Calling(source)
    if isinstance(source, Iterable):
        return _Calling(iter(source).__next__)
    raise InvalidArgument(
        f"a source has get(), can be called, or can be iterated, with or without await; {source!r} is none of these"
    )


def _takes_timeout(get: Callable[..., Any]) -> bool:
    try:
        return "timeout" in inspect.signature(get).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


class _Reader:
    """Reads in a thread, delivers in the loop."""

    def __init__(self, reading: Reading, sentinel: Any, deliver: Deliver) -> None:
        self._reading = reading
        self._sentinel = sentinel
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._delivery: concurrent.futures.Future[None] | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        threading.Thread(target=self._work, name="reroll-source", daemon=True).start()
        try:
            await asyncio.shield(self._over)
        except asyncio.CancelledError:
            self._stopped.set()
            self._reading.stop()
            if self._delivery is not None:  # it may wait for room
                self._delivery.cancel()
            # One that is woken, or looks now and then, ends soon and takes nothing after that. Others are left to their
            # source.
            await asyncio.wait([self._over], timeout=2 * _LOOK_S)
            raise

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            while not self._stopped.is_set():
                try:
                    item = self._reading.read()
                except queue.Empty:
                    continue
                if is_end(item, self._sentinel):
                    break
                self._delivery = asyncio.run_coroutine_threadsafe(self._deliver(item), self._loop)
                self._delivery.result()
        except _ENDS:
            pass
        except BaseException as failure:  # noqa: BLE001  (it is raised again in the loop)
            error = failure
        try:
            self._loop.call_soon_threadsafe(self._end, error)
        except RuntimeError:
            return  # nobody listens any more

    def _end(self, error: BaseException | None) -> None:
        if self._over.done():
            return
        if error is None or self._stopped.is_set():
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
