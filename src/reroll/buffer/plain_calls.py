"""Coroutines as plain calls, for threads: verbs, leases and batches of whatever can run a coroutine to its end.

How it is run is the shell's business: under a lock in the caller's thread, or in an event loop of another thread.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from reroll.buffer.batch import Batch, Lease, batch_html, not_taken_yet
from reroll.group import GroupBatch, RolloutGroup

P = ParamSpec("P")
T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end, and returns what comes of it."""


def blocking(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs the coroutine of the same name of `self._target` with `self._run`."""
    name = verb.__name__

    @wraps(verb)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._run(getattr(self._target, name)(*args, **kwargs))
        return result

    return call


class BlockingLease:
    """A lease to be taken, by `with` or by `take()`."""

    def __init__(self, run: Run, lease: Callable[[], Lease]) -> None:
        self._run = run
        self._lease = lease
        self._batch: BlockingBatch | None = None

    if not TYPE_CHECKING:  # a checker finds it by itself

        def __getattr__(self, name: str) -> Any:
            raise not_taken_yet(
                self, name, "`with buffer.lease(...) as batch`, or `buffer.lease(...).take()`"
            )

    def take(self) -> "BlockingBatch":
        """Take the lease without a context: the caller must `ack` or `nack` it, or it ends by its `ttl_s`."""

        async def taken() -> BlockingBatch:
            self._batch = BlockingBatch(self._run, await self._lease())
            return self._batch

        batch: BlockingBatch = self._run(taken())
        return batch

    def __enter__(self) -> "BlockingBatch":
        try:
            return self.take()
        except BaseException:  # an interrupt that came when the lease was taken
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._batch is not None:
            self._batch.nack()


class BlockingBatch:
    """A Batch whose `ack` and `nack` are plain calls."""

    ack = blocking(Batch.ack)
    nack = blocking(Batch.nack)

    def __init__(self, run: Run, batch: Batch) -> None:
        self._run = run
        self._target = batch
        self.id = batch.id
        self.groups: dict[str, list[RolloutGroup]] = batch.groups
        self.samples: Mapping[str, GroupBatch] = batch.samples
        self.counts: dict[str, int] = batch.counts

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id}, counts={self.counts})"

    def _repr_html_(self) -> str:
        return batch_html(self)


def lending(lease: Callable[Concatenate[Any, P], Lease]) -> Callable[Concatenate[Any, P], BlockingLease]:
    """Return `lease` of an object as `blocking` returns its verbs: taken by `with`, or by `take()`."""

    @wraps(lease)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> BlockingLease:
        return BlockingLease(self._run, lambda: self._target.lease(*args, **kwargs))

    return call
