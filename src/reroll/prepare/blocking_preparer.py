"""`BlockingPreparer`: the verbs of `Preparer` for threads. An event loop in its own thread runs them."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from reroll import forking
from reroll.buffer.plain_calls import blocking
from reroll.errors import CannotRewind, Closed, ForkedProcess, InvalidArgument
from reroll.interrupts import Interrupts
from reroll.prepare.config import PrepareConfig
from reroll.prepare.preparer import Preparer
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult

T = TypeVar("T")

_OTHER_PROCESS: Final = (
    "a BlockingPreparer works in the process that made it: call it there, from any thread (DataLoader: num_workers=0). For "
    "other processes, serve a preparer: `reroll serve --prepare`, and connect with reroll.prepare.service.RemotePreparer"
)


class BlockingPreparer:
    """The same verbs, arguments, results and errors as `Preparer`, without `await`. Thread-safe.

    `with BlockingPreparer(config, source) as preparer` starts it and shuts it down. An interrupt (Ctrl-C) cancels the call that
    waits. For the arguments see `Preparer`; a given buffer must not be used in another event loop.
    """

    get_data = blocking(Preparer.get_data)
    put = blocking(Preparer.put)
    done = blocking(Preparer.done)
    commit = blocking(Preparer.commit)
    state = blocking(Preparer.state)
    restore = blocking(Preparer.restore)

    def __init__(
        self,
        config: PrepareConfig,
        source: Any = None,
        *,
        buffer: Any = None,
        prompts: Prompts | None = None,
        sentinel: Any = None,
    ) -> None:
        self._target = Preparer(config, source, buffer=buffer, prompts=prompts, sentinel=sentinel)
        self.config = config
        self.buffer = _BufferVerbs(self._target.buffer, self._run)
        """The verbs of the buffer, for threads."""
        self._home = forking.here()
        self._gate = threading.Lock()
        self._is_open = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._left_over: list[GenerationResult] = []
        self._calls: set[concurrent.futures.Future[Any]] = set()

    def start(self) -> Self:
        """Start both loops. See `Preparer.start`."""
        self._run(self._target.start())
        return self

    def shutdown(self) -> list[GenerationResult]:
        """Stop both loops, and fail waiting calls with Closed.

        Returns:
            The results that were taken from sources and not stored, as of `Preparer.shutdown`.

        """
        if forking.is_elsewhere(self._home):
            return self._left_over
        with self._gate:
            was_open, self._is_open = self._is_open, False
            loop, stop, thread = self._loop, self._stop, self._thread
        if loop is not None and stop is not None and thread is not None:
            if was_open:
                loop.call_soon_threadsafe(stop.set)
            thread.join()
        elif was_open:  # never used
            self._left_over = asyncio.run(self._target.shutdown())
        return self._left_over

    def __reduce__(self) -> str:
        """Refuse to be sent to another process."""
        raise InvalidArgument(_OTHER_PROCESS)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except CannotRewind:  # the caller has no reference yet to shut it down
            self.shutdown()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and wait for its result. An interrupt cancels it."""
        done, interrupts = threading.Lock(), Interrupts()
        done.acquire()
        interrupts.begin()
        try:
            future = self._submit(coroutine)
            future.add_done_callback(lambda _: done.release())
            try:
                interrupts.wait(done)
            except BaseException:
                future.cancel()
                raise
            return future.result()
        except concurrent.futures.CancelledError:
            raise Closed("the preparer was shut down") from None
        finally:
            interrupts.end()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        with contextlib.ExitStack() as refused:
            refused.callback(coroutine.close)
            if forking.is_elsewhere(self._home):
                raise ForkedProcess(_OTHER_PROCESS)
            if threading.current_thread() is self._thread:
                raise InvalidArgument(
                    "deadlock: the preparer was called from its own event loop (a method of Prompts, a predicate or an async "
                    "source); call it from another thread"
                )
            with self._gate:
                if not self._is_open:
                    raise Closed("the preparer was shut down")
                if self._loop is None:
                    self._loop = self._start_loop()
                refused.pop_all()
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
                self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run_loop, args=(started,), name="reroll-preparer", daemon=True
        )
        self._thread.start()
        return started.result()

    def _run_loop(self, started: "concurrent.futures.Future[asyncio.AbstractEventLoop]") -> None:
        try:
            asyncio.run(self._main(started))
        finally:  # whatever ended the loop, no call may wait for it any more
            with self._gate:
                self._is_open = False
                calls = list(self._calls)
            for future in calls:
                future.cancel()

    async def _main(self, started: "concurrent.futures.Future[asyncio.AbstractEventLoop]") -> None:
        self._stop = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        self._left_over = await self._target.shutdown()
        # Waiting calls raise Closed before the loop ends.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)


class _BufferVerbs:
    """The verbs of a buffer as blocking calls: `preparer.buffer.stats()`."""

    def __init__(self, buffer: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._buffer = buffer
        self._run = run

    def __len__(self) -> int:
        async def count() -> int:
            return len(self._buffer)

        size: int = self._run(count())
        return size

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self._buffer, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await verb(*args, **kwargs)

        return lambda *args, **kwargs: self._run(call(*args, **kwargs))
