"""BlockingClient: the verbs of Client for threads. An event loop in a thread of its own carries them out."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar

from reroll import forking
from reroll.buffer.plain_calls import BlockingBatch, blocking, lending
from reroll.interrupts import run_in
from reroll.server.client import Client

T = TypeVar("T")


class BlockingClient:
    """Thread-safe; same verbs, arguments, results and errors as `BlockingReplayBuffer`. Made by `reroll.connect_blocking`."""

    def __init__(self, address: str, **options: Any) -> None:
        self._target = Client(address, **options)
        self._home = forking.here()
        self._closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reroll-client", daemon=True)
        self._thread.start()

    put = blocking(Client.put)
    reserve = blocking(Client.reserve)
    release = blocking(Client.release)
    advance = blocking(Client.advance)
    version = blocking(Client.version)
    wait_version = blocking(Client.wait_version)
    get = blocking(Client.get)
    lease = lending(Client.lease)
    take_batch = blocking(Client.take_batch)
    sample = blocking(Client.sample)
    is_ready = blocking(Client.is_ready)
    wait_ready = blocking(Client.wait_ready)
    ack_lease = blocking(Client.ack_lease)
    nack_lease = blocking(Client.nack_lease)
    trim_lease = blocking(Client.trim_lease)
    end_lease = blocking(Client.end_lease)
    refresh_staleness = blocking(Client.refresh_staleness)
    update_priorities = blocking(Client.update_priorities)
    patch = blocking(Client.patch)
    patch_many = blocking(Client.patch_many)
    delete = blocking(Client.delete)
    forget = blocking(Client.forget)
    set_rate_limiter = blocking(Client.set_rate_limiter)
    set_sampler = blocking(Client.set_sampler)
    save = blocking(Client.save)
    resume = blocking(Client.resume)
    commit = blocking(Client.commit)
    rewind = blocking(Client.rewind)
    count = blocking(Client.count)
    count_statuses = blocking(Client.count_statuses)
    count_where = blocking(Client.count_where)
    query = blocking(Client.query)
    peek = blocking(Client.peek)
    ledger = blocking(Client.ledger)
    stats = blocking(Client.stats)
    metrics = blocking(Client.metrics)
    to_arrow = blocking(Client.to_arrow)
    to_pandas = blocking(Client.to_pandas)
    health = blocking(Client.health)
    ask = blocking(Client.ask)

    def __len__(self) -> int:
        return len(self._target)

    @wraps(Client.batches)
    def batches(self, *args: Any, **kwargs: Any) -> Iterator[BlockingBatch]:
        """Yield batches without end, each a lease to be acknowledged; the next ones are fetched meanwhile."""
        batches: Any = self._target.batches(*args, **kwargs)
        try:
            while True:
                yield BlockingBatch(self._run, self._run(batches.__anext__()))
        finally:
            self._run(batches.aclose())

    def close(self) -> None:
        """Close the connection: waiting and later calls raise Closed, and all that this client holds comes back."""
        if forking.is_elsewhere(self._home):
            return
        with self._closing:
            if self._loop.is_running():
                self._run(self._target.close())
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what comes of a coroutine, in the thread of the loop; an interrupt cancels it there."""
        if forking.is_elsewhere(self._home):
            work.close()
        forking.check(self._home, "the client")
        return run_in(self._loop, work)
