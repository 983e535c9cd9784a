"""BlockingReplayBuffer: the verbs of ReplayBuffer for threads, each made of its twin.

The coroutines of a buffer wait in one place only, and there a blocking buffer blocks. So a coroutine runs from start to
end in the caller's thread, under a lock that is released while it waits; there is no event loop and no other thread.
"""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from reroll import forking
from reroll.buffer.buffer import ReplayBuffer
from reroll.buffer.groups import Groups
from reroll.buffer.plain_calls import Run, blocking, lending
from reroll.engine.ledger import LedgerReport
from reroll.waiting import Guard, ThreadWaits

T = TypeVar("T")


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a verb of a blocking buffer awaited something else than its waits")


def under(guard: Guard, waits: ThreadWaits) -> Run:
    """Return how a coroutine, which waits only where the guard is released, is run in the caller's thread.

    Changes are reported to the user after the guard is released.
    """

    def run(coroutine: Coroutine[Any, Any, T]) -> T:
        report = None
        try:
            with guard:
                try:
                    return _completed(coroutine)
                finally:
                    report = waits.report()
        finally:
            coroutine.close()
            if report is not None:
                report()

    return run


class BlockingVerbs:
    """The verbs of a buffer for threads: each runs the coroutine of the same name of `_target` with `_run`."""

    _target: Any
    _run: Run

    put = blocking(ReplayBuffer.put)
    put_many = blocking(ReplayBuffer.put_many)
    reserve = blocking(ReplayBuffer.reserve)
    release = blocking(ReplayBuffer.release)
    advance = blocking(ReplayBuffer.advance)
    version = blocking(ReplayBuffer.version)
    wait_version = blocking(ReplayBuffer.wait_version)
    wait_overdue = blocking(ReplayBuffer.wait_overdue)
    get = blocking(ReplayBuffer.get)
    lease = lending(ReplayBuffer.lease)
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
    patch_many = blocking(ReplayBuffer.patch_many)
    delete = blocking(ReplayBuffer.delete)
    forget = blocking(ReplayBuffer.forget)
    set_rate_limiter = blocking(ReplayBuffer.set_rate_limiter)
    set_sampler = blocking(ReplayBuffer.set_sampler)
    save = blocking(ReplayBuffer.save)
    resume = blocking(ReplayBuffer.resume)
    commit = blocking(ReplayBuffer.commit)
    rewind = blocking(ReplayBuffer.rewind)
    count = blocking(ReplayBuffer.count)
    count_statuses = blocking(ReplayBuffer.count_statuses)
    count_where = blocking(ReplayBuffer.count_where)
    query = blocking(ReplayBuffer.query)
    peek = blocking(ReplayBuffer.peek)
    ledger = blocking(ReplayBuffer.ledger)
    stats = blocking(ReplayBuffer.stats)
    metrics = blocking(ReplayBuffer.metrics)
    to_arrow = blocking(ReplayBuffer.to_arrow)
    to_pandas = blocking(ReplayBuffer.to_pandas)

    def close(self) -> None:
        """Close the buffer, or the connection to it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingReplayBuffer(BlockingVerbs):
    """Thread-safe; same verbs, same arguments, same results and errors as ReplayBuffer, without `await`."""

    def __init__(self, groups: Groups, **options: Any) -> None:
        self._home = forking.here()
        self._guard = Guard("the buffer")
        waits = ThreadWaits(self._guard)
        self._run = under(self._guard, waits)
        self._target = ReplayBuffer(groups, waits, **options)

    def close(self) -> None:
        if not forking.is_elsewhere(self._home):
            self._run(self._target.close())

    close.__doc__ = ReplayBuffer.close.__doc__

    def __len__(self) -> int:
        with self._guard:
            return len(self._target)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    def __repr__(self) -> str:
        return repr(self._target).replace("ReplayBuffer", "BlockingReplayBuffer", 1)

    def _repr_html_(self) -> str:
        return LedgerReport(self.ledger()).to_html(repr(self))
