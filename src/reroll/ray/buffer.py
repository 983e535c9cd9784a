"""RayReplayBuffer: a buffer in actors of a Ray cluster, for asyncio; BlockingRayReplayBuffer: the same for threads.

A handle names the actors of its shards, and can be sent to other actors and tasks. In each event loop of a process, all handles
of a buffer share one client for each shard.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

from reroll.buffer.arguments import checked_path
from reroll.buffer.blocking import BlockingVerbs
from reroll.buffer.buffer import ReplayBuffer
from reroll.buffer.plain_calls import blocking
from reroll.config import ReplayBufferConfig
from reroll.errors import Closed, InvalidArgument, Unreachable
from reroll.ray.actor import BufferActor, BufferSpec
from reroll.ray.losses import forget, read_life
from reroll.ray.transport import RayCarrier, ShardClient
from reroll.remote.client import LoopThread
from reroll.remote.connection import Connection
from reroll.remote.methods import bound_like
from reroll.remote.shard import ShardPlace, divide
from reroll.remote.sharded import ShardedBuffer

_CLOSE_S: Final = 10.0
"""Seconds that a shard has to close."""
_RETRY_S: Final = 0.05
"""Seconds between two calls to an actor that is being restarted."""

_clients: dict[asyncio.AbstractEventLoop, dict[str, list[ShardClient]]] = {}
"""The clients of the shards, by event loop, by life of the buffer."""
_created: dict[str, list[Any]] = {}
"""Actors of buffers that were created here, by life: Ray ends those whose creator drops its handle."""
_thread: Final = LoopThread("reroll-ray")
"""Runs the calls of all blocking handles."""


class RayReplayBuffer(ShardedBuffer):
    """A buffer in actors of a Ray cluster: verbs, arguments, results and errors of ReplayBuffer.

    `create` makes it, `connect` finds it. All methods but `len()`, `lease()` and `blocking()` are coroutines. Groups are copied in
    and out. A call repeats until its shard answers, and raises Unreachable in the end.
    """

    def __init__(self, spec: BufferSpec) -> None:
        super().__init__(())
        self._spec = spec

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
            config: the configuration of the whole buffer; each shard gets its part, and a directory in its `store`.
            name: the name to `connect` by.
            namespace: the namespace of Ray; None: that of this job.
            num_shards: number of actors.
            placement: options of Ray for each actor, such as `resources`; or a function from the number of a shard to them.
            detached: whether the buffer outlives this process, until `close`.
            setup: a function that each actor calls first, for instance to import the module that registers your classes.
            holder_ttl_s: seconds of silence after which a process counts as dead, and its leases and reservations return.
            unreachable_s: seconds of silence of a shard after which calls raise Unreachable.
            keep_refs: whether `ObjectRef`s inside of rollouts stay references; otherwise their objects are put.
            timeout: seconds to wait at most until the actors have started.

        Raises:
            InvalidConfig: the configuration can never proceed, or cannot be divided.
            InvalidArgument: an argument is invalid, or the name is taken.
            Unreachable: the actors did not start.

        Example: `buffer = RayReplayBuffer.create(ReplayBufferConfig(capacity=512), name="math")`.

        """
        if not isinstance(config, ReplayBufferConfig):
            raise InvalidArgument(
                f"config must be a ReplayBufferConfig, not {type(config).__name__}; ReplayBufferConfig(**fields) makes one"
            )
        if num_shards < 1:
            raise InvalidArgument(f"num_shards must be at least 1, not {num_shards}")
        for shard in range(num_shards):
            divide(config, ShardPlace(shard, num_shards))
        space = ray.get_runtime_context().namespace if namespace is None else namespace
        life = uuid.uuid4().hex
        spec = BufferSpec(name, space, num_shards, config, life, holder_ttl_s, unreachable_s, keep_refs)
        actors: list[Any] = []
        try:
            for shard in range(num_shards):
                own = placement(shard) if callable(placement) else placement or {}
                options = {
                    "num_cpus": 0,
                    "max_restarts": -1,
                    "max_concurrency": 100_000,
                    **own,
                    "name": spec.actor_name(shard),
                    "namespace": space,
                    "lifetime": "detached" if detached else None,
                }
                try:
                    kind = ray.remote(BufferActor).options(**options)
                except ValueError as error:
                    raise InvalidArgument(f"placement: {error}") from error
                try:
                    actors.append(kind.remote(spec, shard, setup))
                except ValueError as error:
                    raise InvalidArgument(
                        f"there is a buffer {name!r} in namespace {space!r}; connect to it, close it, or choose another name"
                    ) from error
            check_ready(actors, timeout)
        except BaseException:
            for actor in actors:
                ray.kill(actor)
            raise
        _created[life] = actors
        return cls(spec)

    @classmethod
    def connect(cls, name: str = "reroll", *, namespace: str | None = None, timeout: float = 60.0) -> Self:
        """Return a handle of a buffer that another process created.

        Args:
            name: the name of the buffer.
            namespace: the namespace of Ray; None: that of this job.
            timeout: seconds to wait at most for an answer.

        Raises:
            Closed: there is no such buffer.
            Unreachable: the buffer did not answer.

        Example: `buffer = RayReplayBuffer.connect("math")`.

        """
        space = ray.get_runtime_context().namespace if namespace is None else namespace
        spec = BufferSpec(name, space, 1, ReplayBufferConfig(), "", 0.0, timeout, keep_refs=False)
        return cls(_call_now(spec, 0, "spec"))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._spec,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.connect({self._spec.name!r}, namespace={self._spec.namespace!r})"

    def __len__(self) -> int:
        """Return the number of resident groups of any status. Waits for the shards without `await`."""
        return sum(_call_now(self._spec, shard, "size") for shard in range(self._spec.num_shards))

    @property
    def config(self) -> ReplayBufferConfig:
        """The configuration of the buffer."""
        return self._spec.config

    @property
    def actors(self) -> list[Any]:
        """The actors of the shards, to observe or end them; their methods are for handles only."""
        return [_find_actor(self._spec, shard) for shard in range(self._spec.num_shards)]

    def blocking(self) -> "BlockingRayReplayBuffer":
        """Return the same buffer for threads: its verbs are called without `await`."""
        return BlockingRayReplayBuffer(self)

    @bound_like(ReplayBuffer.save)
    async def save(self, arguments: dict[str, Any]) -> None:
        arguments["path"] = checked_path(arguments["path"]).absolute()
        await super().save(**arguments)

    @bound_like(ReplayBuffer.resume)
    async def resume(self, arguments: dict[str, Any]) -> None:
        arguments["path"] = checked_path(arguments["path"]).absolute()
        await super().resume(**arguments)

    async def close(self) -> None:
        """Close the buffer for all: leases return, waiting and later calls raise Closed, and its actors end."""
        for shard in filter(self._is_ours, range(self._spec.num_shards)):
            with suppress(Closed, RayActorError, TimeoutError):
                closing = asyncio.wrap_future(_find_actor(self._spec, shard).close.remote().future())
                await asyncio.wait([closing], timeout=_CLOSE_S)
        self._end()
        for client in self._shared_clients().pop(self._spec.life, ()):
            await client.close()

    def _end(self) -> None:
        """End the actors, and forget their records."""
        for shard in filter(self._is_ours, range(self._spec.num_shards)):
            with suppress(Closed):
                ray.kill(_find_actor(self._spec, shard), no_restart=True)
            forget(self._spec.key(shard))
        _created.pop(self._spec.life, None)

    def _is_ours(self, shard: int) -> bool:
        """Return whether a shard belongs to this buffer, not to a later one of the same name."""
        return read_life(self._spec.key(shard)) in (None, self._spec.life)

    async def _ready(self) -> Sequence[ShardClient]:
        clients = self._shared_clients()
        if self._spec.life not in clients:
            shards = range(self._spec.num_shards)
            clients[self._spec.life] = [
                ShardClient(partial(self._connect, shard), keep_refs=self._spec.keep_refs) for shard in shards
            ]
        return clients[self._spec.life]

    @staticmethod
    def _shared_clients() -> dict[str, list[ShardClient]]:
        loop = asyncio.get_running_loop()
        if loop not in _clients:
            for ended in [each for each in _clients if each.is_closed()]:
                del _clients[ended]
            _clients[loop] = {}
        return _clients[loop]

    def _connect(self, shard: int) -> Connection:
        spec = self._spec
        heartbeat_s = min(2.0, spec.holder_ttl_s / 5, spec.unreachable_s / 5)
        dial = partial(
            RayCarrier,
            find=partial(_find_actor, spec, shard),
            closed=f"the buffer {spec.name!r} was closed, or the process that created it has ended",
            heartbeat_s=heartbeat_s,
        )
        address = f"shard {shard} of buffer {spec.name!r}"
        return Connection(
            dial,
            address,
            heartbeat_s=heartbeat_s,
            patience_s=spec.unreachable_s,
            deadline_s=None,
            grace_s=None if spec.num_shards == 1 else spec.unreachable_s,
        )


class BlockingRayReplayBuffer(BlockingVerbs):
    """Thread-safe; verbs, arguments, results and errors of RayReplayBuffer, without `await`."""

    close = blocking(RayReplayBuffer.close)
    shard_stats = blocking(RayReplayBuffer.shard_stats)

    def __init__(self, target: RayReplayBuffer) -> None:
        self._target: RayReplayBuffer = target
        self._run = _thread.run

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._target,)

    def __repr__(self) -> str:
        return f"{self._target!r}.blocking()"

    def __len__(self) -> int:
        return len(self._target)

    def __bool__(self) -> bool:
        return True  # also when it is empty

    @property
    def config(self) -> ReplayBufferConfig:
        """The configuration of the buffer."""
        return self._target.config


def run(work: Any) -> Any:
    """Run a coroutine in the event loop of all blocking handles, and return its result."""
    return _thread.run(work)


def check_ready(actors: Sequence[Any], timeout: float) -> None:
    """Raise the error of a shard that cannot be opened; Unreachable after `timeout` seconds."""
    try:
        failures = ray.get([actor.ready.remote() for actor in actors], timeout=timeout)
    except GetTimeoutError as error:
        raise Unreachable(
            f"the shards did not start within {timeout} s; check that a node has what `placement` asks for"
        ) from error
    except RayActorError as error:
        raise Unreachable(
            f"the shards ended before they had started; check that this is the intended cluster: {error}"
        ) from error
    for failure in failures:
        if failure is not None:
            raise failure


def _find_actor(spec: BufferSpec, shard: int) -> Any:
    """Return the actor of a shard. Raises Closed if there is none."""
    try:
        return ray.get_actor(spec.actor_name(shard), namespace=spec.namespace)
    except ValueError as error:
        if spec.life:
            raise Closed(
                f"the buffer {spec.name!r} was closed, or the process that created it has ended"
            ) from error
        raise Closed(
            f"there is no buffer {spec.name!r} in namespace {spec.namespace!r}, or it was closed; the namespace of another "
            "driver must be named, as in connect(name, namespace=...)"
        ) from error


def _call_now(spec: BufferSpec, shard: int, method: str) -> Any:
    """Call a method of an actor without `await`. Raises Unreachable, Closed."""
    deadline = time.monotonic() + spec.unreachable_s
    while True:
        left = deadline - time.monotonic()
        try:
            return ray.get(getattr(_find_actor(spec, shard), method).remote(), timeout=max(0.0, left))
        except GetTimeoutError as error:
            raise Unreachable(
                f"shard {shard} of buffer {spec.name!r} did not answer within {spec.unreachable_s} s; check its node"
            ) from error
        except ActorDiedError as error:
            raise Closed(
                f"the buffer {spec.name!r} was closed, or the process that created it has ended"
            ) from error
        except RayActorError as error:
            if left <= 0:
                raise Unreachable(
                    f"shard {shard} of buffer {spec.name!r} was not restarted within {spec.unreachable_s} s; check its node"
                ) from error
            time.sleep(_RETRY_S)  # Ray does not notify when an actor is back
