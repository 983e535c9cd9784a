"""BlockingReplayBuffer: the verbs of ReplayBuffer for threads, each made of its twin.

The coroutines of a buffer wait in one place only, and there a blocking buffer blocks. So a coroutine runs from start to
end in the caller's thread, under a lock that is released while it waits; there is no event loop and no other thread.
"""

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


class BlockingReplayBuffer:
    """Thread-safe; same verbs, same arguments, same results and errors as ReplayBuffer, without `await`."""

    def __init__(self, groups: Groups, **options: Any) -> None:
        self._lock = threading.Lock()
        self._target = ReplayBuffer(groups, ThreadWaits(self._lock), **options)

    put = blocking(ReplayBuffer.put)
    reserve = blocking(ReplayBuffer.reserve)
    release = blocking(ReplayBuffer.release)
    advance = blocking(ReplayBuffer.advance)
    get = blocking(ReplayBuffer.get)
    take_batch = blocking(ReplayBuffer.take_batch)
    sample = blocking(ReplayBuffer.sample)
    is_ready = blocking(ReplayBuffer.is_ready)
    wait_ready = blocking(ReplayBuffer.wait_ready)
    ack_lease = blocking(ReplayBuffer.ack_lease)
    nack_lease = blocking(ReplayBuffer.nack_lease)
    trim_lease = blocking(ReplayBuffer.trim_lease)
    end_lease = blocking(ReplayBuffer.end_lease)
    refresh_staleness = blocking(ReplayBuffer.refresh_staleness)
    update_priorities = blocking(ReplayBuffer.update_priorities)
    patch = blocking(ReplayBuffer.patch)
    delete = blocking(ReplayBuffer.delete)
    forget = blocking(ReplayBuffer.forget)
    set_rate_limiter = blocking(ReplayBuffer.set_rate_limiter)
    save = blocking(ReplayBuffer.save)
    resume = blocking(ReplayBuffer.resume)
    commit = blocking(ReplayBuffer.commit)
    rewind = blocking(ReplayBuffer.rewind)
    count = blocking(ReplayBuffer.count)
    count_statuses = blocking(ReplayBuffer.count_statuses)
    query = blocking(ReplayBuffer.query)
    peek = blocking(ReplayBuffer.peek)
    ledger = blocking(ReplayBuffer.ledger)
    stats = blocking(ReplayBuffer.stats)
    metrics = blocking(ReplayBuffer.metrics)
    to_arrow = blocking(ReplayBuffer.to_arrow)
    to_pandas = blocking(ReplayBuffer.to_pandas)
    close = blocking(ReplayBuffer.close)

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

    ack = blocking(Batch.ack)
    nack = blocking(Batch.nack)

    def __init__(self, lock: threading.Lock, batch: Batch) -> None:
        self._lock = lock
        self._target = batch
        self.id = batch.id
        self.groups: dict[str, list[list[Any]]] = batch.groups
        self.samples: dict[str, list[Sample]] = batch.samples
        self.counts: dict[str, int] = batch.counts
