"""BlockingRayReplayBuffer: the verbs of RayReplayBuffer for threads, each made of its twin."""

from functools import wraps
from types import TracebackType
from typing import Any, Final, Self

from reroll.buffer.plain_calls import BlockingLease, blocking
from reroll.config import ReplayBufferConfig
from reroll.ray.handle import RayReplayBuffer
from reroll.ray.looping import run


class BlockingRayReplayBuffer:
    """Thread-safe; same verbs, arguments, results and errors as RayReplayBuffer, without `await`."""

    _run: Final = staticmethod(run)

    def __init__(self, target: RayReplayBuffer) -> None:
        self._target = target

    put = blocking(RayReplayBuffer.put)
    reserve = blocking(RayReplayBuffer.reserve)
    release = blocking(RayReplayBuffer.release)
    advance = blocking(RayReplayBuffer.advance)
    get = blocking(RayReplayBuffer.get)
    take_batch = blocking(RayReplayBuffer.take_batch)
    sample = blocking(RayReplayBuffer.sample)
    is_ready = blocking(RayReplayBuffer.is_ready)
    wait_ready = blocking(RayReplayBuffer.wait_ready)
    ack_lease = blocking(RayReplayBuffer.ack_lease)
    nack_lease = blocking(RayReplayBuffer.nack_lease)
    trim_lease = blocking(RayReplayBuffer.trim_lease)
    end_lease = blocking(RayReplayBuffer.end_lease)
    refresh_staleness = blocking(RayReplayBuffer.refresh_staleness)
    update_priorities = blocking(RayReplayBuffer.update_priorities)
    patch = blocking(RayReplayBuffer.patch)
    delete = blocking(RayReplayBuffer.delete)
    forget = blocking(RayReplayBuffer.forget)
    set_rate_limiter = blocking(RayReplayBuffer.set_rate_limiter)
    save = blocking(RayReplayBuffer.save)
    resume = blocking(RayReplayBuffer.resume)
    commit = blocking(RayReplayBuffer.commit)
    rewind = blocking(RayReplayBuffer.rewind)
    count = blocking(RayReplayBuffer.count)
    count_statuses = blocking(RayReplayBuffer.count_statuses)
    count_where = blocking(RayReplayBuffer.count_where)
    query = blocking(RayReplayBuffer.query)
    peek = blocking(RayReplayBuffer.peek)
    ledger = blocking(RayReplayBuffer.ledger)
    stats = blocking(RayReplayBuffer.stats)
    metrics = blocking(RayReplayBuffer.metrics)
    to_arrow = blocking(RayReplayBuffer.to_arrow)
    to_pandas = blocking(RayReplayBuffer.to_pandas)
    close = blocking(RayReplayBuffer.close)
    shard_stats = blocking(RayReplayBuffer.shard_stats)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._target,)

    def __repr__(self) -> str:
        return f"{self._target!r}.blocking()"

    def __len__(self) -> int:
        return len(self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def config(self) -> ReplayBufferConfig:
        """What the buffer was made from."""
        return self._target.config

    @wraps(RayReplayBuffer.lease)
    def lease(self, *args: Any, **kwargs: Any) -> BlockingLease:
        """Lend groups: `with buffer.lease(...) as batch: ...; batch.ack()`, or `batch = buffer.lease(...).take()`."""
        return BlockingLease(run, lambda: self._target.lease(*args, **kwargs))
