"""Whatever gives results is a source: queues, callables, iterators, with and without await."""

import asyncio
import multiprocessing
import queue

import pytest

from prepare_loops.results import TIMEOUT, config, filled, prompts_of, result
from reroll import LoopFailed, SourceEnded
from reroll.prepare import BlockingPreparer, Preparer

RESULTS = [result(n) for n in (1, 2, 3, 4)]


class WithGet:
    """A queue-like thing without a timeout."""

    def __init__(self):
        self._items = iter([*RESULTS, None])

    def get(self):
        return next(self._items)


class WithAsyncGet(WithGet):
    async def get(self):
        await asyncio.sleep(0)
        return next(self._items)


async def generated():
    for one in RESULTS:
        await asyncio.sleep(0)
        yield one


def called():
    items = iter([*RESULTS, None])
    return lambda: next(items)


def awaited():
    items = iter([*RESULTS, None])

    async def read():
        return next(items)

    return read


SOURCES = {
    "queue": lambda: filled([*RESULTS, None]),
    "simple queue": lambda: _simple([*RESULTS, None]),
    "lists": lambda: filled([RESULTS[:3], RESULTS[3:], None]),
    "get": WithGet,
    "async get": WithAsyncGet,
    "callable": called,
    "coroutine function": awaited,
    "iterator": lambda: iter(RESULTS),
    "list": lambda: RESULTS,
    "generator": lambda: (one for one in RESULTS),
    "async generator": generated,
}


def _simple(items):
    source = queue.SimpleQueue()
    for one in items:
        source.put(one)
    return source


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name):
    with BlockingPreparer(config(2), SOURCES[name]()) as preparer:
        assert prompts_of(preparer.get_data(0, 1, TIMEOUT)) == [1, 2]
        assert prompts_of(preparer.get_data(0, 2, TIMEOUT)) == [3, 4]
        with pytest.raises(EOFError):
            preparer.get_data(0, 3, TIMEOUT)


@pytest.mark.parametrize("name", SOURCES)
async def test_sources_in_a_loop(name):
    async with Preparer(config(2), SOURCES[name]()) as preparer:
        for step in (1, 2):
            found = prompts_of(await preparer.get_data(0, step, TIMEOUT))
            assert found == [2 * step - 1, 2 * step]
        with pytest.raises(EOFError):
            await preparer.get_data(0, 3, TIMEOUT)


async def test_a_queue_of_asyncio():
    source: asyncio.Queue = asyncio.Queue()
    async with Preparer(config(2), source) as preparer:
        waiting = asyncio.create_task(preparer.get_data(0, 1, TIMEOUT))
        for one in RESULTS:
            await source.put(one)
        assert prompts_of(await waiting) == [1, 2]


def test_a_sentinel_of_ones_own():
    source = filled([*RESULTS[:2], "stop", *RESULTS[2:]])
    with BlockingPreparer(config(2), source, sentinel="stop") as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        with pytest.raises(EOFError):
            preparer.get_data(0, 2, TIMEOUT)
    assert source.qsize() == 2  # what comes after it is left alone


def test_a_sentinel_that_came_through_a_queue_of_processes():
    source = multiprocessing.get_context("spawn").Queue()
    source.put(RESULTS[0])
    source.put("the end")
    with BlockingPreparer(config(1), source, sentinel="the end") as preparer:
        preparer.get_data(0, 1, TIMEOUT)
        with pytest.raises(SourceEnded):
            preparer.get_data(0, 2, TIMEOUT)


@pytest.mark.parametrize("source", [3, object()])
def test_what_is_no_source(source):
    with (
        BlockingPreparer(config(2), source) as preparer,
        pytest.raises(LoopFailed, match="InvalidArgument: a source"),
    ):
        preparer.get_data(0, 1, TIMEOUT)


def test_what_is_no_result():
    with (
        BlockingPreparer(config(2), ["text"]) as preparer,
        pytest.raises(LoopFailed, match="a GenerationResult, or a list of them, not 'text'"),
    ):
        preparer.get_data(0, 1, TIMEOUT)
