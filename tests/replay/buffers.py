"""Buffers under a clock of the test, groups to put, and books that must close."""

import asyncio
import time

from reroll import ReplayBuffer, ReplayBufferConfig, Rollout, SyncReplayBufferConfig
from reroll.engine.ledger import closes
from reroll.testing import ManualClock
from reroll.waiting import LoopWaits

TASK = "math"
LONG_S = 100_000.0  # a time to live that ends only when a test's clock says so


def fifo(**options):
    return SyncReplayBufferConfig(**options).build()


def replay(**options):
    """Return a buffer in which groups are used again and again, unless told otherwise."""
    options = {"sampler": "uniform", "max_times_sampled": None, "seed": 7, **options}
    return ReplayBufferConfig(**options).build()


def timed(config):
    """Return a buffer and its clock, which starts with the real one and moves when the test says so."""
    clock = ManualClock(time.monotonic())
    return ReplayBuffer(config.groups(), LoopWaits(), clock=clock), clock


def group(tokens=2, *, version=None, status="completed", rewards=(None,), **fields):
    """Return a group of one rollout for each reward."""
    steps = None if version is None else [version] * tokens
    return [
        Rollout(
            prompt_ids=[1, 2],
            response_ids=[7] * tokens,
            response_model_steps=steps,
            status=status,
            reward=reward,
            **fields,
        )
        for reward in rewards
    ]


async def fill(buffer, n, task=TASK, *, priorities=None, versions=None, **fields):
    """Put n groups, and return their uids."""
    return [
        await buffer.put(
            group(version=None if versions is None else versions[i]),
            task,
            priority=None if priorities is None else priorities[i],
            **fields,
        )
        for i in range(n)
    ]


def uid_of(rollouts):
    return rollouts[0].group_uid


def uids_of(groups):
    return [rollouts[0].group_uid for rollouts in groups]


def infos(samples):
    return [sample.info for sample in samples]


def drawn(samples):
    return [sample.info.uid for sample in samples]


async def rows(buffer, **where):
    """Return the rows of resident groups by uid."""
    return {row.uid: row for row in await buffer.query(where)}


async def row_of(buffer, uid):
    (row,) = await buffer.query({"uid": uid})
    return row


async def in_order(buffer, task=TASK, status="completed"):
    """Take all groups, and return their uids in the order in which they came."""
    return uids_of(await buffer.get(1_000, task, status))


async def books(buffer, task=TASK):
    """Return the ledger of a task, after a check that those of all tasks close and agree with the counts."""
    ledger = await buffer.ledger()
    for amounts in ledger.values():
        assert closes(amounts), amounts
    assert len(buffer) == sum(amounts["resident"].groups for amounts in ledger.values())
    for name, amounts in ledger.items():
        resident = await buffer.query({"task_name": name})
        assert amounts["resident"][:2] == (len(resident), sum(row.num_tokens for row in resident))
    return ledger[task]


async def quiet():
    """Let every task run until it has nothing left to do but to wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def start(call):
    """Start a call as a task, and let it run until it waits or is done."""
    task = asyncio.ensure_future(call)
    await quiet()
    return task


async def cancel(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
