"""Rollouts, groups and questions for the tests of a buffer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from reroll.engine.ledger import Amount, closes
from reroll.rollout import Rollout, Status

New = Callable[..., Awaitable[Any]]
"""`await new(capacity=3)` makes a buffer, FIFO unless told otherwise."""

COMPLETED, ABORTED, EXPIRED = Status.COMPLETED, Status.ABORTED, Status.EXPIRED
FAILED, FILTERED, INIT = Status.FAILED, Status.FILTERED, Status.INIT


def rollout(tokens: int = 2, *, versions: Any = None, status: Any = COMPLETED, **fields: Any) -> Rollout:
    """Return a rollout of three prompt tokens and some response tokens; `versions` may be one for all of them."""
    if isinstance(versions, int):
        versions = [versions] * tokens
    fields = {"prompt_ids": [1, 2, 3], "response_ids": list(range(tokens)), **fields}
    return Rollout(response_model_steps=versions, status=status, **fields)


def group(name: Any = None, members: int = 1, **fields: Any) -> list[Rollout]:
    """Return a group of like rollouts, known by its group_id."""
    return [rollout(group_id=name, rollout_id=index, **fields) for index in range(members)]


def names(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """Return what the groups are known by."""
    return [rollouts[0].group_id for rollouts in groups]


async def picture(buffer: Any) -> tuple[Any, ...]:
    """Return all that a buffer tells of itself, to compare before and after."""
    books = {
        task: amounts for task, amounts in (await buffer.ledger()).items() if any(map(any, amounts.values()))
    }
    return len(buffer), await buffer.query({}), books


@asynccontextmanager
async def refused(buffer: Any, error: type[Exception], match: str | None = None) -> AsyncIterator[None]:
    """Assert that what is done inside raises the error, and changes nothing."""
    before = await picture(buffer)
    with pytest.raises(error, match=match):
        yield
    assert await picture(buffer) == before


async def put_all(buffer: Any, task: str, *groups: Sequence[Any], **options: Any) -> list[Any]:
    """Put groups one after another and return the uids."""
    return [await buffer.put(items, task, **options) for items in groups]


async def row_of(buffer: Any, uid: int | None) -> Any:
    """Return the row of one resident group."""
    (row,) = await buffer.query({"uid": uid})
    return row


async def bucket(buffer: Any, name: str, task: str = "t") -> Amount:
    """Return one amount of the ledger, which must close."""
    books = (await buffer.ledger())[task]
    assert closes(books)
    amount: Amount = books[name]
    return amount
