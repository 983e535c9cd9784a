"""State and restore of a table, by hand; the state machine does it in the middle of everything."""

import copy
import pickle

import pytest

from reroll import (
    Fifo,
    InvalidArgument,
    InvalidConfig,
    Lifo,
    MinHeap,
    Prioritized,
    Queue,
    Table,
    Uniform,
    Unlimited,
)
from table.threads import ledger_closes


def table_of(sampler=Prioritized(), remover=MinHeap(), uses=3, max_size=6, seed=0):  # noqa: B008  (immutable)
    return Table(max_size, sampler, remover, uses, Unlimited(), seed=seed)


def used(table):
    for key in range(20):
        table.insert(key, {"payload": key}, key % 4)
        table.sample(2)
        table.update_priorities({key - 1: 2.5})
    table.delete([19])
    return table


def go_on(table):
    told = []
    for key in range(50, 70):
        table.insert(key, key, key % 3)
        told += [table.sample_items(3), table.keys(), table.info]
    return told


@pytest.mark.parametrize(
    "sampler", [Prioritized(), Prioritized(alpha=0.5, reuse_decay=0.5), Uniform(), Fifo(), Lifo()]
)
@pytest.mark.parametrize("remover", [MinHeap(), Uniform(), Fifo()])
def test_a_restored_table_goes_on_the_same(sampler, remover):
    table = used(table_of(sampler, remover))
    state = pickle.loads(pickle.dumps(table.state()))  # noqa: S301  (our own)
    other = table_of(sampler, remover, seed=99)
    other.insert("something else", None)
    other.restore(state)
    assert other.info == table.info
    assert "something else" not in other
    assert go_on(other) == go_on(table)
    assert ledger_closes(other)


def test_a_state_can_be_restored_more_than_once_and_does_not_change():
    table = used(table_of())
    state = table.state()
    frozen = copy.deepcopy(state)
    first = go_on(table)
    for _ in range(2):
        table.restore(state)
        assert go_on(table) == first
    assert pickle.dumps(state) == pickle.dumps(frozen)


def test_items_are_kept_by_reference():
    table, payload = table_of(), object()
    table.insert("a", payload)
    other = table_of()
    other.restore(table.state())
    assert other.sample(1)[0] is payload


def test_an_empty_table():
    other = used(table_of())
    other.restore(table_of(seed=3).state())
    assert len(other) == 0
    assert go_on(other) == go_on(table_of(seed=3))


@pytest.mark.parametrize(
    "other",
    [
        lambda: table_of(sampler=Uniform()),
        lambda: table_of(remover=Fifo()),
        lambda: Table(6, Prioritized(), None, 3, Unlimited()),
        lambda: table_of(max_size=2),
    ],
    ids=["sampler", "remover", "no remover", "smaller"],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(other):
    table = used(table_of())
    target = other()
    target.insert("a", 1)
    before = pickle.dumps((target.state(), target.info.ledger))
    with pytest.raises(InvalidConfig):
        target.restore(table.state())
    assert pickle.dumps((target.state(), target.info.ledger)) == before
    assert target.sample(1) == [1]


@pytest.mark.parametrize("part", ["engine", "keys", "data"])
def test_what_is_no_state_changes_nothing(part):
    state = used(table_of()).state()
    del state[part]
    target = table_of()
    target.insert("a", 1)
    before = pickle.dumps(target.state())
    with pytest.raises((KeyError, InvalidArgument)):
        target.restore(state)
    assert pickle.dumps(target.state()) == before
    assert target.sample(1) == [1]


def test_the_limiter_goes_on_where_it_was():
    table = Table(10, Fifo(), Fifo(), 1, Queue(3))
    for key in range(3):
        table.insert(key, key)
    other = Table(10, Fifo(), Fifo(), 1, Queue(3))
    other.restore(table.state())
    assert not other.can_insert(1)
    assert other.sample(2) == [0, 1]
    assert other.can_insert(2)
    assert not other.can_insert(3)
