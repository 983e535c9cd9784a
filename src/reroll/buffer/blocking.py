"""BlockingReplayBuffer: the verbs of ReplayBuffer for threads, generated from it.

The coroutines of a buffer wait in one place only, and there a blocking buffer blocks. So a coroutine runs from start to
end in the caller's thread, under a lock that is released while it waits; there is no event loop and no other thread.
"""

import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from reroll.buffer.batch import Batch, Lease
from reroll.buffer.groups import Groups
from reroll.buffer.replay_buffer import ReplayBuffer
from reroll.sample import Sample
from reroll.waiting import ThreadWaits

P = ParamSpec("P")
T = TypeVar("T")


class BlockingReplayBuffer:
    """Thread-safe; same verbs, same arguments, same results and errors as ReplayBuffer, without `await`."""

    close: Callable[[], None]

    def __init__(self, groups: Groups, **options: Any) -> None:
        self._lock = threading.Lock()
        self._target = ReplayBuffer(groups, ThreadWaits(self._lock), **options)

    def __len__(self) -> int:
        with self._lock:
            return len(self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @wraps(ReplayBuffer.lease)
    def lease(self, *args: Any, **kwargs: Any) -> "BlockingLease":
        """Lend groups: `with buffer.lease(...) as batch: ...; batch.ack()`, or `batch = buffer.lease(...).take()`."""
        return BlockingLease(self._lock, self._target.lease(*args, **kwargs))


class BlockingLease:
    """A lease to be taken, by `with` or by `take()`."""

    def __init__(self, lock: threading.Lock, lease: Lease) -> None:
        self._lock = lock
        self._target = lease
        self._batch: BlockingBatch | None = None

    def take(self) -> "BlockingBatch":
        """Take the lease; without a context, somebody has to `ack` or `nack` it, or it ends by its `ttl_s`."""
        with self._lock:
            return BlockingBatch(self._lock, _completed(_awaited(self._target)))

    def __enter__(self) -> "BlockingBatch":
        self._batch = self.take()
        return self._batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._batch is not None:
            self._batch.nack()


class BlockingBatch:
    """A Batch whose `ack` and `nack` are plain calls."""

    nack: Callable[[], None]
    ack: Callable[[], None]

    def __init__(self, lock: threading.Lock, batch: Batch) -> None:
        self._lock = lock
        self._target = batch
        self.id = batch.id
        self.groups: dict[str, list[list[Any]]] = batch.groups
        self.samples: dict[str, list[Sample]] = batch.samples
        self.counts: dict[str, int] = batch.counts


async def _awaited(lease: Lease) -> Batch:
    return await lease


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


def blocking(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a verb of an object whose `_target` has it as a coroutine, for threads."""

    @wraps(verb)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return _completed(verb(self._target, *args, **kwargs))

    return call


for _source, _twin in ((ReplayBuffer, BlockingReplayBuffer), (Batch, BlockingBatch)):
    for _name, _verb in inspect.getmembers(_source, inspect.iscoroutinefunction):
        if not _name.startswith("_"):
            setattr(_twin, _name, blocking(_verb))
