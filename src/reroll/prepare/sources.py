"""Where results come from: whatever has `get`, can be called, or can be iterated, with or without `await`.

A source that blocks is read in a thread of its own, one item at a time: the next is read when the last is in the buffer,
so that a full buffer holds the source back.
"""

import asyncio
import concurrent.futures
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

from reroll.errors import InvalidArgument

Deliver = Callable[[Any], Coroutine[Any, Any, None]]

_LOOK_S: Final = 0.25
"""How often a thread that waits in `get` looks whether it is still wanted. Items wake it at once."""
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
        while (item := await read()) is not sentinel:
            await deliver(item)
    except _ENDS:
        return


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


def _blocking(source: Any) -> Callable[[], Any]:
    """Return how to read the next item, which may raise queue.Empty after a while, or StopIteration at the end."""
    get = getattr(source, "get", None)
    if callable(get) and not isinstance(source, dict):
        return (lambda: get(timeout=_LOOK_S)) if _takes_timeout(get) else get
    if callable(source):
        read: Callable[[], Any] = source
        return read
    if isinstance(source, Iterable):
        return iter(source).__next__
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

    def __init__(self, read: Callable[[], Any], sentinel: Any, deliver: Deliver) -> None:
        self._read = read
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
            if self._delivery is not None:  # it may wait for room
                self._delivery.cancel()
            # One that looks now and then ends soon, and takes nothing after that. Others are left to their source.
            await asyncio.wait([self._over], timeout=2 * _LOOK_S)
            raise

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            while not self._stopped.is_set():
                try:
                    item = self._read()
                except queue.Empty:
                    continue
                if item is self._sentinel:
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
