"""Coroutines that run without a task until they wait: most calls never need a task."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def start_eagerly(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Run a coroutine until it waits; return the task that continues it, or a finished future if it never waits.

    Until the first wait, `asyncio.current_task()` is the caller's. An error before the first wait is raised here. Cancelling
    the task cancels the coroutine at any moment, also before the task's first step.
    """
    context, loop = copy_context(), asyncio.get_running_loop()
    try:
        awaited = context.run(work.send, None)
    except StopIteration as end:
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(end.value)
        return done
    return loop.create_task(_Rest(work, awaited), context=context)


class _Rest(Coroutine[Any, Any, T]):
    """The rest of a coroutine that waits for `awaited`.

    A class, not a coroutine function: asyncio ends a coroutine function that is cancelled before its first step without
    entering its body, and the started coroutine would keep its place in a queue, or its groups, for ever.
    """

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited  # None once the task waits for it, and for a coroutine that yielded nothing

    def send(self, value: Any) -> Any:
        awaited, self._awaited = self._awaited, None
        return self._work.send(value) if awaited is None else awaited

    def throw(self, error: Any, *_: Any) -> Any:
        awaited, self._awaited = self._awaited, None
        # A waiting task passes its cancellation to the future, which then cancels the coroutine.
        if awaited is not None and isinstance(error, asyncio.CancelledError) and awaited.cancel(*error.args):
            return awaited
        return self._work.throw(error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()
