"""Calls that look at many groups let other calls run in between."""

import asyncio

import pytest

from reroll import ReplayBufferConfig
from reroll.errors import Closed
from reroll.testing.buffer.builders import group

MANY = 3000


async def filled():
    buffer = ReplayBufferConfig(sampler="fifo").build()
    for n in range(MANY):
        await buffer.put(group(n), "t", tags={"n": n})
    return buffer


async def turns_during(call):
    """Return the result of a call, and how often another task ran in the meantime."""
    work, turns = asyncio.ensure_future(call), 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return await work, turns


CALLS = {
    "query": (lambda buffer: buffer.query({}), len, MANY),
    "query by tags": (lambda buffer: buffer.query({"tags.n": {"$gte": 0}}), len, MANY),
    "query in order of an object": (lambda buffer: buffer.query({}, order_by="-group_id"), len, MANY),
    "count_where": (lambda buffer: buffer.count_where({"$or": [{"tags.n": n} for n in range(9)]}), int, 9),
    "peek": (lambda buffer: buffer.peek(range(1, MANY + 1)), len, MANY),
    "to_arrow": (lambda buffer: buffer.to_arrow(), len, MANY),
    "delete": (lambda buffer: buffer.delete({"uid": {"$gt": 0}}), int, MANY),
}


@pytest.mark.parametrize(("call", "size", "expected"), CALLS.values(), ids=CALLS)
async def test_other_calls_run_while_many_groups_are_looked_at(call, size, expected):
    buffer = await filled()
    result, turns = await turns_during(call(buffer))
    assert size(result) == expected
    assert turns > 2


async def test_groups_that_leave_in_the_meantime_are_left_out():
    buffer = await filled()
    querying = asyncio.ensure_future(buffer.query({}))
    await asyncio.sleep(0)  # the first rows are made
    assert await buffer.delete([1, MANY]) == 2
    await buffer.put(group("new"), "t")  # which may be where one of them was
    rows = await querying
    assert [row.uid for row in rows] == list(range(1, MANY))


async def test_a_delete_counts_only_groups_that_it_deleted():
    buffer = await filled()
    deleting = asyncio.ensure_future(buffer.delete({"uid": {"$gt": 0}}))
    await asyncio.sleep(0)
    (taken,) = (await buffer.take_batch({"t": 1}))[0]["t"]
    assert await deleting == MANY - 1
    assert taken[0].group_id not in range(1000)
    assert len(buffer) == 0


async def test_closing_ends_a_query():
    buffer = await filled()
    querying = asyncio.ensure_future(buffer.query({}))
    await asyncio.sleep(0)
    await buffer.close()
    with pytest.raises(Closed):
        await querying
