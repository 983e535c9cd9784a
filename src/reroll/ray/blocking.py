"""BlockingRayReplayBuffer: the verbs of RayReplayBuffer for threads, each made of its twin."""

from types import TracebackType
from typing import Any, Final, Self

from reroll.buffer.plain_calls import blocking, lending
from reroll.config import ReplayBufferConfig
from reroll.ray.handle import Handle
from reroll.ray.looping import run


class BlockingRayReplayBuffer:
    """Thread-safe; same verbs, arguments, results and errors as RayReplayBuffer, without `await`."""

    _run: Final = staticmethod(run)

    def __init__(self, target: Handle) -> None:
        self._target = target

    put = blocking(Handle.put)
    reserve = blocking(Handle.reserve)
    release = blocking(Handle.release)
    advance = blocking(Handle.advance)
    version = blocking(Handle.version)
    wait_version = blocking(Handle.wait_version)
    get = blocking(Handle.get)
    lease = lending(Handle.lease)
    take_batch = blocking(Handle.take_batch)
    sample = blocking(Handle.sample)
    is_ready = blocking(Handle.is_ready)
    wait_ready = blocking(Handle.wait_ready)
    ack_lease = blocking(Handle.ack_lease)
    nack_lease = blocking(Handle.nack_lease)
    trim_lease = blocking(Handle.trim_lease)
    end_lease = blocking(Handle.end_lease)
    refresh_staleness = blocking(Handle.refresh_staleness)
    update_priorities = blocking(Handle.update_priorities)
    patch = blocking(Handle.patch)
    patch_many = blocking(Handle.patch_many)
    delete = blocking(Handle.delete)
    forget = blocking(Handle.forget)
    set_rate_limiter = blocking(Handle.set_rate_limiter)
    set_sampler = blocking(Handle.set_sampler)
    save = blocking(Handle.save)
    resume = blocking(Handle.resume)
    commit = blocking(Handle.commit)
    rewind = blocking(Handle.rewind)
    count = blocking(Handle.count)
    count_statuses = blocking(Handle.count_statuses)
    count_where = blocking(Handle.count_where)
    query = blocking(Handle.query)
    peek = blocking(Handle.peek)
    ledger = blocking(Handle.ledger)
    stats = blocking(Handle.stats)
    metrics = blocking(Handle.metrics)
    to_arrow = blocking(Handle.to_arrow)
    to_pandas = blocking(Handle.to_pandas)
    close = blocking(Handle.close)
    shard_stats = blocking(Handle.shard_stats)

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
