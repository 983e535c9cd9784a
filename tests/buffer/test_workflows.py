"""The workflows that the buffer is made for, from end to end, with producers and consumers on one event loop.

No test sleeps to wait for something: tasks give way by `sleep(0)`, so a seed fixes everything that happens.
"""

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from reroll import (
    AsyncReplayBufferConfig,
    Closed,
    DictRollout,
    InvalidArgument,
    ReplayBufferConfig,
    Rollout,
    Status,
    SyncReplayBufferConfig,
    TaskConfig,
    WaitTimeout,
)
from reroll.engine.ledger import closes

SEEDS = range(5)
MEMBERS = 3


@dataclass(slots=True)
class PlainRollout:
    """What a trainer may bring: slots, lists, no more fields than needed."""

    group_id: str
    rollout_id: int
    prompt_ids: list
    response_ids: list
    response_model_steps: list = field(default_factory=list)
    seq_staleness: int = 0
    status: str = "init"
    mm_info: object = None


def from_dict(**fields):
    return DictRollout({"response_model_steps": [], "seq_staleness": 0, "status": "init", **fields})


KINDS = [Rollout, PlainRollout, from_dict]


def new_group(prompt, kind=Rollout, members=MEMBERS, **fields):
    return [
        kind(group_id=prompt, rollout_id=i, prompt_ids=[1, 2], response_ids=[], **fields)
        for i in range(members)
    ]


def finished(prompt, tokens=2, **fields):
    """Return a COMPLETED group of one rollout."""
    return [
        Rollout(group_id=prompt, prompt_ids=[1, 2], response_ids=[7] * tokens, status="completed", **fields)
    ]


def uids_of(groups):
    return [group[0].group_uid for group in groups]


def is_status(rollout, status):
    return Status.of(rollout.status) is status


async def give_way(rng, most=4):
    for _ in range(rng.randrange(most)):
        await asyncio.sleep(0)


async def all_suspended():
    """Let every task run until it has nothing left to do but to wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def books_of(buffer):
    """Return the ledger, after a check that it closes and agrees with all counts."""
    books = await buffer.ledger()
    for task, amounts in books.items():
        assert closes(amounts), (task, amounts)
        counts = (await buffer.count_statuses([task], list(Status)))[task]
        assert list(counts) == list(Status)
        assert amounts["resident"].groups == sum(counts.values())
        rows = await buffer.query({"task_name": task})
        assert amounts["resident"].tokens == sum(row.num_tokens for row in rows)
        assert Counter(row.status for row in rows) == Counter({s: n for s, n in counts.items() if n})
    assert len(buffer) == sum(amounts["resident"].groups for amounts in books.values())
    return books


class Once:
    """Everything that was trained; nothing twice."""

    def __init__(self):
        self.uids = []

    def add(self, groups, uid_of=None):
        self.uids += uids_of(groups) if uid_of is None else [uid_of[group[0].group_id] for group in groups]
        assert len(set(self.uids)) == len(self.uids)


class Engine:
    """Generates in slices, notes what each version made, and aborts when it is told to."""

    def __init__(self, seed, stop=0.3):
        self.version = 0
        self.is_running = True
        self.rng = random.Random(seed)
        self.stop = stop
        self.made = {}  # (prompt, rollout): the tokens and versions of the response so far

    async def roll(self, group):
        await asyncio.gather(*(self._generate(r) for r in group if not is_status(r, Status.COMPLETED)))

    async def _generate(self, rollout):
        key = (rollout.group_id, rollout.rollout_id)
        tokens = list(rollout.response_ids)
        if not tokens:
            self.made[key] = ([], [])
        assert tokens == self.made[key][0]  # what comes back is what was there
        status = Status.ABORTED
        while self.is_running:
            tokens.append(self.rng.randrange(1000))
            self.made[key][0].append(tokens[-1])
            self.made[key][1].append(self.version)
            if self.rng.random() < self.stop:
                status = Status.COMPLETED
                break
            await asyncio.sleep(0)
        rollout.response_ids = tokens
        rollout.status = status.value

    def check(self, group):
        """Check that tokens and versions are those that were made."""
        for rollout in group:
            tokens, versions = self.made[rollout.group_id, rollout.rollout_id]
            assert list(rollout.response_ids) == tokens
            assert list(rollout.response_model_steps) == versions


# --- W1: synchronous


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_w1_each_step_takes_exactly_what_was_rolled_in_order(seed, kind):
    batch, steps = 6, 5
    engine, rng = Engine(seed), random.Random(seed)
    buffer = SyncReplayBufferConfig().build()
    trained = []

    async def produce(prompt, arrived):
        group = new_group(prompt, kind)
        await give_way(rng)
        await engine.roll(group)
        await buffer.put(group, "math", model_step=engine.version)
        arrived.append(group)

    for step in range(1, steps + 1):
        assert not await buffer.is_ready({"math": 1})
        arrived = []
        consumer = asyncio.create_task(buffer.take_batch({"math": batch}, wait=True, train_step=step))
        async with asyncio.TaskGroup() as producers:
            for number in range(batch):
                producers.create_task(produce(f"{step}/{number}", arrived))
        batches, counts = await consumer

        assert counts == {"math": batch}
        tokens = [[list(rollout.response_ids) for rollout in group] for group in batches["math"]]
        assert tokens == [[list(rollout.response_ids) for rollout in group] for group in arrived]
        for group in batches["math"]:
            assert len(group) == MEMBERS
            engine.check(group)
            assert {rollout.seq_staleness for rollout in group} == {0}
        trained += [group[0].group_id for group in batches["math"]]
        books = await books_of(buffer)
        assert books["math"]["consumed"].groups == batch * step
        assert books["math"]["resident"].groups == 0
        engine.version = step

    assert len(trained) == len(set(trained)) == batch * steps


async def test_w1_a_batch_that_is_short_is_not_taken_by_a_waiter():
    buffer = SyncReplayBufferConfig().build()
    for number in range(3):
        await buffer.put(finished(number), "math", model_step=0)
    consumer = asyncio.create_task(buffer.take_batch({"math": 4}, wait=True, train_step=1))
    await all_suspended()
    assert not consumer.done()
    assert await buffer.count("math", "completed") == 3
    await buffer.put(finished(3), "math", model_step=0)
    batches, counts = await consumer
    assert counts == {"math": 4}
    assert uids_of(batches["math"]) == [1, 2, 3, 4]
    await books_of(buffer)


# --- W2: over-sampling


@pytest.mark.parametrize("seed", SEEDS)
async def test_w2_leftovers_stay_and_the_oldest_policy_goes_first(seed):
    batch, steps, in_flight = 4, 8, 6
    rng = random.Random(seed)
    buffer = AsyncReplayBufferConfig().build()
    here = {}  # uid: version of what waits in the buffer
    trained = Once()
    version = 0

    async def produce(started):
        await give_way(rng, 8)
        uid = await buffer.put(finished("p", rng.randrange(1, 9)), "math", model_step=started)
        here[uid] = started

    async with asyncio.TaskGroup() as producers:
        for step in range(1, steps + 1):
            for _ in range(in_flight):  # slow ones arrive with an old version, in later steps
                producers.create_task(produce(version))
            batches, _ = await buffer.take_batch({"math": batch}, wait=True, train_step=step)
            # Nothing ran since the batch was taken, so `here` is what it was taken from.
            expected = sorted(here, key=lambda uid: (here[uid], uid))[:batch]
            assert uids_of(batches["math"]) == expected
            for group in batches["math"]:
                assert group[0].seq_staleness == step - here.pop(group[0].group_uid) - 1
            trained.add(batches["math"])
            assert (await books_of(buffer))["math"]["consumed"].groups == batch * step
            version = step

    books = (await books_of(buffer))["math"]
    assert books["put"].groups == in_flight * steps
    left = await buffer.get(1000, "math", "completed")
    assert set(uids_of(left)) == set(here)
    trained.add(left)
    assert sorted(trained.uids) == list(range(1, in_flight * steps + 1))


async def test_w2_staleness_that_is_told_orders_too_and_ties_are_in_order_of_arrival():
    buffer = AsyncReplayBufferConfig().build()
    for number, told in enumerate((3, 8, 3, 3)):
        await buffer.put(finished(number, seq_staleness=told), "math")
    assert uids_of(await buffer.get(4, "math", "completed")) == [2, 1, 3, 4]


@pytest.mark.parametrize("seed", SEEDS)
async def test_w2_fifo_does_not_look_at_versions(seed):
    rng = random.Random(seed)
    buffer = SyncReplayBufferConfig().build()
    for number in range(20):
        await buffer.put(finished(number), "math", model_step=rng.randrange(9))
    taken = []
    for step in range(10, 15):
        taken += uids_of(await buffer.get(4, "math", "completed", train_step=step))
    assert taken == list(range(1, 21))


# --- W3: partial rollouts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_w3_aborted_groups_are_continued_first_and_tokens_keep_their_version(seed, kind):
    batch, steps, in_flight = 3, 8, 7
    engine = Engine(seed, stop=0.08)
    buffer = AsyncReplayBufferConfig().build()
    prompts = itertools.count()
    trained = Once()
    puts = Counter()  # by prompt
    uid_of = {}
    parked = []  # prompts of aborted groups, in the order in which they were put
    resumed = 0

    async def next_group():
        nonlocal resumed
        if groups := await buffer.get(1, "math", Status.ABORTED):
            assert groups[0][0].group_id == parked.pop(0)  # in order of arrival
            resumed += 1
            return groups[0]
        assert not parked  # a new prompt only if nothing waits to be continued
        return new_group(f"p{next(prompts)}", kind)

    async def produce():
        while engine.is_running:
            group = await next_group()
            await engine.roll(group)
            uid = await buffer.put(group, "math", model_step=engine.version)
            prompt = group[0].group_id
            assert uid_of.setdefault(prompt, uid) == uid
            puts[prompt] += 1
            (row,) = await buffer.query({"uid": uid})
            assert row.attempts == puts[prompt]
            if row.status is Status.ABORTED:
                parked.append(prompt)

    several = 0
    for step in range(1, steps + 1):
        producers = [asyncio.create_task(produce()) for _ in range(in_flight)]
        batches, counts = await buffer.take_batch({"math": batch}, wait=True, train_step=step)
        assert counts == {"math": batch}
        trained.add(batches["math"], uid_of)
        for group in batches["math"]:
            engine.check(group)
            assert all(is_status(rollout, Status.COMPLETED) for rollout in group)
            several += any(len(set(rollout.response_model_steps)) > 1 for rollout in group)
            oldest = min(min(rollout.response_model_steps) for rollout in group)
            assert max(rollout.seq_staleness for rollout in group) == step - oldest - 1
        await books_of(buffer)

        engine.is_running = False  # the weights change: everything that runs is aborted and parked
        await asyncio.gather(*producers)
        assert await buffer.count("math", "aborted") == len(parked)
        books = (await books_of(buffer))["math"]
        assert books["out"].groups == 0
        assert books["put"].groups == len(uid_of)
        assert books["consumed"].groups == batch * step
        engine.version, engine.is_running = step, True

    assert several > 0
    assert resumed > 0
    assert max(puts.values()) > 2
    for status in ("completed", "aborted"):
        trained.add(await buffer.get(1000, "math", status), uid_of)
    assert sorted(trained.uids) == sorted(uid_of.values())  # nothing lost
    await books_of(buffer)


async def test_w3_a_group_that_is_out_is_in_the_books_and_only_its_new_tokens_are_put():
    buffer = AsyncReplayBufferConfig().build()
    group = new_group("p", members=2)
    for rollout in group:
        rollout.response_ids, rollout.status = [5, 6], "aborted"
    uid = await buffer.put(group, "math", model_step=1)
    (taken,) = await buffer.get(1, "math", "aborted")
    books = (await books_of(buffer))["math"]
    assert books["out"][:2] == (1, 8)
    assert len(buffer) == 0

    for rollout in taken:
        rollout.response_ids, rollout.status = [5, 6, 7], "completed"
    assert await buffer.put(taken, "math", model_step=2) == uid
    books = (await books_of(buffer))["math"]
    assert books["put"][:2] == books["resident"][:2] == (1, 10)
    assert [list(rollout.response_model_steps) for rollout in taken] == [[1, 1, 2], [1, 1, 2]]


async def test_w3_a_weight_update_can_park_its_groups_in_a_full_buffer():
    buffer = AsyncReplayBufferConfig(capacity=1).build()
    await buffer.put(finished("p"), "math", model_step=0)
    for number in range(5):
        group = new_group(f"p{number}")
        for rollout in group:
            rollout.response_ids, rollout.status = [5], "aborted"
        await buffer.put(group, "math", model_step=0, timeout=0)
    counts = await buffer.count_statuses(["math", "code"], ["completed", "aborted", "expired"])
    assert counts == {
        "math": {Status.COMPLETED: 1, Status.ABORTED: 5, Status.EXPIRED: 0},
        "code": {Status.COMPLETED: 0, Status.ABORTED: 0, Status.EXPIRED: 0},
    }
    await books_of(buffer)


async def test_w3_a_group_that_never_finishes_fails_after_its_attempts():
    buffer = AsyncReplayBufferConfig(max_attempts=3).build()
    group = new_group("p", members=1)
    uids = []
    for attempt in range(3):
        group[0].response_ids, group[0].status = [5] * (attempt + 1), "aborted"
        uids.append(await buffer.put(group, "math", model_step=attempt))
        (group,) = await buffer.get(1, "math", "aborted")
    group[0].response_ids = [5] * 4
    await buffer.put(group, "math", model_step=3)
    assert uids == [1, 1, 1]
    assert await buffer.count("math", "aborted") == 0
    (row,) = await buffer.query({"status": "failed"})
    assert (row.uid, row.attempts) == (1, 4)
    assert group[0].status is Status.FAILED
    await books_of(buffer)


# --- W4: expired groups


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_w4_expired_groups_are_rolled_again_or_dropped(seed, kind):
    threshold, steps = 3, 12
    rng = random.Random(seed)
    engine = Engine(seed)
    buffer = SyncReplayBufferConfig().build()
    prompts, pictures = itertools.count(), {}
    uid_of = {}  # by prompt
    version_of = {}  # by uid, of what is COMPLETED and waits
    attempts = Counter()
    task_of = {}
    trained, dropped = Once(), set()
    rolled_again = Counter()

    async def produce(task):
        if groups := await buffer.get(1, task, Status.EXPIRED):
            (group,) = groups
            assert task == "again"
            for rollout in group:
                assert is_status(rollout, Status.EXPIRED)
                assert len(rollout.response_ids) == len(rollout.response_model_steps) == 0
                assert list(rollout.prompt_ids) == [1, 2]
                assert rollout.seq_staleness == threshold  # as it was when it expired
                assert rollout.mm_info is pictures[rollout.group_id]
            rolled_again[task] += 1
        else:
            prompt = f"{task} {next(prompts)}"
            pictures[prompt] = object()
            group = new_group(prompt, kind, mm_info=pictures[prompt])
        version = engine.version
        await give_way(rng)
        await engine.roll(group)
        uid = await buffer.put(group, task, model_step=engine.version)
        assert engine.version == version
        assert uid_of.setdefault(group[0].group_id, uid) == uid
        attempts[uid] += 1
        task_of[uid] = task
        version_of[uid] = version
        (row,) = await buffer.query({"uid": uid})
        assert row.attempts == attempts[uid]

    for step in range(1, steps + 1):
        stale = {uid for uid, version in version_of.items() if step - version - 1 >= threshold}
        expected = Counter(task_of[uid] for uid in stale)
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={"again": threshold, "drop": threshold},
            current_train_step=step,
            expired_groups_retryable_by_task={"drop": False},
        )
        assert expired == {"again": expected["again"], "drop": expected["drop"]}
        for uid in stale:
            del version_of[uid]
            if task_of[uid] == "drop":
                dropped.add(uid)
        counts = await buffer.count_statuses(["again", "drop"], list(Status))
        assert counts["drop"][Status.EXPIRED] == 0
        assert counts["again"][Status.EXPIRED] >= expected["again"]
        await books_of(buffer)

        async with asyncio.TaskGroup() as producers:
            for task in ("again", "drop"):
                for _ in range(3):
                    producers.create_task(produce(task))
            sizes = {"again": rng.randrange(4), "drop": rng.randrange(4)}
            batches, taken = await buffer.take_batch(sizes, wait=True, train_step=step)
            assert taken == sizes
            for group in itertools.chain(*batches.values()):
                version = version_of.pop(uid_of[group[0].group_id])
                assert step - version - 1 < threshold
                engine.check(group)  # nothing of an earlier roll is left
            trained.add(itertools.chain(*batches.values()), uid_of)
        await books_of(buffer)
        engine.version = step

    books = await books_of(buffer)
    assert rolled_again["again"] > 0
    assert rolled_again["again"] == sum(times - 1 for times in attempts.values())
    assert books["drop"]["expired"].groups == len(dropped) > 0
    assert books["again"]["expired"].groups == 0  # wiped tokens, but no group
    assert books["again"]["expired"].tokens > 0
    here = {row.uid for row in await buffer.query({})}
    assert here | set(trained.uids) | dropped == set(attempts)
    assert len(here) + len(trained.uids) + len(dropped) == len(attempts)


async def test_w4_by_member_only_stale_ones_are_rolled_again():
    buffer = SyncReplayBufferConfig(expire="member").build()
    group = finished("p", response_model_steps=[1, 1]) + finished("p", response_model_steps=[3, 3])
    uid = await buffer.put(group, "math")
    refresh = {"task_stale_thresholds": {"math": 3}}
    assert await buffer.refresh_staleness(**refresh, current_train_step=4) == {"math": 0}
    assert await buffer.refresh_staleness(**refresh, current_train_step=5) == {"math": 1}
    await books_of(buffer)
    (taken,) = await buffer.get(1, "math", "expired")
    assert [len(rollout.response_ids) for rollout in taken] == [0, 2]
    assert [rollout.status for rollout in taken] == [Status.EXPIRED, Status.COMPLETED]
    taken[0].response_ids, taken[0].status = [8, 8, 8], "completed"
    assert await buffer.put(taken, "math", model_step=4, current_train_step=5, stale_threshold=3) == uid
    batches, _ = await buffer.take_batch({"math": 1}, wait=True, timeout=0)
    assert [list(rollout.response_model_steps) for rollout in batches["math"][0]] == [[4, 4, 4], [3, 3]]
    await books_of(buffer)


async def test_w4_only_the_chosen_statuses_expire():
    buffer = SyncReplayBufferConfig().build()
    aborted = finished("q", response_model_steps=[1, 1])
    aborted[0].status = "aborted"
    await buffer.put(finished("p", response_model_steps=[1, 1]), "t")
    await buffer.put(aborted, "t")
    refresh = {"task_stale_thresholds": {"t": 2}, "current_train_step": 4}
    assert await buffer.refresh_staleness(**refresh, statuses=["aborted"]) == {"t": 1}
    assert await buffer.count("t", "completed") == 1
    assert await buffer.refresh_staleness(**refresh) == {"t": 1}
    assert await buffer.refresh_staleness(**refresh) == {"t": 0}  # only what newly expires
    await books_of(buffer)


# --- W5: disaggregated


@pytest.mark.parametrize("seed", SEEDS)
async def test_w5_producers_are_held_back_and_the_trainer_waits_for_full_batches(seed):
    batch, capacity, steps, workers = 4, 6, 10, 5
    rng = random.Random(seed)
    buffer = SyncReplayBufferConfig(capacity=capacity).build()
    trained = Once()
    begun = itertools.count()
    putting = []  # groups in the order in which their puts began
    version = 0

    async def produce():
        while True:
            await give_way(rng, 3)
            group = finished(next(begun), rng.randrange(1, 9))
            putting.append(group)
            await buffer.put(group, "math", model_step=version)
            assert await buffer.count("math", "completed") <= capacity

    producers = [asyncio.create_task(produce()) for _ in range(workers)]
    for step in range(1, steps + 1):
        batches, counts = await buffer.take_batch({"math": batch}, wait=True, train_step=step)
        assert counts == {"math": batch}
        # Puts that wait are let in in the order in which they came.
        taken = [group[0].group_uid for group in batches["math"]]
        assert taken == [group[0].group_uid for group in putting[(step - 1) * batch : step * batch]]
        trained.add(batches["math"])
        await give_way(rng, 12)  # the optimizer; producers go on, as far as there is room
        assert len(putting) <= step * batch + capacity + workers
        books = (await books_of(buffer))["math"]
        assert books["evicted"].groups == 0
        assert books["put"].groups == books["consumed"].groups + books["resident"].groups
        version = step

    await all_suspended()
    assert await buffer.count("math", "completed") == capacity
    waiting = putting[steps * batch + capacity :]
    assert len(waiting) == workers
    for producer in producers:
        producer.cancel()
    results = await asyncio.gather(*producers, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    for (rollout,) in waiting:  # a put that is cancelled has left the objects as they were
        assert len(rollout.response_model_steps) == 0
        assert rollout.group_uid is None
    books = (await books_of(buffer))["math"]
    assert books["put"].groups == steps * batch + capacity
    left = await buffer.get(1000, "math", "completed")
    trained.add(left)
    assert trained.uids == list(range(1, steps * batch + capacity + 1))


async def test_w5_consumers_that_want_the_same_are_served_in_order():
    buffer = SyncReplayBufferConfig().build()
    served = []

    async def consume(name, n):
        batches, _ = await buffer.take_batch({"math": n}, wait=True)
        served.append((name, uids_of(batches["math"])))

    async with asyncio.TaskGroup() as tasks:
        for name, n in (("large", 3), ("small", 1), ("medium", 2)):
            tasks.create_task(consume(name, n))
            await asyncio.sleep(0)
        for number in range(6):
            await buffer.put(finished(number), "math")
            await all_suspended()
    assert served == [("large", [1, 2, 3]), ("small", [4]), ("medium", [5, 6])]
    await books_of(buffer)


async def test_w5_a_consumer_that_is_cancelled_has_taken_nothing_and_the_next_goes_on():
    buffer = SyncReplayBufferConfig().build()
    first = asyncio.create_task(buffer.take_batch({"math": 2}, wait=True))
    second = asyncio.create_task(buffer.take_batch({"math": 2}, wait=True))
    await all_suspended()
    await buffer.put(finished(0), "math")
    await buffer.put(finished(1), "math")  # wakes the first, which is cancelled before it can act
    first.cancel()
    batches, _ = await second
    assert first.cancelled()
    assert uids_of(batches["math"]) == [1, 2]
    await books_of(buffer)


async def test_w5_a_trainer_whose_producers_died_gets_a_timeout_and_nothing_changes():
    buffer = SyncReplayBufferConfig().build()
    await buffer.put(finished(0), "math")
    with pytest.raises(WaitTimeout):
        await buffer.take_batch({"math": 2}, wait=True, timeout=0)
    assert await buffer.count("math", "completed") == 1
    with pytest.raises(InvalidArgument, match="capacity"):
        await SyncReplayBufferConfig(capacity=4).build().take_batch({"math": 5}, wait=True)
    await books_of(buffer)


async def test_w5_close_ends_whoever_waits():
    buffer = SyncReplayBufferConfig(capacity=1).build()
    await buffer.put(finished(0), "math")
    group = finished(1)
    waiting = [
        asyncio.create_task(buffer.put(group, "math", model_step=3)),
        asyncio.create_task(buffer.take_batch({"code": 1}, wait=True)),
        asyncio.create_task(buffer.wait_ready({"code": 1})),
    ]
    await all_suspended()
    await buffer.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 3
    assert len(group[0].response_model_steps) == 0


@pytest.mark.parametrize("retryable", [True, False])
async def test_w5_what_grew_too_stale_while_its_put_waited_expires_on_arrival(retryable):
    buffer = SyncReplayBufferConfig(capacity=1).build()
    await buffer.put(finished(0), "math", model_step=4)
    late = finished(1)
    put = asyncio.create_task(
        buffer.put(
            late,
            "math",
            model_step=1,
            current_train_step=2,
            stale_threshold=3,
            expired_groups_retryable=retryable,
        )
    )
    await all_suspended()
    assert not put.done()
    await buffer.refresh_staleness(task_stale_thresholds={"math": 3}, current_train_step=5)
    uid = await put  # staleness 5 - 1 - 1 = 3; it needs no room any more
    assert await buffer.count("math", "completed") == 1
    assert await buffer.count("math", "expired") == retryable
    assert (uid is not None) == retryable
    assert len(late[0].response_ids) == 0 or retryable
    books = (await books_of(buffer))["math"]
    assert books["expired"].groups == (not retryable)


# --- W6: several tasks


@pytest.mark.parametrize("seed", SEEDS)
async def test_w6_batches_over_tasks_are_atomic_and_each_has_its_own_order(seed):
    sizes, steps = {"math": 4, "code": 2, "agent": 1}, 6
    rng = random.Random(seed)
    config = ReplayBufferConfig(
        sampler="fifo",
        capacity=8,
        tasks={"code": TaskConfig(sampler="stalest"), "agent": TaskConfig(capacity=2)},
    )
    buffer = config.build()
    here = {task: {} for task in sizes}  # task: uid: (version, when it was let in)
    pace = {"math": 2, "code": 5, "agent": 9}
    trained, put = Once(), Counter()
    version = 0

    async def produce(task):
        while True:
            await give_way(rng, pace[task])
            used = max(0, version - rng.randrange(3))
            uid = await buffer.put(finished(task), task, model_step=used)
            here[task][uid] = used
            put[task] += 1

    producers = [asyncio.create_task(produce(task)) for task in sizes for _ in range(2)]
    for step in range(1, steps + 1):
        batches, counts = await buffer.take_batch(sizes, wait=True, train_step=step)
        assert counts == sizes
        for task, groups in batches.items():
            # A put that is let in by this very batch has not run on yet, so `here` is what it was taken from.
            ranks = {uid: (used if task == "code" else 0, uid) for uid, used in here[task].items()}
            assert uids_of(groups) == sorted(ranks, key=ranks.get)[: sizes[task]]
            assert {group[0].group_id for group in groups} == {task}
            for group in groups:
                del here[task][group[0].group_uid]
            trained.add(groups)
        books = await books_of(buffer)
        assert [books[task]["consumed"].groups for task in sizes] == [n * step for n in sizes.values()]
        version = step

    for producer in producers:
        producer.cancel()
    await asyncio.gather(*producers, return_exceptions=True)
    books = await books_of(buffer)
    for task in sizes:
        assert books[task]["put"].groups == books[task]["consumed"].groups + books[task]["resident"].groups
        assert books[task]["evicted"].groups == 0
    assert sorted(trained.uids + [row.uid for row in await buffer.query({})]) == list(
        range(1, sum(amounts["put"].groups for amounts in books.values()) + 1)
    )


async def test_w6_without_wait_a_short_task_gives_fewer_and_a_count_of_zero_gives_none():
    buffer = SyncReplayBufferConfig().build()
    for number in range(3):
        await buffer.put(finished(number), "math")
    batches, counts = await buffer.take_batch({"math": 2, "code": 5, "agent": -1})
    assert counts == {"math": 2, "code": 0, "agent": 0}
    assert uids_of(batches["math"]) == [1, 2]
    assert (batches["code"], batches["agent"]) == ([], [])
    await books_of(buffer)


async def test_w6_a_waiter_for_several_tasks_takes_nothing_until_all_are_there():
    buffer = SyncReplayBufferConfig().build()
    both = asyncio.create_task(buffer.take_batch({"math": 1, "code": 1}, wait=True))
    await all_suspended()
    await buffer.put(finished(0), "math")
    await all_suspended()
    assert not both.done()
    assert await buffer.count("math", "completed") == 1
    assert (await books_of(buffer))["math"]["consumed"].groups == 0
    await buffer.put(finished(1), "code")
    batches, _ = await both
    assert [uids_of(batches[task]) for task in ("math", "code")] == [[1], [2]]


async def test_w6_a_large_wait_of_one_task_does_not_hold_up_another():
    buffer = SyncReplayBufferConfig().build()
    large = asyncio.create_task(buffer.take_batch({"math": 1000}, wait=True))
    small = asyncio.create_task(buffer.take_batch({"code": 1}, wait=True))
    await all_suspended()
    for number in range(999):
        await buffer.put(finished(number), "math")
    await buffer.put(finished("c"), "code")
    _, counts = await small
    assert counts == {"code": 1}
    assert not large.done()
    await buffer.put(finished("last"), "math")
    _, counts = await large
    assert counts == {"math": 1000}
    await books_of(buffer)


@pytest.mark.parametrize("remover", [None, "fifo"])
async def test_w6_a_fast_task_neither_evicts_nor_delays_a_slow_one(remover):
    buffer = SyncReplayBufferConfig(capacity=3, remover=remover).build()
    slow = [await buffer.put(finished(number), "slow", model_step=0) for number in range(3)]
    fast = [asyncio.create_task(buffer.put(finished(number), "fast", model_step=0)) for number in range(10)]
    await all_suspended()
    counts = await buffer.count_statuses(["fast", "slow"], list(Status))
    full = {**dict.fromkeys(Status, 0), Status.COMPLETED: 3}
    assert counts == {"fast": full, "slow": full}
    books = await books_of(buffer)
    assert books["slow"]["evicted"].groups == 0
    assert books["fast"]["evicted"].groups == (0 if remover is None else 7)

    batches, _ = await buffer.take_batch({"slow": 1}, wait=True, timeout=0)
    assert uids_of(batches["slow"]) == slow[:1]
    assert await buffer.put(finished("more"), "slow", model_step=0, timeout=0) is not None
    for put in fast:
        put.cancel()
    await asyncio.gather(*fast, return_exceptions=True)
    await books_of(buffer)


async def test_w6_thresholds_and_steps_are_of_each_task():
    buffer = SyncReplayBufferConfig().build()
    for task in ("math", "code", "agent"):
        for version in range(4):
            await buffer.put(finished(version), task, model_step=version)
    expired = await buffer.refresh_staleness(
        task_stale_thresholds={"math": 2, "code": 4, "other": 1}, current_train_step=5
    )
    assert expired == {"math": 3, "code": 1, "other": 0}
    counts = await buffer.count_statuses(["math", "code", "agent", "other"], ["completed", "expired"])
    assert {task: tuple(row.values()) for task, row in counts.items()} == {
        "math": (1, 3),
        "code": (3, 1),
        "agent": (4, 0),  # was told nothing
        "other": (0, 0),
    }
    staleness = {row.staleness for row in await buffer.query({"task_name": "agent"})}
    assert staleness == {0}
    await books_of(buffer)


async def test_a_lease_is_trimmed_as_if_the_rest_had_not_been_lent():
    for uses in (1, None):
        buffer = ReplayBufferConfig(sampler="least_used", max_times_sampled=uses).build()
        for name in "abc":
            await buffer.put([Rollout(group_id=name, response_ids=[1], status="completed")], "t")
        batch = await buffer.lease({"t": 3}, wait=True)
        await buffer.trim_lease(batch.id, [2])
        rows = {row.uid: row for row in await buffer.query({})}
        assert (rows[1].deliveries, rows[3].deliveries, rows[1].times_sampled) == (0, 0, 0)
        await batch.ack()
        assert sorted(row.uid for row in await buffer.query({"times_sampled": 0})) == [1, 3]
        assert (await buffer.ledger())["t"]["put"].trained_groups == 1
        await buffer.trim_lease(batch.id, [])  # it has ended
        await buffer.trim_lease(99, [])
