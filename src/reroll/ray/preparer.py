"""PreparerActor: the data preparation of `reroll.prepare` in an actor, for engines and trainer ranks anywhere in the cluster."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Self

import ray
from ray.exceptions import RayActorError

from reroll.errors import Closed, InvalidArgument, Unreachable
from reroll.prepare import PrepareConfig, Preparer, Prompts
from reroll.prepare.service import NAME, PreparerService, RemotePreparer
from reroll.ray.looping import run
from reroll.ray.wire import Reply

_GRACE_S: Final = 30.0
"""How much longer than its timeout a call may take, on its way and back."""


class _Host:
    """The actor."""

    def __init__(self, config: PrepareConfig, source: Any, buffer: Any, prompts: Any, sentinel: Any) -> None:
        self._failure: Exception | None = None
        try:
            self._service = PreparerService(
                Preparer(config, source, buffer=buffer, prompts=prompts, sentinel=sentinel)
            )
        except Exception as error:  # noqa: BLE001  (whoever asks for something raises it)
            self._failure = error

    async def ask(self, verb: str, arguments: Mapping[str, Any]) -> Reply:
        if self._failure is not None:
            return Reply(error=None if verb == "stop" else self._failure)
        try:
            if verb != "stop" and verb not in self._service.verbs:
                raise InvalidArgument(f"a preparer has no verb {verb!r}")  # noqa: TRY301  (as any other)
            return Reply(await getattr(self._service, verb)(**arguments))
        except Exception as error:  # noqa: BLE001  (the caller raises it)
            return Reply(error=error)


class _Asking:
    """Asks the actor, and awaits the answer."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        timeout = arguments.get("timeout")
        sent = asyncio.wrap_future(self.actor.ask.remote(name.removeprefix(f"{NAME}."), arguments).future())
        try:
            reply = await asyncio.wait_for(sent, None if timeout is None else timeout + _GRACE_S)
        except TimeoutError as error:
            raise Unreachable("the preparer did not answer in time: see whether its node is alive") from error
        except RayActorError as error:
            raise Closed(
                "the preparer has ended: make a new one, and restore what `state` returned last"
            ) from error
        if reply.error is not None:
            raise reply.error
        return reply.value


class _Blocking:
    """Does the same for threads."""

    def __init__(self, asking: _Asking) -> None:
        self._asking = asking

    def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return run(self._asking.ask(name, arguments))


class PreparerActor(RemotePreparer):
    """A preparer in an actor: its verbs are those of `Preparer`, and awaited; `blocking()` has them for threads.

    It can be sent to other actors and tasks. When it ends, the steps that were not done give their groups back to a buffer
    that is not its own; a new one goes on with `restore`.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(_Asking(actor))
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
        """Start the actor, and return a handle.

        Args:
            config: what it does.
            source: where results come from, such as a `ray.util.queue.Queue`; None: engines `put` them.
            buffer: a `RayReplayBuffer`; None: a buffer of its own, as configured.
            prompts: who learns which results are settled; lives in the actor.
            sentinel: what a source gives when nothing will come any more.
            name: to `connect` by.
            namespace: of Ray.
            placement: options of Ray for the actor.

        Raises InvalidArgument if the name is taken. What the actor cannot be made of is raised by the first call.

        """
        options = {"num_cpus": 0, "max_concurrency": 1000, **(placement or {})}
        named = {"name": _name(name), "namespace": namespace} if name is not None else {}
        actor = ray.remote(_Host).options(**options, **named)
        try:
            return cls(actor.remote(config, source, buffer, prompts, sentinel))
        except ValueError as error:
            raise InvalidArgument(
                f"there is a preparer {name!r}: connect to it, shut it down, or choose another name"
            ) from error

    @classmethod
    def connect(cls, name: str, *, namespace: str | None = None) -> Self:
        """Return a handle of a preparer that somebody has created under a name. Raises Closed if there is none."""
        try:
            return cls(ray.get_actor(_name(name), namespace=namespace))
        except ValueError as error:
            raise Closed(f"there is no preparer {name!r}, or it has ended") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._actor,)

    def blocking(self) -> RemotePreparer:
        """Return the same preparer for threads: its verbs are called without `await`."""
        return RemotePreparer(_Blocking(_Asking(self._actor)))

    async def shutdown(self) -> None:
        """Stop it: whoever waits gets Closed, steps that are not done give their groups back, and the actor ends."""
        await self._client.ask(f"{NAME}.stop", {})
        ray.kill(self._actor)


def _name(name: str) -> str:
    return f"reroll-preparer:{name}"
