"""A coroutine that runs at once, as far as it gets without waiting: most calls need no task."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def start(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Run a coroutine until it waits, and return the task that goes on with it; a future that is done, if it is.

    Until then `asyncio.current_task()` is not its own. What it raises before it waits is raised here.
    """
    context, loop = copy_context(), asyncio.get_running_loop()
    try:
        awaited = context.run(work.send, None)
    except StopIteration as end:
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(end.value)
        return done
    return loop.create_task(_rest_of(work, awaited), context=context)


async def _rest_of(work: Coroutine[Any, Any, T], awaited: Any) -> T:
    return await _steps_of(work, awaited)


@coroutine
def _steps_of(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    while True:
        try:
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001  (it is the work's own)
                awaited = work.throw(error)
            else:
                awaited = work.send(value)
        except StopIteration as end:
            found: T = end.value
            return found
