"""A coroutine that runs at once, as far as it gets without waiting: most calls need no task."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any


def start(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
    """Run a coroutine until it waits, and return the task that goes on with it; None if it is done.

    Until then `asyncio.current_task()` is not its own. What it raises before it waits is raised here.
    """
    context = copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest_of(work, awaited), context=context)


async def _rest_of(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _steps_of(work, awaited)


@coroutine
def _steps_of(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001  (it is the work's own)
                awaited = work.throw(error)
            else:
                awaited = work.send(value)
        except StopIteration:
            return
