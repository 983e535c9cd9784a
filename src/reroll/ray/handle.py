"""Handle: the verbs of ReplayBuffer for a whole cluster.

A handle knows the names of its shards, and nothing of what they hold; it can be made anew anywhere by `connect`, or sent
along with actors and tasks. What it asks of which shard, and how their answers become one, is in `spreading` and `merging`.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from reroll.buffer.batch import Batch, Lease
from reroll.buffer.buffer import ReplayBuffer
from reroll.config import ReplayBufferConfig
from reroll.errors import InvalidArgument, RerollError, Unreachable
from reroll.ray import books
from reroll.ray.calling import GRACE_S, Line, actor_name, shard_key
from reroll.ray.dividing import divided
from reroll.ray.shard import Place, Shard
from reroll.ray.spreading import Spread
from reroll.remote.methods import remote_method
from reroll.rollout import Status

_made: dict[str, list[Any]] = {}
"""The actors of buffers that were made here, by life: without `detached`, Ray ends those whose maker forgets them."""


class About(NamedTuple):
    """What a handle is made of."""

    name: str
    namespace: str
    shards: int
    config: ReplayBufferConfig
    life: str
    holder_ttl_s: float
    unreachable_s: float
    keep_refs: bool


class Handle:
    """All of a RayReplayBuffer but its twin for threads, which is made of this."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._spreads: WeakKeyDictionary[asyncio.AbstractEventLoop, Spread] = WeakKeyDictionary()

    @classmethod
    def create(
        cls,
        config: ReplayBufferConfig,
        *,
        name: str = "reroll",
        namespace: str | None = None,
        num_shards: int = 1,
        placement: Callable[[int], Mapping[str, Any]] | Mapping[str, Any] | None = None,
        detached: bool = False,
        setup: Callable[[], None] | None = None,
        holder_ttl_s: float = 30.0,
        unreachable_s: float = 60.0,
        keep_refs: bool = False,
        timeout: float = 300.0,
    ) -> Self:
        """Start the actors of a new buffer, and return a handle.

        Args:
            config: that of the whole buffer; each shard gets its part. With a `store`, each has a directory in it.
            name: to `connect` by.
            namespace: of Ray; None: that of this job.
            num_shards: how many actors share what is stored.
            placement: options of Ray for each actor, such as `resources` or `scheduling_strategy`; or a function from the
                number of a shard to them.
            detached: whether the buffer outlives this process, until `close`.
            setup: called in each actor at first, for instance to import the module that registers your classes.
            holder_ttl_s: a driver or task that was not heard of for so long is dead, and its leases come back. Of actors
                Ray tells it.
            unreachable_s: how long a call tries to reach a shard that does not answer.
            keep_refs: whether `ObjectRef`s inside of rollouts stay references, as long as whoever put the object lives;
                else the object itself is put.
            timeout: seconds to wait for the actors at most.

        Raises InvalidConfig for what can never proceed or be divided, InvalidArgument if the name is taken, Unreachable if
        the actors do not start.

        """
        if not isinstance(config, ReplayBufferConfig):
            raise InvalidArgument(
                f"config must be a ReplayBufferConfig, not {type(config).__name__}; ReplayBufferConfig(**fields) makes one"
            )
        if num_shards < 1:
            raise InvalidArgument(f"num_shards must be at least 1, not {num_shards}")
        parts = divided(config, num_shards)
        space = ray.get_runtime_context().namespace if namespace is None else namespace
        life = uuid.uuid4().hex
        about = About(
            *(name, space, num_shards, config, life),
            *(holder_ttl_s, unreachable_s, keep_refs),
        )
        actors: list[Any] = []
        try:
            for index, part in enumerate(parts):
                wishes = placement(index) if callable(placement) else placement or {}
                place = _place(about, index)
                options = {
                    "num_cpus": 0,
                    "max_restarts": -1,
                    "max_concurrency": 100_000,
                    **wishes,
                    "name": actor_name(about.name, index),
                    "namespace": space,
                    "lifetime": "detached" if detached else None,
                }
                try:
                    kind = ray.remote(Shard).options(**options)
                except ValueError as error:
                    raise InvalidArgument(f"placement: {error}") from error
                try:
                    actors.append(kind.remote(part, place, about, setup))
                except ValueError as error:
                    raise InvalidArgument(
                        f"there is a buffer {name!r} in namespace {space!r}: connect to it, close it, or choose another name"
                    ) from error
            _check_ready(actors, timeout)
        except BaseException:
            for actor in actors:
                ray.kill(actor)
            raise
        _made[about.life] = actors
        return cls(about)

    @classmethod
    def connect(cls, name: str = "reroll", *, namespace: str | None = None, timeout: float = 60.0) -> Self:
        """Return a handle of a buffer that somebody has created in this namespace of Ray, None: that of this job.

        Raises Closed if there is none, Unreachable.
        """
        space = ray.get_runtime_context().namespace if namespace is None else namespace
        line = Line(name, 0, space, timeout)
        return cls(line.call_now("about", timeout))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._about,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.connect({self._about.name!r}, namespace={self._about.namespace!r})"

    def __len__(self) -> int:
        """Return how many groups are resident, whatever their status. Waits for the shards without `await`."""
        return sum(self._line(index).call_now("size", self._about.unreachable_s) for index in self._shards)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    @property
    def config(self) -> ReplayBufferConfig:
        """What the buffer was made from."""
        return self._about.config

    @property
    def actors(self) -> list[Any]:
        """The actors of the shards, for tools that look at them or end them; their methods are for handles only."""
        return [self._line(index).actor for index in self._shards]

    put = remote_method(ReplayBuffer.put)
    reserve = remote_method(ReplayBuffer.reserve)
    release = remote_method(ReplayBuffer.release)
    advance = remote_method(ReplayBuffer.advance)
    version = remote_method(ReplayBuffer.version)
    wait_version = remote_method(ReplayBuffer.wait_version)
    wait_overdue = remote_method(ReplayBuffer.wait_overdue)
    get = remote_method(ReplayBuffer.get)
    take_batch = remote_method(ReplayBuffer.take_batch)
    sample = remote_method(ReplayBuffer.sample)
    is_ready = remote_method(ReplayBuffer.is_ready)
    wait_ready = remote_method(ReplayBuffer.wait_ready)
    ack_lease = remote_method(ReplayBuffer.ack_lease)
    nack_lease = remote_method(ReplayBuffer.nack_lease)
    trim_lease = remote_method(ReplayBuffer.trim_lease)
    end_lease = remote_method(ReplayBuffer.end_lease)
    refresh_staleness = remote_method(ReplayBuffer.refresh_staleness)
    update_priorities = remote_method(ReplayBuffer.update_priorities)
    patch = remote_method(ReplayBuffer.patch)
    patch_many = remote_method(ReplayBuffer.patch_many)
    delete = remote_method(ReplayBuffer.delete)
    forget = remote_method(ReplayBuffer.forget)
    set_rate_limiter = remote_method(ReplayBuffer.set_rate_limiter)
    set_sampler = remote_method(ReplayBuffer.set_sampler)
    save = remote_method(ReplayBuffer.save)
    resume = remote_method(ReplayBuffer.resume)
    commit = remote_method(ReplayBuffer.commit)
    rewind = remote_method(ReplayBuffer.rewind)
    count = remote_method(ReplayBuffer.count)
    count_statuses = remote_method(ReplayBuffer.count_statuses)
    count_where = remote_method(ReplayBuffer.count_where)
    query = remote_method(ReplayBuffer.query)
    peek = remote_method(ReplayBuffer.peek)
    ledger = remote_method(ReplayBuffer.ledger)
    stats = remote_method(ReplayBuffer.stats)
    metrics = remote_method(ReplayBuffer.metrics)
    to_arrow = remote_method(ReplayBuffer.to_arrow)
    to_pandas = remote_method(ReplayBuffer.to_pandas)

    def lease(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Status | str = Status.COMPLETED,
        wait: bool = False,
        timeout: float | None = None,
        ttl_s: float | None = None,
        train_step: int | None = None,
    ) -> Lease:
        """Lend groups as `take_batch` takes them; they are consumed when the holder acknowledges them.

        As `ReplayBuffer.lease`. Without `ttl_s` it lasts as long as this process, or the actor that it is, lives.
        """
        arguments = {
            "task_batch_sizes": task_batch_sizes,
            "group_status": group_status,
            "wait": wait,
            "timeout": timeout,
            "ttl_s": ttl_s,
            "train_step": train_step,
        }

        async def take() -> Batch:
            number, samples = await self._spread.lease(arguments)
            return Batch(self, number, samples)

        return Lease(take)

    async def close(self) -> None:
        """Close the buffer for everybody: leases come back, every waiting or later call raises Closed, and its actors end."""
        spread = self._spread
        for index, line in enumerate(spread.lines):
            if not self._is_ours(index):
                continue
            try:
                await line.call("close", {})
                await asyncio.wait([asyncio.wrap_future(line.actor.drain.remote().future())], timeout=GRACE_S)
            except RerollError:
                continue  # closed before, or it does not answer: ended below
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def shard_stats(self) -> list[Any]:
        """Return the `stats()` of each shard by itself."""
        return await self._spread.each("stats", [{}] * self._about.shards)

    def _end(self) -> None:
        """End the actors, and forget their books."""
        about = self._about
        for index in filter(self._is_ours, self._shards):
            with contextlib.suppress(ValueError):  # it has ended before
                actor = ray.get_actor(actor_name(about.name, index), namespace=about.namespace)
                ray.kill(actor, no_restart=True)
            books.forget(_key(about, index))
        _made.pop(about.life, None)

    def _is_ours(self, index: int) -> bool:
        """Return whether a shard is of this buffer, not of another one that has its name by now."""
        return books.life_of(_key(self._about, index)) in (None, self._about.life)

    async def _call(self, verb: str, arguments: dict[str, Any]) -> Any:
        return await self._spread.call(verb, arguments)

    @property
    def _shards(self) -> range:
        return range(self._about.shards)

    def _line(self, index: int) -> Line:
        return Line(self._about.name, index, self._about.namespace, self._about.unreachable_s)

    @property
    def _spread(self) -> Spread:
        """The ways to the shards from this event loop."""
        loop = asyncio.get_running_loop()
        found = self._spreads.get(loop)
        if found is None:
            for ended in [each for each in self._spreads if each.is_closed()]:
                del self._spreads[ended]  # what was under way when it ended would keep it, and its memory
            found = self._spreads[loop] = Spread(
                self._about.config,
                [self._line(index) for index in self._shards],
                beat_s=self._about.holder_ttl_s / 4,
                keeps_refs=self._about.keep_refs,
            )
        return found


def _check_ready(actors: Sequence[Any], timeout: float) -> None:
    """Raise why a shard cannot be."""
    try:
        failures = ray.get([actor.ready.remote() for actor in actors], timeout=timeout)
    except GetTimeoutError as error:
        raise Unreachable(
            f"the shards did not start within {timeout} s: see whether a node has what `placement` asks for"
        ) from error
    except RayActorError as error:
        raise Unreachable(
            f"the shards ended before they had started; see whether this cluster is the one that was meant: {error}"
        ) from error
    for failure in failures:
        if failure is not None:
            raise failure


def _place(about: About, index: int) -> Place:
    whole = f"{about.namespace}/{about.name}"
    return Place(_key(about, index), whole, index, about.shards, about.life, about.holder_ttl_s)


def _key(about: About, index: int) -> str:
    return shard_key(about.namespace, about.name, index)
