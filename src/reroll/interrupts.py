"""Interrupts in calls for threads: a signal handler raises where a call waits, and never in the middle of a change.

Python runs signal handlers in the main thread, between any two instructions; one that raises (Ctrl-C: KeyboardInterrupt)
would leave a change half done. So a call of the main thread puts signals off. Where it waits, the handler runs at once, and
the wait ends as if the call was cancelled there. Everywhere else the signal is sent again when the call has returned.
"""

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, a third of the time
import _thread
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reroll.errors import Closed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

_SIGNALS: Final = tuple(
    getattr(signal, name).value for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)
)
"""Signals that are put off where a Python function handles them."""
_LOOK_S: Final = 1.0
"""A signal that arrives as the lock goes to sleep wakes nothing: so a waiting main thread looks for one this often."""
_get_ident, _getsignal, _set_handler = _thread.get_ident, _signal.getsignal, _signal.signal
_MAIN: Final = threading.main_thread().ident


class Interrupts:
    """Puts signals off from `begin` to `end`, but for waits. Does nothing in other threads than the main one."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}  # the handlers that are in place outside of calls
        self._is_inside = False
        self._is_waiting = False
        self._is_held = False
        self._pending: set[int] = set()
        self._last = 0

    def begin(self) -> None:
        """Put signals off from now on."""
        if _get_ident() != _MAIN:
            return
        own, handlers = self._handle, self._handlers
        for number in _SIGNALS:
            handler = _getsignal(number)
            if not callable(handler):
                if handlers:
                    handlers.pop(number, None)
            elif handler != own:  # else a signal ended the last `end` before its time
                handlers[number] = handler
                _set_handler(number, own)
        self._is_inside = True

    def end(self) -> None:
        """Let signals through again. Those that came meanwhile are sent once more, when this call has returned."""
        if _get_ident() != _MAIN:
            return
        self._is_inside = False
        for number, handler in self._handlers.items():
            _set_handler(number, handler)
        self._handlers.clear()
        while self._pending:
            _thread.start_new_thread(signal.pthread_kill, (_MAIN, self._pending.pop()))

    @property
    def are_put_off(self) -> bool:
        """Whether this thread puts signals off."""
        return self._is_inside and _get_ident() == _MAIN

    def wait(self, lock: threading.Lock, timeout: float = -1) -> bool:
        """Acquire a lock, and let signal handlers run meanwhile; they may raise."""
        if not self.are_put_off or self._is_held:
            return lock.acquire(timeout=timeout)
        self._is_waiting = True
        if self._pending:
            signal.raise_signal(self._pending.pop())
        end = None if timeout < 0 else time.monotonic() + timeout
        try:
            while True:
                left = _LOOK_S if end is None else min(_LOOK_S, max(0.0, end - time.monotonic()))
                if lock.acquire(timeout=left):
                    return True
                if end is not None and time.monotonic() >= end:
                    return False
        finally:
            self._is_waiting = False

    @contextmanager
    def held(self) -> "Iterator[None]":
        """Put signals off in waits too."""
        was_held, is_ours = self._is_held, self.are_put_off
        self._is_held |= is_ours
        try:
            yield
        finally:
            if is_ours:
                self._is_held = was_held

    def repeat(self) -> bool:
        """Let the signal whose handler raised come again after the call; return whether there was one."""
        if self.are_put_off and self._last:
            self._pending.add(self._last)
            return True
        return False

    def _handle(self, number: int, frame: Any) -> None:
        if self._is_inside and not self._is_waiting:
            self._pending.add(number)
            return
        was_waiting, self._is_waiting, self._last = self._is_waiting, False, number
        self._handlers[number](number, frame)
        self._is_waiting, self._last = was_waiting, 0


def run_in(loop: "asyncio.AbstractEventLoop", coroutine: "Coroutine[Any, Any, T]") -> T:
    """Run a coroutine in the event loop of another thread, and return its result.

    An interrupt cancels it and waits for its end: a call that was carried out all the same returns, and the interrupt
    comes after it. Raises Closed if the loop is closed.
    """
    done, interrupts = threading.Lock(), Interrupts()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(lambda _: done.release())

    def cancel() -> None:
        tasks[0].cancel()

    done.acquire()
    interrupts.begin()
    try:
        try:
            loop.call_soon_threadsafe(start)
        except RuntimeError:
            coroutine.close()
            raise Closed("the connection was closed; connect anew") from None
        try:
            interrupts.wait(done)
        except BaseException:
            loop.call_soon_threadsafe(cancel)
            if not tasks or not tasks[0].done():  # else the interrupt came when `done` was acquired
                interrupts.wait(done)  # a second interrupt ends this wait too
            if tasks[0].cancelled() or not interrupts.repeat():
                raise
        return tasks[0].result()
    finally:
        interrupts.end()


def run_aside(
    interrupts: Interrupts,
    work: "Callable[[], T]",
    *,
    stop: "Callable[[], None] | None" = None,
    leave: bool = False,
) -> T:
    """Do work in another thread and wait for it; so an interrupt never ends it half-way.

    An interrupted caller calls `stop` and waits for the end of the work, or does not wait if it may `leave`.
    """
    done = threading.Lock()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    try:
        threading.Thread(target=run, name="reroll aside", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        return work()
    try:
        interrupts.wait(done)
    except BaseException:
        if not leave:
            if stop is not None:
                stop()
            if not results and not errors:  # else the interrupt came when `done` was acquired
                done.acquire()
        raise
    if errors:
        raise errors[0]
    return results[0]
