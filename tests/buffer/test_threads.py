"""The blocking twin with real threads: nothing lost or doubled, order kept, everybody woken."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reroll import Closed, Queue, ReplayBufferConfig, Status, WaitTimeout
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group, names
from reroll.testing.probe import probe

COMPLETED, ABORTED = Status.COMPLETED, Status.ABORTED
PATIENCE_S = 60  # only ever reached by a test that fails


@pytest.fixture
def pool():
    with ThreadPoolExecutor(24) as executor:
        yield executor


def blocking(**options):
    return ReplayBufferConfig(**{"sampler": "fifo", **options}).build_blocking()


class Parking:
    """Tells when a call has begun to wait: it stands in line, and lets go of the lock only to sleep."""

    def __init__(self, buffer):
        self._parked = threading.Semaphore(0)
        waits = probe(buffer).waits
        enter = waits._enter

        def entered(waiter):
            enter(waiter)
            self._parked.release()

        waits._enter = entered

    def start(self, pool, call, *args, **options):
        """Start a call in a thread and return its future once it waits."""
        future = pool.submit(call, *args, **options)
        assert self._parked.acquire(timeout=PATIENCE_S)
        return future


@pytest.mark.parametrize("options", [{"capacity": 3}, {"rate_limiter": Queue(2)}], ids=["capacity", "queue"])
def test_nothing_is_lost_or_doubled(pool, options):
    buffer = blocking(**options)
    tasks, producers, per_producer = ("t", "u"), 4, 40
    total = producers * per_producer
    left = {task: threading.Semaphore(total) for task in tasks}

    def put(dice, items, task):
        while True:
            try:
                return buffer.put(items, task, timeout=dice.choice([0, 0.001, None]))
            except WaitTimeout:
                assert items[0].group_uid is None or items[0].status is COMPLETED

    def produce(task, index):
        dice = random.Random(index)
        return [
            put(dice, group(number, status=dice.choice([COMPLETED, COMPLETED, ABORTED])), task)
            for number in range(index * per_producer, (index + 1) * per_producer)
        ]

    def resume(task):
        dice = random.Random(task)
        while True:
            try:
                groups, _ = buffer.take_batch({task: 1}, group_status=ABORTED, wait=True)
            except Closed:
                return
            groups[task][0][0].status = COMPLETED
            put(dice, groups[task][0], task)

    def consume(task):
        taken = []
        while left[task].acquire(blocking=False):  # one for each group that will ever come
            groups, _ = buffer.take_batch({task: 1}, wait=True)
            taken += names(groups[task])
        return taken

    resumers = [pool.submit(resume, task) for task in tasks]
    uids = [pool.submit(produce, task, index) for task in tasks for index in range(producers)]
    consumers = {task: [pool.submit(consume, task) for _ in range(3)] for task in tasks}
    stored = [uid for future in uids for uid in future.result(PATIENCE_S)]
    for task in tasks:
        taken = [name for future in consumers[task] for name in future.result(PATIENCE_S)]
        assert sorted(taken) == list(range(total))
        books = buffer.ledger()[task]
        assert closes(books)
        assert books["put"] == books["consumed"]
    assert len(set(stored)) == len(stored) == 2 * total
    assert len(buffer) == 0
    buffer.close()
    for future in resumers:
        future.result(PATIENCE_S)


def test_takers_of_one_pool_keep_their_order_and_others_pass(pool):
    buffer = blocking()
    parking = Parking(buffer)
    large = parking.start(pool, buffer.take_batch, {"t": 3}, wait=True)
    small = parking.start(pool, buffer.take_batch, {"t": 1}, wait=True)
    huge = parking.start(pool, buffer.take_batch, {"v": 1000}, wait=True)
    other = parking.start(pool, buffer.take_batch, {"u": 1}, wait=True)
    buffer.put(group("x"), "u")
    assert names(other.result(PATIENCE_S)[0]["u"]) == ["x"]
    for name in "abcd":
        assert not small.done()
        buffer.put(group(name), "t")
    assert names(large.result(PATIENCE_S)[0]["t"]) == ["a", "b", "c"]
    assert names(small.result(PATIENCE_S)[0]["t"]) == ["d"]
    buffer.close()
    with pytest.raises(Closed):
        huge.result(PATIENCE_S)


def test_producers_are_held_back_in_order(pool):
    buffer = blocking(capacity=1)
    parking = Parking(buffer)
    buffer.put(group(0), "t")
    producers = [parking.start(pool, buffer.put, group(number), "t") for number in range(1, 6)]
    taken = [names(buffer.take_batch({"t": 1}, wait=True)[0]["t"])[0] for _ in range(6)]
    assert taken == list(range(6))
    assert [producer.result(PATIENCE_S) for producer in producers] == [2, 3, 4, 5, 6]


def test_a_call_that_times_out_lets_the_next_go_on(pool):
    buffer = blocking()
    parking = Parking(buffer)
    first = parking.start(pool, buffer.take_batch, {"t": 2}, wait=True, timeout=0.01)
    second = parking.start(pool, buffer.take_batch, {"t": 1}, wait=True)
    buffer.put(group("a"), "t")
    with pytest.raises(WaitTimeout):
        first.result(PATIENCE_S)
    assert names(second.result(PATIENCE_S)[0]["t"]) == ["a"]


def test_close_wakes_every_thread(pool):
    buffer = blocking(capacity=1)
    parking = Parking(buffer)
    buffer.put(group(), "t")
    waiting = [
        parking.start(pool, buffer.put, group(), "t"),
        parking.start(pool, buffer.put, group(), "t"),
        parking.start(pool, buffer.take_batch, {"u": 1}, wait=True),
        parking.start(pool, buffer.wait_ready, {"u": 1}),
    ]
    buffer.close()
    for future in waiting:
        with pytest.raises(Closed):
            future.result(PATIENCE_S)
