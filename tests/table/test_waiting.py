"""Who waits is woken, in order of arrival; shutdown wakes all; what timed out never lands."""

import math
import threading

import pytest

from reroll import (
    Closed,
    Fifo,
    LeastUsed,
    MinSize,
    Queue,
    SampleToInsertRatio,
    Table,
    Uniform,
    Unlimited,
    WaitTimeout,
)
from table.threads import Call, ledger_closes, until, waiting_insert, waiting_sample


def test_inserts_pass_in_order_of_arrival():
    table = Table.queue(1)
    table.insert(0, 0)
    late = [waiting_insert(table, key, key) for key in range(1, 8)]
    assert table.info.waiting_inserts == 7
    for key in range(8):
        assert table.sample(1) == [key]
    for call in late:
        call.result()
    assert len(table) == 0
    assert table.info.waiting_inserts == 0


def test_samples_pass_in_order_of_arrival():
    table = Table.queue(10)
    late = [waiting_sample(table, 1) for _ in range(7)]
    for key in range(7):
        table.insert(key, key)
    assert [call.result() for call in late] == [[key] for key in range(7)]


def test_a_large_sample_is_not_overtaken_by_a_small_one():
    table = Table(10, LeastUsed(), Fifo(), None, SampleToInsertRatio(1, 1, (0, 10)))
    for key in range(3):
        table.insert(key, key)
    table.sample(3)
    large = waiting_sample(table, 3)
    small = waiting_sample(table, 1)
    for key in range(3, 5):
        table.insert(key, key)
        assert table.info.waiting_samples == 2
    table.insert(5, 5)
    assert large.result() == [3, 4, 5]
    assert table.info.waiting_samples == 1
    table.insert(6, 6)
    assert small.result() == [6]


def test_a_newcomer_does_not_overtake_who_waits():
    table = Table(10, LeastUsed(), Fifo(), None, SampleToInsertRatio(1, 1, (0, 10)))
    table.insert(0, 0)
    table.sample(1)
    table.insert(1, 1)
    first = waiting_sample(table, 2)  # the limiter allows one, but not two
    assert table.can_sample(1)
    with pytest.raises(WaitTimeout):
        table.sample(1, timeout=0)
    table.insert(2, 2)
    assert first.result() == [1, 2]


def test_who_leaves_the_line_lets_the_next_one_try():
    table = Table(10, LeastUsed(), Fifo(), None, SampleToInsertRatio(1, 1, (0, 10)))
    table.insert(0, 0)
    table.sample(1)
    table.insert(1, 1)
    first = Call(table.sample, 2, timeout=0.2)
    until(lambda: table.info.waiting_samples == 1)
    second = waiting_sample(table, 1)
    with pytest.raises(WaitTimeout):
        first.result()
    assert second.result() == [1]  # nothing but the end of the first wait could wake it


def test_one_change_lets_several_pass():
    table = Table(10, Fifo(), Fifo(), 1, MinSize(4))
    late = [waiting_sample(table, 1) for _ in range(3)]
    for key in range(3):
        table.insert(key, key)
    assert table.info.waiting_samples == 3
    table.rate_limiter = MinSize(1)
    assert [call.result() for call in late] == [[0], [1], [2]]


def test_replacing_a_key_does_not_wait_behind_others():
    table = Table.queue(1)
    table.insert("a", 1)
    late = waiting_insert(table, "b", 2)
    table.insert("a", 3, timeout=0)
    assert table.sample(1) == [3]
    late.result()


def test_two_waiting_inserts_of_one_key_store_the_later():
    table = Table.queue(1)
    table.insert("a", 0)
    late = [waiting_insert(table, "b", value) for value in (1, 2)]
    assert table.sample(1) == [0]
    for call in late:
        call.result()
    assert table.sample(1) == [2]
    assert ledger_closes(table)


def test_shutdown_wakes_every_waiter():
    full, empty = Table.queue(1), Table.queue(1)
    full.insert("a", 1)
    inserts = [waiting_insert(full, key, key) for key in range(5)]
    samples = [waiting_sample(empty, 1) for _ in range(5)]
    full.shutdown()
    empty.shutdown()
    for call in inserts:
        with pytest.raises(Closed):
            call.result()
    assert [call.result() for call in samples] == [None] * 5
    assert full.keys() == ["a"]
    assert full.info.inserts == 1
    assert full.info.waiting_inserts == empty.info.waiting_samples == 0
    assert full.is_shutdown
    assert ledger_closes(full)


def test_after_shutdown():
    table = Table(5, Fifo(), Fifo())
    table.insert("a", 1)
    assert not table.is_shutdown
    table.shutdown()
    table.shutdown()
    for key in ("a", "b"):  # not even what would only replace
        with pytest.raises(Closed):
            table.insert(key, 2)
    assert table.sample(1) is None
    assert table.sample_items(1, timeout=0) is None
    assert table.keys() == ["a"]
    assert table.info.inserts == 1


def test_an_acknowledged_insert_was_stored_whatever_shutdown_does():
    for _ in range(30):
        table = Table(100, Uniform(), Fifo(), None, Unlimited())
        start = threading.Barrier(4)

        def fill(name, table=table, start=start):
            start.wait()
            for i in range(20):
                try:
                    table.insert((name, i), None)
                except Closed:
                    return i
            return 20

        calls = [Call(fill, name) for name in range(3)]
        start.wait()
        table.shutdown()
        stored = {(name, i) for name, call in enumerate(calls) for i in range(call.result())}
        assert set(table.keys()) == stored


def test_a_timeout_raises_and_nothing_lands_later():
    table = Table.queue(1)
    table.insert("a", 1)
    before = table.info
    for timeout in (0, 0.01):
        with pytest.raises(WaitTimeout, match=r"insert.*timed out") as error:
            table.insert("b", 2, timeout=timeout)
    assert isinstance(error.value, TimeoutError)
    assert table.info == before
    assert table.sample(1) == [1]
    assert len(table) == 0
    assert table.info.inserts == 1
    for timeout in (0, 0.01):
        with pytest.raises(WaitTimeout, match=r"sample.*timed out"):
            table.sample(1, timeout=timeout)
    table.insert("c", 3)
    assert table.keys() == ["c"]
    assert table.info.samples == 1


def test_a_waiter_that_timed_out_leaves_nothing_behind():
    table = Table.queue(1)
    table.insert("a", 1)
    late = Call(table.insert, "b", 2, timeout=0.05)
    with pytest.raises(WaitTimeout):
        late.result()
    assert table.info.waiting_inserts == 0
    assert table.sample(1) == [1]
    assert not table.can_sample(1)


def test_timeouts_that_race_with_success_tell_the_truth():
    table = Table.queue(2)
    stored, taken = [], []
    done = threading.Event()

    def produce(name):
        for i in range(60):
            try:
                table.insert((name, i), (name, i), timeout=0.0005)
            except WaitTimeout:
                continue
            stored.append((name, i))

    def consume():
        while not done.is_set():
            try:
                taken.extend(table.sample(1, timeout=0.0005))
            except WaitTimeout:
                continue

    producers = [Call(produce, name) for name in range(4)]
    consumers = [Call(consume) for _ in range(2)]
    for call in producers:
        call.result()
    done.set()
    for call in consumers:
        call.result()
    if table.can_sample(1):
        taken.extend(table.sample(2))
    assert sorted(taken) == sorted(stored)
    assert ledger_closes(table)


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_very_long_timeout_waits(timeout):
    table = Table.queue(1)
    late = waiting_sample(table, 1, timeout=timeout)
    table.insert("a", 1)
    assert late.result() == [1]


def test_restore_wakes_who_can_go_on():
    table = Table.queue(2)
    table.insert("a", 1)
    state = table.state()
    table.sample(1)
    late = waiting_sample(table, 1)
    table.restore(state)
    assert late.result() == [1]


def test_a_failing_call_in_the_line_does_not_hold_up_others():
    class Moody:
        type = "moody"
        window = Queue(1).window
        is_broken = False

        def can_insert(self, counters, k=1):
            return True

        def can_sample(self, counters, k=1):
            if self.is_broken:
                raise ZeroDivisionError
            return counters.size >= 3

    limiter = Moody()
    table = Table(5, Fifo(), Fifo(), 1, limiter)
    table.insert(0, 0)
    late = [waiting_sample(table, 1) for _ in range(2)]
    limiter.is_broken = True
    table.shutdown()
    assert [call.result() for call in late] == [None, None]
