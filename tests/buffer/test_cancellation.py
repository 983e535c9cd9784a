"""Many producers and consumers on one loop, cancelled at random: every numbered group is somewhere, exactly once."""

import asyncio
import random

import pytest

from reroll import Queue, ReplayBufferConfig, SampleToInsertRatio, Status
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group, names

COMPLETED, ABORTED = Status.COMPLETED, Status.ABORTED
CONFIGS = {
    "capacity": {"capacity": 2},
    "queue": {"rate_limiter": Queue(3)},
    "ratio": {"rate_limiter": SampleToInsertRatio(1.0, 1, (0.0, 3.0))},
    "stalest": {"sampler": "stalest", "capacity": 4},
}


class Chaos:
    """Runs calls as tasks of their own, and cancels some of them, after a few turns of the loop."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.cancelled = 0

    async def call(self, verb):
        """Return the verb's result, None if it was cancelled before it had one."""
        task = asyncio.ensure_future(verb)
        if self.dice.random() < 0.5:
            for _ in range(self.dice.randint(0, 4)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise  # the test itself ends
            self.cancelled += 1
            return None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
async def test_nothing_is_lost_or_doubled(options, seed):
    chaos = Chaos(seed)
    buffer = ReplayBufferConfig(**{"sampler": "fifo", **options}).build()
    tasks, per_producer = ("t", "u"), 12
    total = 3 * per_producer
    taken = {task: [] for task in tasks}
    uids = []

    async def put(items, task):
        while (uid := await chaos.call(buffer.put(items, task))) is None:
            assert items[0].group_uid is None or items[0].group_uid in uids
        return uid

    async def produce(task, first):
        for number in range(first, first + per_producer):
            status = ABORTED if chaos.dice.random() < 0.3 else COMPLETED
            uids.append(await put(group(number, status=status), task))

    async def resume(task):
        while len(taken[task]) < total:
            result = await chaos.call(buffer.take_batch({task: 1}, group_status=ABORTED))
            for items in result[0][task] if result else []:
                items[0].status = COMPLETED
                await put(items, task)
            await asyncio.sleep(0)

    async def consume(task):
        while len(taken[task]) < total:
            wanted = min(chaos.dice.randint(1, 2), total - len(taken[task]))
            wait = chaos.dice.random() < 0.7
            result = await chaos.call(buffer.take_batch({task: wanted}, wait=wait))
            taken[task] += names(result[0][task]) if result else []
            await asyncio.sleep(0)

    producers = [produce(task, index * per_producer) for task in tasks for index in range(3)]
    await asyncio.gather(*producers, *map(consume, tasks), *map(resume, tasks))
    for task in tasks:
        assert sorted(taken[task]) == list(range(total))
        books = (await buffer.ledger())[task]
        assert closes(books)
        assert books["put"] == books["consumed"]
    assert len(set(uids)) == len(uids) == 2 * total
    assert len(buffer) == 0
    assert chaos.cancelled > 20


async def test_a_cancelled_call_passes_its_wake_up_on():
    buffer = ReplayBufferConfig(sampler="fifo").build()
    takers = [asyncio.ensure_future(buffer.take_batch({"t": 1}, wait=True)) for _ in range(20)]
    await asyncio.sleep(0)
    for number in range(10):
        await buffer.put(group(number), "t")  # wakes the first of those that are left
        takers[2 * number].cancel()
    results = await asyncio.gather(*takers[1::2])
    assert [names(groups["t"])[0] for groups, _ in results] == list(range(10))
    assert len(buffer) == 0


async def test_a_put_wakes_nobody_in_vain():
    """A waiter that was woken and cannot go on, since another call came first, waits on."""
    buffer = ReplayBufferConfig(sampler="fifo").build()
    taker = asyncio.ensure_future(buffer.take_batch({"t": 1}, wait=True))
    await asyncio.sleep(0)
    await buffer.put(group("a"), "t")
    first = await buffer.get(1, "t", COMPLETED)  # the taker is woken, but did not run yet
    for _ in range(5):
        await asyncio.sleep(0)
    assert names(first) == ["a"]
    assert not taker.done()
    await buffer.put(group("b"), "t")
    assert names((await taker)[0]["t"]) == ["b"]
