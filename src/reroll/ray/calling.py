"""Calls to one shard: with a deadline, tried again while its actor is away, and taken back when they are cancelled."""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RaySystemError,
    RayTaskError,
)

from reroll.errors import Closed, InvalidArgument, RerollError, Unreachable
from reroll.ray.wire import Holder, Reply, Request, size_of

T = TypeVar("T")

GRACE_S: Final = 5.0
"""How much longer than its timeout a call may take, on its way and back."""
_LOOK_S: Final = 10.0
"""How often somebody who waits for long looks whether the shard is still there."""
_NONE: Final = -1.0
_RETRY_S: Final = (0.05, 1.0)
_MANY: Final = 64
"""How many calls travel together at most."""
_LARGE: Final = 1 << 22
"""Calls with so many bytes leave at once: the shard works on them while the next are made. Each trip has its price."""


_Asked = tuple[Request, "asyncio.Future[Reply]"]


def actor_name(buffer: str, shard: int) -> str:
    """Return what Ray knows a shard of a buffer by."""
    return f"reroll:{buffer}:{shard}"


def shard_key(namespace: str, buffer: str, shard: int) -> str:
    """Return what tells a shard from all others of the cluster."""
    return f"{namespace}/{actor_name(buffer, shard)}"


class Line:
    """The way to one shard. It belongs to one event loop."""

    def __init__(self, buffer: str, shard: int, namespace: str, patience_s: float) -> None:
        self._buffer, self._shard, self._namespace = buffer, shard, namespace
        self.key = shard_key(namespace, buffer, shard)
        self._patience_s = patience_s
        self._actor: Any = None
        self._seen: list[str] = []
        self._batch: list[_Asked] = []
        self._told: set[asyncio.Future[Reply]] = set()
        self._batch_bytes = 0
        self._flushes: set[asyncio.Task[None]] = set()
        self.load: dict[str, int] | None = None
        """How many groups the shard held when it was last heard of, by task; None if it never was."""
        self.steps: dict[str, int] = {}
        """The training step of each task that had one, when the shard was last heard of."""
        self.underway = 0
        """How many puts are on their way."""

    def __str__(self) -> str:
        return f"shard {self._shard} of buffer {self._buffer!r}"

    def _closed(self) -> Closed:
        return Closed(f"the buffer {self._buffer!r} was closed, or whoever made it has ended")

    def _silent(self) -> Unreachable:
        return Unreachable(f"{self} did not answer in time: see whether its node is alive")

    @property
    def actor(self) -> Any:
        """The actor. Raises Closed if there is none of this name."""
        if self._actor is None:
            try:
                self._actor = ray.get_actor(actor_name(self._buffer, self._shard), namespace=self._namespace)
            except ValueError as error:
                raise Closed(
                    f"there is no buffer {self._buffer!r} in namespace {self._namespace!r}, or it was closed; one that another "
                    "driver created is in that driver's namespace: name it, as in connect(name, namespace=...)"
                ) from error
        return self._actor

    async def call(
        self,
        verb: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = _NONE,
        holder: Holder | None = None,
        together: bool = False,
    ) -> Any:
        """Return what a verb of the shard returns, or raise what it raises.

        `timeout` is how long the caller waits for the verb, if it may wait, None for ever: a shard that is away is waited for
        as long. With `together`, calls of the same moment travel as one. Raises Unreachable if the shard does not answer,
        Closed if it never will.
        """
        deadline = None
        if timeout is not None:
            grace = self._patience_s if timeout == _NONE else min(GRACE_S, self._patience_s)
            deadline = time.monotonic() + max(timeout, 0.0) + grace
        if self._told:
            await asyncio.wait(self._told, timeout=GRACE_S)
        request = Request(uuid.uuid4().hex, verb, dict(arguments), holder)
        return await self._until_replied(request, deadline, self._together if together else self._alone)

    def tell(self, verb: str, arguments: Mapping[str, Any]) -> None:
        """Call a verb of the shard, and do not wait for it; the next call does."""
        if self._actor is not None:
            sent = self._actor.call.remote(Request(uuid.uuid4().hex, verb, dict(arguments)))
            told = asyncio.wrap_future(sent.future())
            self._told.add(told)
            told.add_done_callback(self._has_told)

    def teach(self, task: str, step: int) -> None:
        """Let the shard learn a training step, by a take of nothing; the next call waits for that."""
        self._actor = self.actor
        self.tell("take_batch", {"task_batch_sizes": {task: 0}, "train_step": step})
        self.steps[task] = step

    def _has_told(self, told: "asyncio.Future[Reply]") -> None:
        self._told.discard(told)
        if not told.cancelled():
            told.exception()  # whoever it mattered to would have waited

    async def _until_replied(
        self,
        request: Request,
        deadline: float | None,
        send: Callable[[Request, float | None], Awaitable[Reply]],
    ) -> Any:
        away_since, pause = None, _RETRY_S[0]
        try:
            while True:
                try:
                    reply = await send(request, deadline)
                    break
                except ActorDiedError as error:  # for good: it is started again after every other end
                    raise self._closed() from error
                except (
                    RayActorError,
                    ObjectLostError,
                ) as error:  # the latter of a reply whose node died with it
                    now = time.monotonic()
                    away_since = now if away_since is None else away_since
                    if now - away_since > self._patience_s or (deadline is not None and now > deadline):
                        raise Unreachable(
                            f"{self} does not answer since {now - away_since:.0f} s: see whether its node is "
                            "alive and has room for it, then repeat the call"
                        ) from error
                    await asyncio.sleep(pause * (0.5 + random.random()))
                    pause, send = min(2 * pause, _RETRY_S[1]), self._alone
        except (asyncio.CancelledError, Unreachable):
            if self._actor is not None:
                self._actor.cancel.remote(request.id)
            raise
        self._seen.append(request.id)
        self.load, self.steps = reply.load or {}, reply.steps or {}
        if reply.error is not None:
            raise reply.error
        return reply.value

    async def _within(self, sent: "asyncio.Future[T]", deadline: float | None) -> T:
        """Wait for an answer, and look now and then whether the shard is there."""
        try:
            while True:
                left = time_left(deadline)
                done, _ = await asyncio.wait([sent], timeout=_LOOK_S if left is None else min(_LOOK_S, left))
                if done:
                    return sent.result()
                if time_left(deadline) == 0:
                    raise self._silent()
                await self._look(time_left(deadline))
        except (asyncio.CancelledError, Unreachable):
            sent.cancel()
            raise

    async def _look(self, left: float | None) -> None:
        """Raise Unreachable if the shard does not answer in the time that is left, or for too long; RayActorError."""
        ping = asyncio.wrap_future(self.actor.pid.remote().future())
        patience_s = self._patience_s if left is None else min(self._patience_s, left)
        done, _ = await asyncio.wait([ping], timeout=patience_s)
        if not done:
            raise self._silent()
        ping.result()

    async def _alone(self, request: Request, deadline: float | None) -> Reply:
        asked = self._telling(request)
        try:
            sent = self.actor.call.remote(asked)
            reply: Reply = await self._within(asyncio.wrap_future(sent.future()), deadline)
        except (TypeError, RaySystemError) as error:
            raise InvalidArgument(
                f"{request.verb}: an argument cannot be sent to the shard, or be read there: {error.__cause__ or error}"
            ) from error
        return reply

    def _telling(self, request: Request) -> Request:
        """Return a request that tells whose replies have arrived."""
        seen, self._seen = tuple(self._seen), []
        return request._replace(seen=seen)

    def _together(self, request: Request, deadline: float | None) -> Awaitable[Reply]:
        """Send a request with all others of this turn of the event loop. Whether the shard is there is looked for all."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._batch.append((request, future))
        self._batch_bytes += size_of(request)
        if len(self._batch) == _MANY or self._batch_bytes >= _LARGE:
            self._flush()
        elif len(self._batch) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        return future if deadline is None else self._within(future, deadline)

    def _flush(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        part = [(request, future) for request, future in batch if not future.done()]
        if not part:
            return
        try:
            if len(part) == 1:
                self._follow(self._pass_on(*part[0]))
            else:
                first, *others = [request for request, _ in part]
                requests = (self._telling(first), *others)
                sent = self.actor.calls.remote([tuple(each) for each in requests])
                self._follow(self._arrive(part, sent))
        except RerollError as error:
            for _, future in part:
                future.set_exception(error)
        except Exception:  # noqa: BLE001  (one of them cannot be written: each by itself tells which)
            self._pass_all_on(part)

    async def _arrive(self, part: Sequence[_Asked], sent: Any) -> None:
        """Hand on the replies of calls that travelled together: those that are there first, and then the others."""
        left = {request.id: (request, future) for request, future in part}
        try:
            first = await self._within(asyncio.wrap_future(sent.future()), None)
            for (_, future), reply in zip(part, first, strict=True):
                if reply is not None and not future.done():
                    future.set_result(Reply(*reply))
            while left := {number: asked for number, asked in left.items() if not asked[1].done()}:
                sent = self.actor.late.remote(list(left))
                late: dict[str, Reply | None] = await self._within(asyncio.wrap_future(sent.future()), None)
                for number, reply in late.items():
                    request, future = left.pop(number)
                    if reply is None:  # the shard was started anew
                        self._follow(self._pass_on(request, future))
                    elif not future.done():
                        future.set_result(reply)
        except RayTaskError:  # one of them cannot be read there: each by itself tells which
            self._pass_all_on(left.values())
        except Exception as error:  # noqa: BLE001  (each caller raises it)
            for _, future in left.values():
                if not future.done():
                    future.set_exception(error)

    def _pass_all_on(self, part: Iterable[_Asked]) -> None:
        for request, future in part:
            self._follow(self._pass_on(request, future))

    async def _pass_on(self, request: Request, to: "asyncio.Future[Reply]") -> None:
        """Send a request by itself; one that was given up meanwhile is not: what it brought may be gone."""
        if to.done():
            return
        try:
            value = await self._alone(request, None)
        except Exception as error:  # noqa: BLE001  (the caller raises it)
            if not to.done():
                to.set_exception(error)
        else:
            if not to.done():
                to.set_result(value)

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def call_now(self, method: str, timeout: float) -> Any:
        """Call a method of the actor from where nobody can await. Raises Unreachable, Closed."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return ray.get(getattr(self.actor, method).remote(), timeout=time_left(deadline))
            except GetTimeoutError as error:
                raise Unreachable(f"{self} does not answer within {timeout} s") from error
            except ActorDiedError as error:
                raise self._closed() from error
            except RayActorError as error:
                if time_left(deadline) == 0:
                    raise Unreachable(f"{self} is not started again within {timeout} s") from error
                time.sleep(_RETRY_S[0])  # Ray tells nobody when an actor is back


def time_left(deadline: float | None) -> float | None:
    """Return how many seconds are left until a moment of `time.monotonic`, None for ever."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
