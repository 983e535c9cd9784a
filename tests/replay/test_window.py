"""A trainer and producers that follow a StalenessWindow, in simulated time.

Time passes when nobody can go on any more. Producers are as many as the window lets start, so it is always full.
"""

import asyncio
import heapq
import itertools
import random
import time
from collections import Counter

import pytest

from replay.buffers import TASK, books, group, timed
from reroll import (
    AsyncReplayBufferConfig,
    InvalidConfig,
    StalenessWindow,
    SyncReplayBufferConfig,
    WaitTimeout,
)

PAIRS = [(sync, most) for sync in range(1, 5) for most in range(sync - 1, 5)]
TTL_S = 1e6  # longer than any simulation: simulated time runs on the buffer's clock


class Simulation:
    """One buffer, one trainer, and producers that come whenever the window lets one start."""

    def __init__(self, config, window, *, steps, duration, batch_time=1.0, seed=0):
        self.buffer, self.clock = timed(config(rate_limiter=window, seed=seed))
        self.window = window
        self.steps = steps
        self.duration = duration
        self.batch_time = batch_time
        self.rng = random.Random(seed)
        self.version = 0
        self.done = 0
        self.trained = []  # staleness of each group
        self.statuses = Counter()  # of what was put
        self.expired = 0
        self.largest = 0
        self._sleepers = []
        self._arrivals = itertools.count()
        self._tasks = set()
        self._errors = []
        self._grants = Counter()  # by moment
        self.make = lambda: "completed"

    async def sleep(self, seconds):
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.clock() + seconds, next(self._arrivals), woken))
        await woken

    async def run(self):
        """Let time pass until the trainer has done its steps. Fails if everybody waits for somebody else."""
        trainer = self.spawn(self.train())
        producers = self.spawn(self.admit())
        while not trainer.done():
            await self.become_quiet()
            for error in self._errors:
                raise error
            if trainer.done():
                break
            assert self._sleepers, f"everybody waits: {await self.buffer.stats()}"
            moment, _, woken = heapq.heappop(self._sleepers)
            self.clock.advance(max(0.0, moment - self.clock()))
            woken.set_result(None)
        await trainer
        producers.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, producers, return_exceptions=True)
        return self

    async def become_quiet(self):
        for _ in range(12):
            await asyncio.sleep(0)

    def spawn(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task):
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._errors.append(task.exception())

    async def train(self):
        for step in range(1, self.steps + 1):
            limits = {TASK: self.window.max_staleness + 1}
            expired = await self.buffer.refresh_staleness(
                task_stale_thresholds=limits, current_train_step=step
            )
            self.expired += expired[TASK]
            async with self.buffer.lease({TASK: self.window.batch}, wait=True, train_step=step) as batch:
                for rollouts in batch.groups[TASK]:
                    self.trained.append(rollouts[0].seq_staleness)
                await self.sleep(self.batch_time)
                await batch.ack()
            self.done = step
            if step % self.window.sync_interval == 0:
                self.version = step
            await self.buffer.advance(step)
            await books(self.buffer)

    async def admit(self):
        while True:
            reservation = await self.reserve()
            self.spawn(self.produce(reservation))

    async def reserve(self, **options):
        reservation = await self.buffer.reserve(1, TASK, **options)
        self._grants[self.clock()] += 1
        # A place may be free again at once, by a filtered group; but not for ever.
        assert self._grants[self.clock()] < 1_000, "reservations do not count"
        return reservation

    async def produce(self, reservation):
        version = self.version
        await self.sleep(self.duration())
        await self.put(group(version=version, status=self.make()), reservation)

    async def put(self, items, reservation, **options):
        await self.buffer.put(
            items,
            TASK,
            reservation=reservation,
            current_train_step=self.done + 1,
            stale_threshold=self.window.max_staleness + 1,
            timeout=0,
            **options,
        )
        (row,) = await self.buffer.query({"uid": items[0].group_uid})
        self.statuses[row.status.value] += 1
        ready = await self.buffer.count(TASK, "completed")
        self.largest = max(self.largest, ready)


@pytest.mark.parametrize("config", [SyncReplayBufferConfig, AsyncReplayBufferConfig])
@pytest.mark.parametrize("generation_time", [0.1, 2.5])
@pytest.mark.parametrize(("sync_interval", "max_staleness"), PAIRS)
async def test_with_equal_durations_the_bound_is_met_exactly_and_nothing_expires(
    config, generation_time, sync_interval, max_staleness
):
    window = StalenessWindow(max_staleness, 2, sync_interval)
    steps = 2 * (max_staleness + sync_interval) + 3
    world = await Simulation(config, window, steps=steps, duration=lambda: generation_time).run()
    assert world.expired == 0
    assert world.statuses.keys() == {"completed"}
    assert max(world.trained) == max_staleness
    assert min(world.trained) >= 0
    assert world.largest <= window.largest
    ledger = await books(world.buffer)
    assert (ledger["expired"], ledger["consumed"].groups) == ((0, 0, 0, 0), steps * 2)


@pytest.mark.parametrize(("sync_interval", "max_staleness"), PAIRS)
async def test_stragglers_and_filtered_groups_starve_nobody_and_nothing_too_stale_is_trained(
    sync_interval, max_staleness
):
    window = StalenessWindow(max_staleness, 2, sync_interval)
    rng = random.Random(5)
    world = Simulation(
        SyncReplayBufferConfig,
        window,
        steps=14,
        duration=lambda: rng.choice([0.2, 0.5, 1.0, 1.0, 9.0]),
    )
    world.make = lambda: rng.choice(["completed", "completed", "filtered", "failed"])
    await world.run()
    assert max(world.trained) <= max_staleness
    assert len(world.trained) == 28
    assert world.statuses["filtered"] > 0


class WithRetries(Simulation):
    """Weights arrive while groups are made: they are aborted, parked, and taken up again; expired ones too."""

    async def produce(self, reservation):
        version, items = self.version, None
        await self.sleep(self.duration())
        status = "aborted" if self.version != version else "completed"
        items = group(version=version, status=status)
        await self.put(items, reservation)

    async def admit(self):
        while True:
            for status in ("aborted", "expired"):
                for items in await self.buffer.get(1, TASK, status):
                    self.spawn(self.again(items))
            try:
                reservation = await self.reserve(timeout=0)
            except WaitTimeout:
                await self.sleep(0.1)
            else:
                self.spawn(self.produce(reservation))

    async def again(self, items):
        version = self.version
        await self.sleep(self.duration())
        for item in items:
            item.response_ids = [*item.response_ids, 8]
            item.status = "completed"
        await self.put(items, None, model_step=version)


@pytest.mark.parametrize(("sync_interval", "max_staleness"), PAIRS)
async def test_aborted_and_expired_groups_are_rolled_again_and_nothing_starves(sync_interval, max_staleness):
    window = StalenessWindow(max_staleness, 2, sync_interval)
    rng = random.Random(5)
    world = WithRetries(
        SyncReplayBufferConfig, window, steps=10, duration=lambda: rng.choice([0.3, 0.8, 4.0])
    )
    await world.run()
    assert max(world.trained) <= max_staleness
    assert len(world.trained) == 20


class WithDeath(Simulation):
    """Some producers die and say nothing; their reservations end by time."""

    async def admit(self):
        while True:
            reservation = await self.reserve(ttl_s=20.0)
            if self.rng.random() < 0.4:
                self.spawn(self.bury())
            else:
                self.spawn(self.produce(reservation))

    async def bury(self):
        await self.sleep(21.0)
        await self.buffer.stats()  # any call notices that time has passed


@pytest.mark.parametrize(("sync_interval", "max_staleness"), PAIRS)
async def test_dead_producers_give_their_place_back(sync_interval, max_staleness):
    window = StalenessWindow(max_staleness, 2, sync_interval)
    started = time.monotonic()
    world = await WithDeath(SyncReplayBufferConfig, window, steps=12, duration=lambda: 0.5, seed=3).run()
    assert max(world.trained) <= max_staleness
    assert len(world.trained) == 24
    # Simulated hours pass on the buffer's clock; a ttl that were read from another clock would not end.
    assert world.clock() > started + 21.0
    ledger = await books(world.buffer)
    assert ledger["consumed"].groups == 24


async def test_a_trainer_that_gives_batches_back_sees_no_group_too_stale():
    window = StalenessWindow(1, 2)
    world = Simulation(SyncReplayBufferConfig, window, steps=10, duration=lambda: 0.5)

    async def train():
        for step in range(1, world.steps + 1):
            await world.buffer.refresh_staleness(task_stale_thresholds={TASK: 2}, current_train_step=step)
            for attempt in range(3):
                async with world.buffer.lease({TASK: 2}, wait=True, train_step=step) as batch:
                    staleness = [rollouts[0].seq_staleness for rollouts in batch.groups[TASK]]
                    await world.sleep(1.0)
                    if attempt == 2:  # the first two attempts crash
                        await batch.ack()
                        world.trained += staleness
            world.done = world.version = step
            await world.buffer.advance(step)
            await books(world.buffer)

    world.train = train
    await world.run()
    assert max(world.trained) == 1
    assert len(world.trained) == 20


@pytest.mark.parametrize(
    ("ahead", "batch", "starts"), [(0, 4, 4), (0.25, 4, 5), (0.1, 10, 11), (1.5, 4, 10), (0.2, 4, 4)]
)
async def test_a_fraction_admits_a_share_of_one_more_batch(ahead, batch, starts):
    buffer = AsyncReplayBufferConfig(rate_limiter=StalenessWindow(ahead, batch)).build()
    await buffer.reserve(starts, TASK, timeout=0)
    with pytest.raises(WaitTimeout, match=r"0 may start"):
        await buffer.reserve(1, TASK, timeout=0)


@pytest.mark.parametrize("ahead", [-0.5, float("nan"), float("inf"), True, "1"])
def test_a_window_needs_a_number(ahead):
    with pytest.raises(InvalidConfig, match="max_staleness must be a number of at least 0"):
        StalenessWindow(ahead, 4)
