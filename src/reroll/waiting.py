"""Waiting without polling: who waits, for what, in which order, and who is woken.

A waiter names the queues it stands in (one for each pool or gate that it wants something from) and a question: is it
possible now? It goes on when it is first in all its queues and the answer is yes. So order is kept among those that want
the same, and others pass. A call that changes something calls `wake`; a woken waiter asks once more and then acts by itself,
so a waiter that is cancelled after it was woken has taken nothing. A waiter that leaves wakes the next.

`ThreadWaits` sleeps on a lock while it releases the caller's guard, `LoopWaits` on a future of the running event loop.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from reroll import forking
from reroll.errors import InvalidArgument, WaitTimeout, shown
from reroll.interrupts import Interrupts, run_aside
from reroll.rollout.adapters import read_number

if TYPE_CHECKING:
    import asyncio

Possible = Callable[[], bool]
T = TypeVar("T")


class Waits(Protocol):
    """What a shell needs to wait."""

    next_event: Callable[[], float | None]
    report: "Callable[[], Callable[[], None] | None]"

    async def until(
        self, queues: Iterable[Hashable], possible: Possible, deadline: float | None, what: Callable[[], str]
    ) -> bool:
        """Return when it is our turn and `possible`, and whether that took a wait; act before the next await.

        Raises WaitTimeout at the deadline (of `time.monotonic`), with what `what` says.
        """

    def wake(self) -> None:
        """Wake the waiters that may proceed. Call it after every change."""

    def flush(self) -> None:
        """Report changes to the user, unless a lock is held. `wake` does it too."""

    def look_again(self) -> None:
        """Let sleepers ask anew when the next event is. Call it when it may have come closer."""

    def waiting(self, queue: Hashable) -> int:
        """Return how many stand in a queue."""

    def signal(self) -> "Signal":
        """Return something to wait for that happens once, in another thread's time."""

    def post(self, call: Callable[[], None]) -> None:
        """Let a call be made where the shell runs, from any other thread."""

    def here(self) -> None:
        """Let the shell run here from now on: it may have been in another event loop, which is over."""

    def soon(self, call: Callable[[], None]) -> None:
        """Schedule a call after the tasks that are ready to run."""

    async def aside(self, work: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
        """Do work that takes long, and touches nothing of the shell, while others go on.

        A cancelled caller calls `stop`, from its own thread, and returns when the work has ended: so it may close what
        the work used.
        """

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that must not be left half done: a cancelled caller returns when it has ended."""

    async def pause(self) -> None:
        """Let other calls run, in the middle of one that takes long."""

    async def apart(self, work: Callable[[], T]) -> T:
        """Do the same for work that waits for others, maybe for ever: it holds up no other work, and no exit."""


class Signal(Protocol):
    """Something that happens once, and whom it matters to."""

    async def wait(self) -> None:
        """Return when it has happened."""

    def set(self) -> None:
        """Let it have happened."""


class _Line:
    """The queues, and who is first. No sleeping, no locking."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[_Waiter]] = {}
        self.next_event: Callable[[], float | None] = _never
        """When, by `time.monotonic`, something changes by itself: sleepers look again then."""
        self.report: Callable[[], Callable[[], None] | None] = _no_report
        """Returns a call that reports changes to the user, None without any. The call is made outside of any lock."""

    def look_again(self) -> None:
        """Wake everybody, since the next event may have come closer."""
        for queue in self._queues.values():
            for waiter in queue:
                waiter.wake()

    def _time_left(self, deadline: float | None, what: Callable[[], str]) -> float | None:
        """Return how long a waiter may sleep. Raises WaitTimeout at its deadline."""
        now = time.monotonic()
        if deadline is not None and deadline <= now:
            raise WaitTimeout(what())
        times = [moment for moment in (deadline, self.next_event()) if moment is not None]
        return max(0.0, min(times) - now) if times else None

    def wake(self) -> None:
        for first in {id(queue[0]): queue[0] for queue in self._queues.values()}.values():
            if self._may_go(first):
                first.wake()

    def waiting(self, queue: Hashable) -> int:
        return len(self._queues.get(queue, ()))

    def _is_free(self, queues: Iterable[Hashable]) -> bool:
        return not self._queues or not any(queue in self._queues for queue in queues)

    def _may_go(self, waiter: "_Waiter") -> bool:
        return all(self._queues[queue][0] is waiter for queue in waiter.queues) and waiter.possible()

    def _enter(self, waiter: "_Waiter") -> None:
        for queue in waiter.queues:
            self._queues.setdefault(queue, deque()).append(waiter)

    def _leave(self, waiter: "_Waiter") -> None:
        for queue in waiter.queues:
            self._queues[queue].remove(waiter)
            if not self._queues[queue]:
                del self._queues[queue]
        self.wake()


class _Waiter:
    """One who waits."""

    __slots__ = ("possible", "queues", "wake")

    def __init__(self, queues: Iterable[Hashable], possible: Possible) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self.possible = possible
        self.wake: Callable[[], None] = _nothing


class Guard:
    """The lock of an object that threads share. Its holder is never interrupted but where it sleeps.

    In a forked child it raises ForkedProcess at once, also if another thread held it at the fork.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._home = forking.here()
        self._lock = threading.Lock()
        self._interrupts = Interrupts()

    def __enter__(self) -> None:
        forking.check(self._home, self._what)
        self._interrupts.begin()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._interrupts.end()

    def sleep(self, sleeper: threading.Lock, timeout: float = -1) -> None:
        """Release the guard until `sleeper` can be acquired."""
        self._lock.release()
        try:
            self._interrupts.wait(sleeper, timeout)
        finally:
            self._lock.acquire()

    def outside(self, work: Callable[[], T]) -> T:
        """Release the guard while work is done."""
        self._lock.release()
        try:
            return work()
        finally:
            self._lock.acquire()

    def aside(
        self, work: Callable[[], T], *, stop: Callable[[], None] | None = None, leave: bool = False
    ) -> T:
        """Do the same for work that takes long, and touches nothing of the object; see `run_aside`."""
        if self._interrupts.are_put_off:
            return self.outside(lambda: run_aside(self._interrupts, work, stop=stop, leave=leave))
        return self.outside(work)

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Return a context in which this thread is not interrupted where it sleeps, either."""
        return self._interrupts.held()

    def post(self, call: Callable[[], None]) -> None:
        """Make a call under the guard, in a thread that no caller waits in."""
        with self._lock:
            call()


class _Sleeper:
    """A thread that sleeps until it is woken. All calls are made under the guard."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, seconds: float | None = None) -> None:
        self._guard.sleep(self._lock, -1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        if self._lock.locked():
            self._lock.release()


class ThreadWaits(_Line):
    """Waiters are threads that hold `guard`; it is released while they sleep. All calls are made under the guard."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def block(
        self, queues: Iterable[Hashable], possible: Possible, deadline: float | None, what: Callable[[], str]
    ) -> bool:
        """Do what `until` does, for callers that are not coroutines."""
        if not self._queues and possible():
            return False
        waiter = _Waiter(queues, possible)
        if self._queues and self._is_free(waiter.queues) and possible():
            return False
        sleeper = _Sleeper(self._guard)
        waiter.wake = sleeper.wake
        self._enter(waiter)
        try:
            while not self._may_go(waiter):
                if (report := self.report()) is not None:
                    self._guard.outside(report)
                    continue
                sleeper.sleep(self._time_left(deadline, what))
        finally:
            self._leave(waiter)
        return True

    async def until(
        self, queues: Iterable[Hashable], possible: Possible, deadline: float | None, what: Callable[[], str]
    ) -> bool:
        # A blocking buffer drives its coroutines in the caller's thread, so blocking here is what is wanted.
        return self.block(queues, possible, deadline, what)

    def flush(self) -> None:
        pass  # the lock is held; the caller's thread reports when it has released it

    def signal(self) -> "Signal":
        return _ThreadSignal(self._guard)

    def post(self, call: Callable[[], None]) -> None:
        self._guard.post(call)

    def here(self) -> None:
        pass  # as in every thread

    def soon(self, call: Callable[[], None]) -> None:
        call()  # other threads that are ready wait for the lock

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        with self._guard.uninterrupted():
            return await work

    async def aside(self, work: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
        return self._guard.aside(work, stop=stop)

    async def pause(self) -> None:
        self._guard.outside(_nothing)

    async def apart(self, work: Callable[[], T]) -> T:
        return self._guard.aside(work, leave=True)


class _ThreadSignal:
    """Waited for and set under the guard."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._is_set = False
        self._sleepers: list[_Sleeper] = []

    async def wait(self) -> None:
        if not self._is_set:
            sleeper = _Sleeper(self._guard)
            self._sleepers.append(sleeper)
            while not self._is_set:
                sleeper.sleep()

    def set(self) -> None:
        self._is_set = True
        for sleeper in self._sleepers:
            sleeper.wake()


class LoopWaits(_Line):
    """Waiters are tasks of one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        super().wake()
        self.flush()

    def flush(self) -> None:
        if (report := self.report()) is not None:
            report()

    async def until(
        self, queues: Iterable[Hashable], possible: Possible, deadline: float | None, what: Callable[[], str]
    ) -> bool:
        waiter = _Waiter(queues, possible)
        if self._is_free(waiter.queues) and possible():
            return False
        import asyncio  # noqa: PLC0415  (takes 30 ms to load, and a program with a loop has it)

        loop = asyncio.get_running_loop()
        alarm = None
        self._enter(waiter)
        try:
            while not self._may_go(waiter):
                if (report := self.report()) is not None:
                    report()
                    continue
                left = self._time_left(deadline, what)
                woken: asyncio.Future[None] = loop.create_future()
                waiter.wake = lambda woken=woken: None if woken.done() else woken.set_result(None)  # type: ignore[misc]
                alarm = None if left is None else loop.call_later(left, waiter.wake)
                try:
                    await woken
                finally:
                    if alarm is not None:
                        alarm.cancel()
        finally:
            self._leave(waiter)
        return True

    def signal(self) -> "Signal":
        self.here()
        return _LoopSignal()

    def here(self) -> None:
        self._running_loop()

    def post(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop is over; the next caller in another loop looks
                self._loop.call_soon_threadsafe(call)

    def soon(self, call: Callable[[], None]) -> None:
        self._running_loop().call_soon(call)

    async def aside(self, work: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
        return await _ended(self._running_loop().run_in_executor(None, work), stop)

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        return await _ended(self._running_loop().create_task(work))

    async def pause(self) -> None:
        import asyncio  # noqa: PLC0415

        await asyncio.sleep(0)

    async def apart(self, work: Callable[[], T]) -> T:
        import asyncio  # noqa: PLC0415
        from concurrent.futures import Future  # noqa: PLC0415

        self._running_loop()
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # it ends by itself, also if its caller no longer waits

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
                done.set_exception(error)

        threading.Thread(target=run, name="reroll waits", daemon=True).start()
        return await asyncio.wrap_future(done)

    def _running_loop(self) -> "asyncio.AbstractEventLoop":
        import asyncio  # noqa: PLC0415

        self._loop = asyncio.get_running_loop()
        return self._loop


class _LoopSignal:
    """Waited for and set in the loop; also in the next one, if that is over meanwhile."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] = []  # one each: a cancelled waiter cancels no other

    async def wait(self) -> None:
        if not self._is_set:
            import asyncio  # noqa: PLC0415

            woken = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            await woken

    def set(self) -> None:
        self._is_set = True
        for woken in self._waiting:
            if not woken.done() and not woken.get_loop().is_closed():
                woken.set_result(None)


class Once(Generic[T]):
    """Work that is done once: every caller returns when it has ended, also a cancelled one."""

    def __init__(self) -> None:
        self._running: asyncio.Future[T] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Start the work, or wait for the one that was started."""
        import asyncio  # noqa: PLC0415

        if self._running is None:
            self._running = asyncio.ensure_future(work())
        return await _ended(self._running)


async def _ended(running: "asyncio.Future[T]", stop: Callable[[], None] | None = None) -> T:
    """Return the result of a future; a cancelled caller calls `stop` and leaves when the future is done."""
    import asyncio  # noqa: PLC0415

    cancelled: BaseException | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
            if stop is not None:
                stop()
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()  # the cancellation is raised instead
    raise cancelled


def on_signal() -> "asyncio.Event":
    """Return what is set by SIGTERM and SIGINT from now on, in the running loop; they do nothing else any more."""
    import asyncio  # noqa: PLC0415
    import signal  # noqa: PLC0415

    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def deadline_of(timeout: float | None, name: str = "timeout") -> float | None:
    """Return when, by `time.monotonic`, a timeout in seconds ends. Raises InvalidArgument."""
    seconds = read_seconds(timeout, name)
    return None if seconds is None else time.monotonic() + seconds


def read_seconds(value: object, name: str) -> float | None:
    """Return a number of seconds as a plain float; None for None and for infinity. Raises InvalidArgument."""
    if value is None:
        return None
    seconds = read_number(value)
    if seconds is None or not seconds >= 0:
        raise InvalidArgument(f"{name} must be None or a number of seconds of at least 0, not {shown(value)}")
    return None if seconds == math.inf else seconds


def _nothing() -> None:
    pass


def _never() -> float | None:
    return None


def _no_report() -> Callable[[], None] | None:
    return None
