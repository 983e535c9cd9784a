"""Rate limiters at work in a table. Uses are unlimited, so that only the limiter decides."""

import pytest

from reroll import (
    Fifo,
    InvalidArgument,
    InvalidConfig,
    LeastUsed,
    MinSize,
    Queue,
    SampleToInsertRatio,
    Stack,
    Table,
    Uniform,
    Unlimited,
    WaitTimeout,
)
from table.threads import ledger_closes, waiting_insert, waiting_sample


def table_with(limiter, max_size=100, remover=Fifo()):  # noqa: B008  (immutable)
    return Table(max_size, LeastUsed(), remover, None, limiter)


def inserts_that_pass(table):
    count = 0
    while table.can_insert(1) and count < 50:
        table.insert(("key", count, table.info.inserts), None, timeout=0)
        count += 1
    with pytest.raises(WaitTimeout):
        table.insert("one too many", None, timeout=0)
    return count


def samples_that_pass(table):
    count = 0
    while table.can_sample(1) and count < 50:
        assert len(table.sample(1, timeout=0)) == 1
        count += 1
    with pytest.raises(WaitTimeout):
        table.sample(1, timeout=0)
    return count


def test_ratio_of_one_and_a_half():
    table = table_with(SampleToInsertRatio(1.5, 2, (-1, 3)))
    table.insert("a", 1, timeout=0)
    assert not table.can_sample(1)
    table.insert("b", 2, timeout=0)
    table.sample(1, timeout=0)
    third = waiting_insert(table, "c", 3)
    assert "c" not in table
    table.sample(1)
    third.result()
    assert table.keys() == ["a", "b", "c"]


def test_error_buffer_of_four_allows_five_inserts_then_eight_samples():
    table = table_with(SampleToInsertRatio(2, 3, 4))
    assert inserts_that_pass(table) == 5
    assert samples_that_pass(table) == 8
    assert inserts_that_pass(table) == 4
    assert samples_that_pass(table) == 8
    assert table.info[6:9] == (9, 16, 0)


def test_min_size():
    table = table_with(MinSize(3))
    for key in range(2):
        table.insert(key, key)
    assert not table.can_sample(1)
    late = waiting_sample(table, 5)
    table.insert(2, 2)
    assert late.result() == [0, 1, 2]  # n is clamped to the size


def test_unlimited_never_blocks():
    table = table_with(Unlimited())
    assert table.sample(5, timeout=0) == []
    for key in range(150):
        table.insert(key, key, timeout=0)
    assert len(table.sample(200, timeout=0)) == 100


@pytest.mark.parametrize("limiter", [Queue(4), Stack(4)])
def test_queue_and_stack_rules(limiter):
    table = table_with(limiter)
    assert inserts_that_pass(table) == 4
    assert samples_that_pass(table) == 4
    assert inserts_that_pass(table) == 4


def test_deleting_below_min_size_blocks_sampling_and_frees_inserting():
    table = table_with(SampleToInsertRatio(1, 3, 2))
    assert inserts_that_pass(table) == 5
    table.sample(3)
    assert inserts_that_pass(table) == 3
    late = waiting_insert(table, "late")
    table.sample(1)
    late.result()
    before = table.info
    table.delete(table.keys()[:-2])  # four of these seven were sampled, and are not refunded
    assert (table.info.inserts, table.info.samples, table.info.deletes) == (
        before.inserts - 3,
        before.samples,
        4,
    )
    assert len(table) == 2
    assert not table.can_sample(1)
    assert table.can_insert(1)
    table.insert("third", None, timeout=0)
    assert ledger_closes(table)


def test_a_delete_wakes_an_insert_that_waits():
    table = table_with(SampleToInsertRatio(1, 2, 2))
    assert inserts_that_pass(table) == 4
    late = waiting_insert(table, "late")
    table.delete(table.keys()[:1])  # never sampled: refunded
    late.result()
    assert table.info.inserts == 4


def test_only_what_was_never_sampled_is_refunded():
    table = table_with(SampleToInsertRatio(1, 1, (-10, 10)))
    for key in "abcd":
        table.insert(key, None)
    table.sample(2)
    assert table.info[6:9] == (4, 2, 0)
    table.delete(["a", "c", "unknown"])
    assert table.info[6:9] == (3, 2, 1)


@pytest.mark.filterwarnings("ignore:the limiter admits more:UserWarning")
def test_an_evicted_item_is_not_refunded_so_a_full_table_throttles():
    table = table_with(SampleToInsertRatio(1, 1, (0, 5)), max_size=2)
    assert inserts_that_pass(table) == 5
    assert len(table) == 2
    assert table.info[6:9] == (5, 0, 3)


def test_reset_starts_the_limiter_anew():
    table = table_with(SampleToInsertRatio(2, 3, 4))
    inserts_that_pass(table)
    samples_that_pass(table)
    table.reset()
    assert len(table) == 0
    assert table.info[6:9] == (0, 0, 0)
    assert table.info.ledger["deleted"].groups == 5
    assert ledger_closes(table)
    assert inserts_that_pass(table) == 5
    assert samples_that_pass(table) == 8


def test_reset_wakes_inserts():
    table = table_with(Queue(1))
    table.insert("a", 1)
    late = waiting_insert(table, "b", 2)
    table.reset()
    late.result()
    assert table.keys() == ["b"]


def test_changing_the_limiter_wakes_samples():
    table = table_with(MinSize(5))
    table.insert("a", 1)
    late = waiting_sample(table, 1)
    table.rate_limiter = MinSize(1)
    assert late.result() == [1]
    assert table.info.rate_limiter == table.rate_limiter == MinSize(1)


def test_changing_the_limiter_wakes_inserts_and_keeps_the_counters():
    table = table_with(Queue(1))
    table.insert("a", 1)
    late = [waiting_insert(table, key) for key in "bcd"]
    table.rate_limiter = Queue(3)
    for call in late[:2]:
        call.result()
    assert table.info.waiting_inserts == 1
    assert table.info.inserts == 3
    table.rate_limiter = Unlimited()
    late[2].result()
    assert table.keys() == ["a", "b", "c", "d"]


def test_a_limiter_that_cannot_proceed_is_refused_at_run_time_too():
    table = table_with(MinSize(5), max_size=5)
    with pytest.raises(InvalidConfig, match="at most 5 fit"):
        table.rate_limiter = MinSize(6)
    with pytest.raises(InvalidConfig):
        table.rate_limiter = "sometimes"
    assert table.rate_limiter == MinSize(5)


def test_more_samples_at_once_than_the_window_holds_are_refused():
    table = table_with(SampleToInsertRatio(1, 1, (0, 3)))
    for key in "abc":
        table.insert(key, key)
    assert table.sample(4) == ["a", "b", "c"]  # clamped to the size
    table.insert("d", "d")
    with pytest.raises(InvalidArgument, match="never allows more than 3"):
        table.sample(4)
    assert not table.can_sample(4)


@pytest.mark.parametrize("limiter", [Queue(1), MinSize(1), SampleToInsertRatio(2.0, 1, 4.0)])
def test_can_sample_and_sample_give_the_same_answer(limiter):
    table = Table(10, "fifo", "fifo", 2, limiter)
    table.insert("a", 1)
    assert table.can_sample(2)
    assert table.sample(2, timeout=0) == [1]


@pytest.mark.parametrize("n", [0, -5, 1.5, True, None])
def test_counts_that_cannot_be_are_refused(n):
    table = Table(10, "fifo", "fifo")
    for ask in (table.can_sample, table.can_insert, table.sample):
        with pytest.raises(InvalidArgument, match="at least 1"):
            ask(n)


def test_what_the_clamp_makes_possible_is_not_refused():
    # Each is sampled once and leaves, so there are never more than 3, and n is clamped to that.
    table = Table(100, Fifo(), Fifo(), 1, Queue(3))
    for key in range(3):
        table.insert(key, key)
    assert table.sample(10, timeout=0) == [0, 1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SampleToInsertRatio(0, 1, 10),
        lambda: SampleToInsertRatio(-1, 1, 10),
        lambda: SampleToInsertRatio(float("nan"), 1, 10),
        lambda: SampleToInsertRatio(float("inf"), 1, 10),
        lambda: SampleToInsertRatio("1", 1, 10),
        lambda: SampleToInsertRatio(True, 1, 10),
        lambda: SampleToInsertRatio(1, 0, 10),
        lambda: SampleToInsertRatio(1, 1.5, 10),
        lambda: SampleToInsertRatio(1, 1, 0.9),
        lambda: SampleToInsertRatio(3, 1, 2.9),
        lambda: SampleToInsertRatio(1, 1, -1),
        lambda: SampleToInsertRatio(1, 1, (0, 1.9)),
        lambda: SampleToInsertRatio(3, 1, (0, 5.9)),
        lambda: SampleToInsertRatio(1, 1, (3, 0)),
        lambda: SampleToInsertRatio(1, 2, (2.5, 10)),
        lambda: SampleToInsertRatio(1, 1, (0, float("nan"))),
        lambda: SampleToInsertRatio(1, 1, float("nan")),
        lambda: SampleToInsertRatio(1, 1, (1,)),
        lambda: SampleToInsertRatio(1, 1, (0, 1, 10)),
        lambda: SampleToInsertRatio(1, 1, None),
        lambda: SampleToInsertRatio(1, 1, "10"),
        lambda: MinSize(0),
        lambda: MinSize(True),
        lambda: MinSize(2.0),
        lambda: MinSize(None),
        lambda: Queue(0),
        lambda: Stack(-1),
        lambda: Table(3, Uniform(), Fifo(), 1, MinSize(4)),
        lambda: Table(3, Uniform(), Fifo(), 1, SampleToInsertRatio(1, 4, 10)),
    ],
)
def test_bad_parameters_are_refused(make):
    with pytest.raises(InvalidConfig) as refused:
        make()
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("make", "limit"),
    [(lambda e: SampleToInsertRatio(1, 1, e), 1.0), (lambda e: SampleToInsertRatio(3, 1, e), 3.0)],
)
def test_the_narrowest_window_is_accepted(make, limit):
    assert make(limit).window.max_diff - make(limit).window.min_diff == 2 * limit
    assert make((0, 2 * limit)).window[2:] == (0, 2 * limit)
