"""Preparer: the verbs of AsyncPreparer for threads. An event loop in a thread of its own runs it; callers wait for that."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from reroll import forking
from reroll.errors import CannotRewind, Closed, ForkedProcess, InvalidArgument
from reroll.interrupts import Interrupts
from reroll.prepare.async_preparer import AsyncPreparer
from reroll.prepare.config import PrepareConfig
from reroll.prepare.prompts import Prompts
from reroll.prepare.results import GenerationResult
from reroll.prepare.step import StepData

T = TypeVar("T")

_ELSEWHERE: Final = (
    "a Preparer lives in the process that made it: call it there, from any thread (DataLoader: num_workers=0). One "
    "for other processes is served: `reroll serve --prepare`, with reroll.prepare.remote.RemotePreparer on the other side"
)


class Preparer:
    """Thread-safe; same verbs, arguments, results and errors as AsyncPreparer, without `await`.

    `with Preparer(config, source) as preparer` starts it and shuts it down.
    """

    def __init__(
        self,
        config: PrepareConfig,
        source: Any = None,
        *,
        buffer: Any = None,
        prompts: Prompts | None = None,
        sentinel: Any = None,
    ) -> None:
        """Make a preparer; see `AsyncPreparer`. A buffer that is given must not be used in another event loop."""
        self._target = AsyncPreparer(config, source, buffer=buffer, prompts=prompts, sentinel=sentinel)
        self.config = config
        self.buffer = BufferVerbs(self)
        """The verbs of the buffer, for threads."""
        self._home = forking.here()
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = True
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._left_over: list[GenerationResult] = []
        self._calls: set[concurrent.futures.Future[Any]] = set()

    def start(self) -> Self:
        """Start both loops. See `AsyncPreparer.start`."""
        self._call(self._target.start)
        return self

    def get_data(self, rank: int, step: int, timeout: float | None = None) -> StepData:
        """Return what a rank trains in a step; wait until it is prepared. See `AsyncPreparer.get_data`."""
        return self._call(lambda: self._target.get_data(rank, step, timeout))

    def put(self, results: GenerationResult | list[GenerationResult], *, timeout: float | None = None) -> int:
        """Put results as the consuming loop does; return how many are groups to train on. See `AsyncPreparer.put`."""
        return self._call(lambda: self._target.put(results, timeout=timeout))

    def done(self, step: int, *, version: int | None = None) -> None:
        """Tell that a step, and all before it, was trained: their groups are consumed."""
        self._call(lambda: self._target.done(step, version=version))

    def commit(self, step: int) -> int:
        """Tell that the trainer's own checkpoint of this step is on disk."""
        return self._call(lambda: self._target.commit(step))

    def state(self, *, step: int | None = None, save_to: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Return what a restart needs, as plain values, for the trainer's checkpoint. See `AsyncPreparer.state`."""
        return self._call(lambda: self._target.state(step=step, save_to=save_to))

    def restore(self, state: Mapping[str, Any], *, saved: str | PathLike[str] | None = None) -> None:
        """Go on after the step of a state, before `start()`. See `AsyncPreparer.restore`."""
        self._call(lambda: self._target.restore(state, saved=saved))

    def shutdown(self) -> list[GenerationResult]:
        """Stop both loops; whoever waits gets Closed. See `AsyncPreparer.shutdown`."""
        if forking.is_elsewhere(self._home):
            return self._left_over
        with self._gate:
            was_open, self._is_open = self._is_open, False
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:  # never used
            if was_open:
                self._left_over = asyncio.run(self._target.shutdown())
        else:
            if was_open:
                loop.call_soon_threadsafe(self._end)
            thread.join()
        return self._left_over

    def __reduce__(self) -> str:
        """Refuse to be sent to another process."""
        raise InvalidArgument(_ELSEWHERE)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except CannotRewind:  # nobody else has it, who could
            self.shutdown()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _call(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop, and wait for it. An interrupt of this thread cancels it."""
        if forking.is_elsewhere(self._home):
            raise ForkedProcess(_ELSEWHERE)
        if threading.current_thread() is self._thread:
            raise InvalidArgument(
                "a callback of a preparer (Prompts, a predicate, an async source) would wait for itself: let another thread "
                "call it, such as the one that asks the engines"
            )
        done, interrupts = threading.Lock(), Interrupts()
        done.acquire()
        interrupts.begin()
        try:
            with self._gate:
                if not self._is_open:
                    raise Closed("the preparer was shut down")
                if self._loop is None:
                    self._loop = self._begin()
                future = asyncio.run_coroutine_threadsafe(verb(), self._loop)
                self._calls.add(future)
            future.add_done_callback(self._calls.discard)
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

    def _begin(self) -> asyncio.AbstractEventLoop:
        begun: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(begun,), name="reroll-preparer", daemon=True)
        self._thread.start()
        return begun.result()

    def _run(self, begun: "concurrent.futures.Future[asyncio.AbstractEventLoop]") -> None:
        try:
            asyncio.run(self._main(begun))
        finally:  # whatever ended the loop, nobody waits for it any more
            with self._gate:
                self._is_open = False
                calls = list(self._calls)
            for future in calls:
                future.cancel()

    async def _main(self, begun: "concurrent.futures.Future[asyncio.AbstractEventLoop]") -> None:
        self._stop = asyncio.Event()
        begun.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        self._left_over = await self._target.shutdown()
        # Whoever waited is told that it was shut down before the loop goes.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)

    def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()


class BufferVerbs:
    """The verbs of a preparer's buffer, as plain calls: `preparer.buffer.stats()`."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    def __len__(self) -> int:
        return self._preparer._call(self._count)  # noqa: SLF001  (its other half)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = getattr(self._preparer._target.buffer, name)  # noqa: SLF001

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await verb(*args, **kwargs)

        return lambda *args, **kwargs: self._preparer._call(lambda: run(*args, **kwargs))  # noqa: SLF001

    async def _count(self) -> int:
        return len(self._preparer._target.buffer)  # noqa: SLF001
