"""BlockingRayReplayBuffer: the verbs of RayReplayBuffer for threads, generated. Their event loop runs in one thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, TypeVar

from reroll.buffer.plain_calls import BlockingLease
from reroll.remote.verbs import VERBS

T = TypeVar("T")


class _Loop:
    """The event loop of all blocking handles of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; whoever is interrupted cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="reroll-ray", daemon=True).start()
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


run: Final = _Loop().run
"""Run a coroutine to its end, in the event loop of all blocking handles."""


class BlockingRayReplayBuffer:
    """Thread-safe; same verbs, arguments, results and errors as RayReplayBuffer, without `await`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._target,)

    def __len__(self) -> int:
        return len(self._target)

    def lease(self, *args: Any, **kwargs: Any) -> BlockingLease:
        """Lend groups: `with buffer.lease(...) as batch: ...; batch.ack()`, or `batch = buffer.lease(...).take()`."""
        return BlockingLease(run, lambda: self._target.lease(*args, **kwargs))


def _blocking(name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def call(self: BlockingRayReplayBuffer, /, *args: Any, **kwargs: Any) -> Any:
        return run(getattr(self._target, name)(*args, **kwargs))

    return call


def _close(self: BlockingRayReplayBuffer) -> None:
    """Close the buffer for everybody."""
    run(self._target.close())


for _name, _verb in VERBS.items():
    setattr(BlockingRayReplayBuffer, _name, _blocking(_name, _verb))
BlockingRayReplayBuffer.close = _close  # type: ignore[attr-defined]
