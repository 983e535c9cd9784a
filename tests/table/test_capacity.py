"""A full table: who is evicted, and that more than max_size is never seen."""

import sys
import threading

import pytest

from reroll import (
    Fifo,
    LeastUsed,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Table,
    Uniform,
    Unlimited,
    WaitTimeout,
)
from table.threads import Call, ledger_closes, waiting_insert


def filled(table, count, priority=lambda key: 1.0):
    for key in range(count):
        table.insert(key, f"item {key}", priority(key))
    return table


@pytest.mark.parametrize(
    ("remover", "stay"),
    [
        (Fifo(), [2, 3, 4]),
        (Lifo(), [0, 1, 2]),
        (MinHeap(), [2, 3, 4]),
        (MaxHeap(), [0, 1, 2]),
        (LeastUsed(), [2, 3, 4]),
    ],
)
def test_five_inserts_into_three_places(remover, stay):
    table = filled(Table(3, Uniform(), remover), 5, priority=float)
    assert table.keys() == stay
    assert len(table) == 3
    assert [key in table for key in range(5)] == [key in stay for key in range(5)]
    assert sorted(table.sample(3)) == [f"item {key}" for key in stay]


def test_a_newcomer_that_is_chosen_counts_as_insert_and_delete():
    table = filled(Table(3, Uniform(), Lifo()), 5)
    assert (table.info.inserts, table.info.deletes) == (5, 2)
    assert table.info.ledger["evicted"].groups == 2
    assert table.info.ledger["put"].groups == 5
    assert ledger_closes(table)


def test_ties_evict_the_least_recently_inserted_or_updated():
    table = filled(Table(3, Uniform(), MinHeap()), 3)
    table.update_priorities({0: 1.0})
    table.insert(3, None)
    assert table.keys() == [0, 2, 3]
    table.insert(4, None)
    assert table.keys() == [0, 3, 4]


@pytest.mark.parametrize("remover", [Fifo(), Lifo(), MinHeap(), MaxHeap(), Uniform(), LeastUsed()])
@pytest.mark.parametrize("priority", [lambda key: key % 7, lambda key: 0.0], ids=["mixed", "all zero"])
def test_inserting_into_a_full_prioritized_table_works_for_ever(remover, priority):
    table = filled(Table(8, Prioritized(), remover, None, seed=1), 800, priority)
    assert len(table) == 8
    assert len(table.sample(8)) == 8
    assert table.info.inserts - table.info.deletes == 8
    assert ledger_closes(table)


def test_a_prioritized_remover_evicts_by_chance_and_warns():
    with pytest.warns(UserWarning, match="most valuable"):
        table = Table(4, Prioritized(), Prioritized(), None, seed=1)
    filled(table, 500, lambda key: key % 3)
    assert len(table) == 4
    stay = table.keys()
    assert all(key % 3 == 0 for key in stay), "zero weight is evicted only when nothing else is there"


def test_without_a_remover_inserts_wait_for_room():
    table = filled(Table(2, Fifo(), None), 2)
    assert not table.can_insert(1)
    with pytest.raises(WaitTimeout):
        table.insert(2, "item 2", timeout=0)
    late = waiting_insert(table, 2, "item 2")
    assert table.sample(1) == ["item 0"]
    late.result()
    assert table.keys() == [1, 2]


def test_can_insert_counts_the_room():
    table = Table(3, Fifo(), None, rate_limiter=Unlimited())
    table.insert(0, None)
    assert [table.can_insert(n) for n in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize("remover", [Fifo(), Lifo(), MinHeap(), Uniform()])
def test_more_than_max_size_is_never_observed_from_another_thread(remover):
    table = Table(5, Prioritized(), remover, None, MinSize(1), seed=0)
    done = threading.Event()
    seen = set()

    def watch():
        while not done.is_set():
            info = table.info
            seen.update((len(table), info.size, len(table.keys()), info.inserts - info.deletes))
            seen.add(info.ledger["resident"].groups)
            if info.size:
                seen.add(table.sample_items(9)[0].info.table_size)

    def fill(start):
        for key in range(start, start + 300):
            table.insert(key, None, priority=key % 5)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        watchers = [Call(watch) for _ in range(2)]
        for call in [Call(fill, 1_000 * i) for i in range(3)]:
            call.result()
        done.set()
        for call in watchers:
            call.result()
    finally:
        sys.setswitchinterval(switching)
    assert max(seen) == 5
    assert ledger_closes(table)
