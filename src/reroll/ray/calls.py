"""The calls that a shard carries out: each once, however often it is asked for, and taken back when its caller gives up."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from reroll.errors import WaitTimeout
from reroll.ray.wire import Reply, Request
from reroll.remote.eager_task import start_eagerly

_KEPT_S: Final = 30.0
"""For how long the reply of a call is kept for a caller that has not said that it arrived."""
_REMEMBERED: Final = 4096
"""How many calls that were taken back are remembered, in case that they come late."""

CarryOut = Callable[[Request], Coroutine[Any, Any, Reply]]
TakeBack = Callable[[Request, Reply], Awaitable[None]]


class Calls:
    """Calls by id. For one event loop."""

    def __init__(self, carry_out: CarryOut, take_back: TakeBack) -> None:
        self._carry_out = carry_out
        self._take_back = take_back
        self._tasks: dict[str, asyncio.Future[Reply]] = {}
        self._requests: dict[str, Request] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self._done: deque[tuple[float, str]] = deque()

    async def reply(self, request: Request) -> Reply:
        """Carry a call out, or wait for the same one that was started before. Its caller may have cancelled it: then not."""
        self.forget(request.seen)
        return await self._wait(self._start(request))

    async def replies(self, requests: Sequence[Request], patience_s: float) -> list[Reply | None]:
        """Carry out several calls at once; return their replies, None for those that take longer than a moment.

        They wait, if at all, as the buffer does: for a future, whatever task they are in.
        """
        for request in requests:
            self.forget(request.seen)
        tasks = [self._start(request, at_once=True) for request in requests]
        if waiting := [task for task in tasks if not task.done()]:
            await asyncio.wait(waiting, timeout=patience_s)
        return [_reply_of(task) if task.done() else None for task in tasks]

    async def late(self, numbers: Iterable[str]) -> dict[str, Reply | None]:
        """Wait for the first of several calls that were started before; return replies, by id, None for an unknown call."""
        tasks = {number: self._tasks[number] for number in numbers if number in self._tasks}
        unknown: dict[str, Reply | None] = {number: None for number in numbers if number not in tasks}
        if not unknown:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return unknown | {number: _reply_of(task) for number, task in tasks.items() if task.done()}

    def forget(self, seen: Iterable[str]) -> None:
        """Drop the replies of calls that arrived."""
        for number in seen:
            self._tasks.pop(number, None)
            self._requests.pop(number, None)

    async def cancel(self, number: str) -> None:
        """Let a call not have happened, as far as that is possible: its caller will never see the reply."""
        self._cancelled[number] = None
        if len(self._cancelled) > _REMEMBERED:
            self._cancelled.popitem(last=False)
        task, request = self._tasks.pop(number, None), self._requests.pop(number, None)
        if task is None or request is None:
            return
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await self._take_back(request, task.result())

    async def end(self) -> None:
        """Wait until all calls have ended."""
        if running := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(running)

    def _start(self, request: Request, *, at_once: bool = False) -> "asyncio.Future[Reply]":
        task = self._tasks.get(request.id)
        if task is None and request.id in self._cancelled:
            task = asyncio.get_running_loop().create_future()
            task.set_result(_given_up())
        if task is None:
            work = self._carry_out(request)
            task = start_eagerly(work) if at_once else asyncio.ensure_future(work)
            self._tasks[request.id] = task
            self._requests[request.id] = request._replace(
                arguments={}
            )  # what was put is kept by the buffer only
            if task.done():
                self._forget_later(request.id)
            else:
                task.add_done_callback(lambda _: self._forget_later(request.id))
        return task

    async def _wait(self, task: "asyncio.Future[Reply]") -> Reply:
        await asyncio.wait([task])  # not awaited itself: a cancelled one has a reply, too
        return _reply_of(task)

    def _forget_later(self, number: str) -> None:
        loop = asyncio.get_running_loop()
        if not self._done:  # one timer for all
            loop.call_later(_KEPT_S, self._forget_old)
        self._done.append((loop.time() + _KEPT_S, number))

    def _forget_old(self) -> None:
        loop = asyncio.get_running_loop()
        while self._done and self._done[0][0] <= loop.time():
            self.forget((self._done.popleft()[1],))
        if self._done:
            loop.call_at(self._done[0][0], self._forget_old)


def _reply_of(task: "asyncio.Future[Reply]") -> Reply:
    return _given_up() if task.cancelled() else task.result()


def _given_up() -> Reply:
    return Reply(error=WaitTimeout("the caller gave this call up; nothing was changed"))
