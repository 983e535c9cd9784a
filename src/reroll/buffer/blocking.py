"""BlockingReplayBuffer: the verbs of ReplayBuffer for threads, generated from it.

The coroutines of a buffer wait in one place only, and there a blocking buffer blocks. So a coroutine runs from start to
end in the caller's thread, under a lock that is released while it waits; there is no event loop and no other thread.
"""

import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

from reroll.buffer.groups import Groups
from reroll.buffer.replay_buffer import ReplayBuffer
from reroll.waiting import ThreadWaits

T = TypeVar("T")


class BlockingReplayBuffer:
    """Thread-safe; same verbs, same arguments, same results and errors as ReplayBuffer, without `await`."""

    def __init__(self, groups: Groups) -> None:
        self._lock = threading.Lock()
        self._buffer = ReplayBuffer(groups, ThreadWaits(self._lock))

    def __len__(self) -> int:
        with self._lock:
            return len(self._buffer)


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("a verb of a blocking buffer awaited something else than its waits")


def _blocking(verb: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    @wraps(verb)
    def call(self: BlockingReplayBuffer, *args: Any, **kwargs: Any) -> T:
        with self._lock:
            return _completed(verb(self._buffer, *args, **kwargs))

    return call


for _name, _verb in inspect.getmembers(ReplayBuffer, inspect.iscoroutinefunction):
    if not _name.startswith("_"):
        setattr(BlockingReplayBuffer, _name, _blocking(_verb))
