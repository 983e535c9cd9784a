"""A thousand threads of mixed calls: nothing is lost, nothing is counted twice, the ledger closes."""

import random
import threading

import pytest

from reroll import (
    Closed,
    Fifo,
    MinHeap,
    Prioritized,
    SampleToInsertRatio,
    Table,
    Uniform,
    Unlimited,
    WaitTimeout,
)
from table.threads import ledger_closes, until

THREADS = 1_000
CALLS = 4


@pytest.fixture(autouse=True)
def _small_stacks():
    before = threading.stack_size(256 * 1024)
    yield
    threading.stack_size(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table(50, Prioritized(), MinHeap(), 3, SampleToInsertRatio(1.5, 10, 20), seed=0),
        lambda: Table(20, Uniform(), None, 1, seed=0),
        lambda: Table(20, Fifo(), Fifo(), 2, Unlimited(), seed=0),
        lambda: Table.queue(16),
    ],
    ids=["prioritized", "uniform without remover", "fifo unlimited", "queue"],
)
def test_a_thousand_threads_of_mixed_calls(make):
    table = make()
    start = threading.Barrier(THREADS + 1)
    lock = threading.Lock()
    stored, sampled, deleted, over, errors = [], [], [], [], []

    def work(name):
        dice = random.Random(name)
        start.wait()
        try:
            for i in range(CALLS):
                call(dice, (name, i))
        except BaseException as error:  # noqa: BLE001  (told below)
            errors.append(error)
        with lock:
            over.append(name)

    def call(dice, key):
        timeout = dice.choice((None, None, 0, 0.001))
        try:
            match dice.choice(("insert", "insert", "insert", "sample", "sample", "delete", "update", "look")):
                case "insert":
                    table.insert(key, key, dice.random(), timeout)
                    stored.append(key)
                case "sample":
                    for sample in table.sample_items(dice.choice((1, 2, 5)), timeout) or []:
                        sampled.append(sample.info.key)
                        assert sample.data == sample.info.key
                        assert sample.info.table_size <= table.info.max_size
                case "delete":
                    deleted.append(table.delete(table.keys()[:2]))
                case "update":
                    table.update_priorities(dict.fromkeys(table.keys()[:3], dice.random()))
                case _:
                    info = table.info
                    assert info.size == info.inserts - info.deletes == info.ledger["resident"].groups
                    assert info.size <= info.max_size
        except (WaitTimeout, Closed):
            pass

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()

    def is_quiet():
        info = table.info
        return len(over) + info.waiting_inserts + info.waiting_samples == THREADS

    until(is_quiet)
    table.shutdown()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    info = table.info
    assert (info.waiting_inserts, info.waiting_samples) == (0, 0)
    assert ledger_closes(table)
    assert info.ledger["put"].groups == len(stored)
    assert info.ledger["deleted"].groups == sum(deleted)
    assert info.ledger["put"].trained_groups == len(set(sampled))
    assert info.samples == len(sampled)
    assert info.size == len(table.keys()) == info.ledger["resident"].groups
    assert set(table.keys()) <= set(stored)
    uses = info.max_times_sampled
    assert max(map(sampled.count, set(sampled)), default=0) <= uses
