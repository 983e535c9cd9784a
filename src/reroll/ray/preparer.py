"""PreparerActor: `reroll.prepare` in an actor, for engines and trainer ranks on any node."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Self

import ray
from ray.exceptions import RayActorError

from reroll.errors import Closed, InvalidArgument, Unreachable
from reroll.prepare import PrepareConfig, Preparer, Prompts
from reroll.prepare.service import NAME, PreparerService, RemotePreparer
from reroll.ray.buffer import run

_GRACE_S: Final = 30.0
"""Seconds that a call may take besides its timeout."""


class _Host:
    """The actor."""

    def __init__(self, config: PrepareConfig, source: Any, buffer: Any, prompts: Any, sentinel: Any) -> None:
        self._failure: Exception | None = None
        try:
            self._service = PreparerService(
                Preparer(config, source, buffer=buffer, prompts=prompts, sentinel=sentinel)
            )
        except Exception as error:  # noqa: BLE001  (every call raises it)
            self._failure = error

    async def ask(self, verb: str, arguments: Mapping[str, Any]) -> tuple[Any, Exception | None]:
        """Return the result of a verb, or its error."""
        if self._failure is not None:
            return None, None if verb == "stop" else self._failure
        try:
            if verb != "stop" and verb not in self._service.verbs:
                raise InvalidArgument(f"a preparer has no verb {verb!r}")  # noqa: TRY301
            return await getattr(self._service, verb)(**arguments), None
        except Exception as error:  # noqa: BLE001  (the caller raises it)
            return None, error


class _Client:
    """Calls the actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        timeout = arguments.get("timeout")
        sent = asyncio.wrap_future(self.actor.ask.remote(name.removeprefix(f"{NAME}."), arguments).future())
        try:
            value, error = await asyncio.wait_for(sent, None if timeout is None else timeout + _GRACE_S)
        except TimeoutError as late:
            raise Unreachable("the preparer did not answer in time; check that its node is alive") from late
        except RayActorError as died:
            raise Closed("the preparer has ended; create a new one, and restore its last `state`") from died
        if error is not None:
            raise error
        return value


class _BlockingClient:
    """Calls the actor, for threads."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return run(self._client.ask(name, arguments))


class PreparerActor(RemotePreparer):
    """A preparer in an actor: the verbs of `Preparer` as coroutines; `blocking()` has them for threads.

    It can be sent to other actors and tasks. When it ends, steps that are not done return their groups to a buffer that is not
    its own; a new one continues with `restore`.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(_Client(actor))
        self._actor = actor

    @classmethod
    def create(
        cls,
        config: PrepareConfig,
        source: Any = None,
        *,
        buffer: Any = None,
        prompts: Prompts | None = None,
        sentinel: Any = None,
        name: str | None = None,
        namespace: str | None = None,
        placement: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start the actor, and return a handle. An actor that cannot be made raises with the first call.

        Args:
            config: the configuration of the preparer.
            source: gives results, such as a `ray.util.queue.Queue`; None: engines `put` them.
            buffer: a `RayReplayBuffer`; None: a buffer of its own, as configured.
            prompts: receives the prompts that are finished; lives in the actor.
            sentinel: the value of a source that has ended.
            name: the name to `connect` by.
            namespace: the namespace of Ray.
            placement: options of Ray for the actor.

        Raises:
            InvalidArgument: the name is taken.

        """
        options = {"num_cpus": 0, "max_concurrency": 1000, **(placement or {})}
        named = {"name": _actor_name(name), "namespace": namespace} if name is not None else {}
        actor = ray.remote(_Host).options(**options, **named)
        try:
            return cls(actor.remote(config, source, buffer, prompts, sentinel))
        except ValueError as error:
            raise InvalidArgument(
                f"there is a preparer {name!r}; connect to it, shut it down, or choose another name"
            ) from error

    @classmethod
    def connect(cls, name: str, *, namespace: str | None = None) -> Self:
        """Return a handle of a preparer that was created under a name. Raises Closed if there is none."""
        try:
            return cls(ray.get_actor(_actor_name(name), namespace=namespace))
        except ValueError as error:
            raise Closed(f"there is no preparer {name!r}, or it has ended; create it") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._actor,)

    def blocking(self) -> RemotePreparer:
        """Return the same preparer for threads: its verbs are called without `await`."""
        return RemotePreparer(_BlockingClient(_Client(self._actor)))

    async def shutdown(self) -> None:
        """Stop: waiting calls raise Closed, steps that are not done return their groups, and the actor ends."""
        await self._client.ask(f"{NAME}.stop", {})
        ray.kill(self._actor)


def _actor_name(name: str) -> str:
    return f"reroll-preparer:{name}"
