"""The engine by itself: several tasks, bytes, refusals that change nothing, state and restore."""

import pickle

import numpy as np
import pytest

from reroll import (
    Fifo,
    InvalidArgument,
    InvalidConfig,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Mixture,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stalest,
    Status,
    Uniform,
    Unlimited,
)
from reroll.engine.engine import Engine
from reroll.engine.ledger import BUCKETS, Amount, Ledger, Measure, Spot, closes
from reroll.engine.rewind import commit, drop_consumed, return_all, rewind
from reroll.engine.rows import LEASED, OUT, PLACES, RESIDENT, UNCOMMITTED
from reroll.engine.state import restore, state_of
from reroll.engine.task import COMPLETED, RETURNING, STATUS_CODE, STATUSES, TaskSettings
from reroll.errors import WouldBlock


def engine_of(max_bytes=None, seed=0, **settings):
    """Return an engine whose tasks are `settings`, and those tasks."""
    engine = Engine(lambda name: settings[name], seed=seed, max_bytes=max_bytes)
    return engine, *(engine.task(name) for name in settings)


def books_close(engine):
    for task in engine.tasks.values():
        books = task.ledger.amounts()
        assert closes(books)
        assert books["resident"].groups == sum(len(pool) for pool in task.pools)
        assert task.counters.size == len(task.completed)
    assert engine.num_bytes == engine.columns.num_bytes[engine.columns.alive()].sum()
    return True


def uids(engine, slots):
    return engine.columns.uid[slots].tolist()


# --- refusals change nothing


@pytest.mark.parametrize("sampler", [Fifo(), Uniform(), Prioritized()])
def test_a_draw_that_would_block_changes_nothing(sampler):
    engine, task = engine_of(
        a=TaskSettings(capacity=9, sampler=sampler, remover=Fifo(), limiter=SampleToInsertRatio(1, 2, (1, 3)))
    )
    for _ in range(3):
        engine.insert(task, {})
    engine.draw(task, 1)
    before = pickle.dumps(state_of(engine))
    with pytest.raises(WouldBlock):
        engine.draw(task, 2)
    assert pickle.dumps(state_of(engine)) == before
    assert len(engine.draw(task, 1).slots) == 1


def test_an_insert_that_would_block_changes_nothing():
    engine, task = engine_of(a=TaskSettings(capacity=9, limiter=Queue(1)))
    engine.insert(task, {})
    before = pickle.dumps(state_of(engine))
    with pytest.raises(WouldBlock):
        engine.insert(task, {"num_tokens": 5})
    assert pickle.dumps(state_of(engine)) == before


@pytest.mark.parametrize("values", [{"num_tokens": 2**70}, {"version": "new"}, {"uses": 2**40}])
def test_an_insert_of_values_that_do_not_fit_changes_nothing(values):
    engine, task = engine_of(a=TaskSettings(capacity=3, sampler=Fifo()))
    engine.insert(task, {})
    slot, _ = engine.insert(task, {})
    engine.delete(np.array([slot]))
    before = pickle.dumps(state_of(engine))
    with pytest.raises((ValueError, TypeError, OverflowError)):
        engine.insert(task, values)
    assert pickle.dumps(state_of(engine)) == before
    assert len(engine.columns) == 1
    assert books_close(engine)


def test_a_mixture_that_waits_changes_nothing_but_the_toss():
    engine, task = engine_of(a=TaskSettings(sampler=Mixture(1.0), remover=None, max_times_sampled=None))
    engine.insert(task, {})
    engine.draw(task, 1)
    counters, books = task.counters.state(), task.ledger.amounts()
    with pytest.raises(WouldBlock):
        engine.draw(task, 1)
    assert (task.counters.state(), task.ledger.amounts()) == (counters, books)


# --- tasks


def test_tasks_do_not_mix():
    settings = {
        "a": TaskSettings(capacity=3, sampler=Prioritized(), remover=Fifo(), max_times_sampled=None),
        "b": TaskSettings(capacity=5, sampler=Prioritized(), remover=Fifo(), max_times_sampled=None),
    }
    engine, a, b = engine_of(**settings)
    of_a, of_b = set(), set()
    for i in range(20):
        of_a.update(uids(engine, [engine.insert(a, {"priority": i % 3}).slot]))
        of_b.update(uids(engine, [engine.insert(b, {"priority": 1}).slot]))
        assert set(engine.draw(a, 3).uid.tolist()) <= of_a
        assert set(engine.draw(b, 5).uid.tolist()) <= of_b
    assert (len(a.completed), len(b.completed)) == (3, 5)
    both = np.concatenate((engine.draw(a, 2).slots, engine.draw(b, 2).slots))
    engine.set_priorities(both, np.array([4.0, 5.0, 6.0, 7.0]))
    assert engine.columns.priority[both].tolist() == [4, 5, 6, 7]
    engine.delete(both)
    assert (len(a.completed), len(b.completed)) == (1, 3)
    assert books_close(engine)


def test_uids_are_never_used_again():
    engine, task = engine_of(a=TaskSettings(capacity=3, sampler=Fifo(), remover=Lifo()))
    seen = []
    for _ in range(10):
        seen.append(engine.last_uid)
        engine.insert(task, {})
        engine.draw(task, 2)
    assert seen == sorted(set(seen))


def test_tokens_are_in_the_ledger():
    engine, task = engine_of(a=TaskSettings(capacity=2, sampler=Fifo(), remover=Fifo(), max_times_sampled=2))
    for tokens in (10, 20, 30):
        engine.insert(task, {"num_tokens": tokens})
    engine.draw(task, 1)
    engine.draw(task, 2)
    books = task.ledger.amounts()
    assert books["put"] == Amount(3, 60, 2, 50)
    assert books["evicted"] == Amount(1, 10, 0, 0)
    assert books["consumed"] == Amount(1, 20, 1, 20)
    assert books["resident"] == Amount(1, 30, 1, 30)
    engine.delete(engine.columns.alive())
    assert task.ledger.amounts()["deleted"] == Amount(1, 30, 1, 30)
    assert books_close(engine)


def test_staleness_is_told_with_the_draw():
    engine, task = engine_of(a=TaskSettings(sampler=Stalest(), max_times_sampled=1))
    for version in (3, 5):
        engine.insert(task, {"version": version, "staleness": 9})
    assert engine.draw(task, 1).staleness.tolist() == [9]
    task.step = 7
    assert engine.draw(task, 1).staleness.tolist() == [1]


# --- bytes


def test_bytes_make_an_insert_wait_where_nobody_may_be_evicted():
    engine, task = engine_of(max_bytes=100, a=TaskSettings(sampler=Fifo()))
    engine.insert(task, {"num_bytes": 60})
    assert engine.can_insert(task, 1, 40)
    assert not engine.can_insert(task, 1, 41)
    with pytest.raises(WouldBlock):
        engine.insert(task, {"num_bytes": 41})
    engine.draw(task, 1)
    assert engine.num_bytes == 0
    engine.insert(task, {"num_bytes": 41})
    assert books_close(engine)


def test_bytes_evict_as_many_as_it_takes():
    engine, task = engine_of(max_bytes=100, a=TaskSettings(sampler=Fifo(), remover=Fifo(), capacity=50))
    for _ in range(9):
        engine.insert(task, {"num_bytes": 11})
    _, gone = engine.insert(task, {"num_bytes": 90})
    assert len(gone) == 9
    assert engine.num_bytes == 90
    assert task.counters.size == 1
    assert books_close(engine)


def test_the_remover_may_choose_the_newcomer_for_its_bytes():
    engine, task = engine_of(max_bytes=100, a=TaskSettings(sampler=Fifo(), remover=Lifo(), capacity=50))
    engine.insert(task, {"num_bytes": 60})
    slot, gone = engine.insert(task, {"num_bytes": 60})
    assert gone.tolist() == [slot]
    assert engine.num_bytes == 60
    assert books_close(engine)


def test_what_can_never_fit_is_refused_before_anything_happens():
    engine, task = engine_of(max_bytes=100, a=TaskSettings(sampler=Fifo(), remover=Fifo(), capacity=50))
    engine.insert(task, {"num_bytes": 60})
    before = pickle.dumps(state_of(engine))
    with pytest.raises(InvalidArgument, match="max_bytes=100"):
        engine.insert(task, {"num_bytes": 101})
    assert pickle.dumps(state_of(engine)) == before


def test_whoever_holds_most_gives_way():
    settings = TaskSettings(sampler=Fifo(), remover=Fifo(), capacity=50)
    engine, fast, slow = engine_of(max_bytes=100, fast=settings, slow=settings)
    for _ in range(8):
        engine.insert(fast, {"num_bytes": 10})
    for _ in range(6):
        engine.insert(slow, {"num_bytes": 10})
    assert (fast.num_bytes, slow.num_bytes) == (40, 60) or (fast.num_bytes, slow.num_bytes) == (50, 50)
    assert slow.ledger.amounts()["evicted"].groups <= 1
    assert books_close(engine)


def test_a_task_that_may_evict_never_evicts_one_that_may_not():
    engine, keeps, evicts = engine_of(
        max_bytes=100,
        keeps=TaskSettings(sampler=Fifo()),
        evicts=TaskSettings(sampler=Fifo(), remover=Fifo(), capacity=50),
    )
    for _ in range(9):
        engine.insert(keeps, {"num_bytes": 10})
    for _ in range(5):
        engine.insert(evicts, {"num_bytes": 8})
    assert len(keeps.completed) == 9
    assert len(evicts.completed) == 1
    assert books_close(engine)


# --- state


def everything_settings():
    return {
        "uniform": TaskSettings(capacity=9, sampler=Uniform(), remover=Fifo(), max_times_sampled=3),
        "ageing": TaskSettings(
            capacity=12,
            sampler=Prioritized(alpha=0.6, half_life=2, reuse_decay=0.7),
            remover=Uniform(),
            max_times_sampled=None,
        ),
        "mixed": TaskSettings(
            sampler=Mixture(0.4), max_times_sampled=4, limiter=SampleToInsertRatio(2, 3, (-5, 40))
        ),
        "stalest": TaskSettings(capacity=20, sampler=Stalest(), remover=MaxHeap(), max_times_sampled=2),
        "least": TaskSettings(limiter=MinSize(2), sampler=Lifo()),
        "unused": TaskSettings(),
    }


def walk(engine, dice, steps):
    """Do random things and return all that was drawn."""
    drawn = []
    for _ in range(steps):
        task = engine.task(dice.choice(["uniform", "ageing", "mixed", "stalest", "least"]))
        count = int(dice.integers(1, 6))
        try:
            match dice.choice(["insert", "insert", "draw", "delete", "update", "step"]):
                case "insert":
                    for _ in range(count):
                        version = {"version": int(dice.integers(0, 9))} if dice.random() < 0.6 else {}
                        told = {
                            "priority": dice.choice([0.0, dice.random()]),
                            "staleness": int(dice.integers(0, 4)),
                        }
                        engine.insert(task, {**told, **version, "num_bytes": 7, "num_tokens": count})
                case "draw":
                    about = engine.draw(task, count)
                    drawn.append([column.tolist() for column in about[1:7]])
                case "delete":
                    alive = engine.columns.alive()
                    engine.delete(alive[dice.integers(0, len(alive), 1)] if len(alive) else alive)
                case "update":
                    some = engine.columns.alive()[:count]
                    engine.set_priorities(some, dice.random(len(some)))
                case _:
                    task.step = (task.step or 5) + count
        except WouldBlock:
            drawn.append("blocked")
        assert books_close(engine)
    return drawn


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize("seed", range(4))
def test_restored_engines_go_on_with_the_same_draws(seed):
    settings = everything_settings()
    engine, *_ = engine_of(**settings, seed=seed, max_bytes=300)
    dice = np.random.default_rng(seed)
    for _ in range(4):
        walk(engine, dice, 60)
        saved = pickle.loads(pickle.dumps(state_of(engine)))  # noqa: S301  (our own; nothing is shared)
        other = Engine(lambda name: settings[name], seed=99, max_bytes=300)
        other.insert(other.task("least"), {})
        restore(other, saved)
        assert other.columns.rows(other.columns.alive())["uid"].tolist() == uids(
            engine, engine.columns.alive()
        )
        again = np.random.default_rng()
        again.bit_generator.state = dice.bit_generator.state
        assert walk(engine, dice, 60) == walk(other, again, 60)
        for name, task in engine.tasks.items():
            assert other.task(name).ledger.amounts() == task.ledger.amounts()
            assert other.task(name).counters == task.counters
            assert other.task(name).step == task.step


def test_a_state_is_a_snapshot():
    engine, task = engine_of(a=TaskSettings(capacity=5, sampler=Prioritized(), remover=Fifo()))
    engine.insert(task, {"priority": 2.0})
    saved = state_of(engine)
    frozen = pickle.dumps(saved)
    for _ in range(9):
        engine.insert(task, {})
        engine.draw(task, 1)
    assert pickle.dumps(saved) == frozen


@pytest.mark.usefixtures("trees")
def test_a_tree_that_was_once_large_is_restored_to_the_last_bit():
    settings = {"a": TaskSettings(sampler=Prioritized(), max_times_sampled=None)}
    engine, task = engine_of(**settings)
    dice = np.random.default_rng(1)
    for priority in dice.random(4_500):
        engine.insert(task, {"priority": priority})
    engine.delete(engine.columns.alive()[100:])
    other = Engine(lambda name: settings[name])
    restore(other, state_of(engine))
    for _ in range(30):
        priorities = dice.random(100)  # each time, sums are rounded in other places
        for each in (engine, other):
            each.set_priorities(each.columns.alive(), priorities)
        mine, its = engine.draw(task, 30), other.draw(other.task("a"), 30)
        assert mine.uid.tolist() == its.uid.tolist()
        assert mine.probability.tolist() == its.probability.tolist()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TaskSettings(sampler=Lifo(), remover=Fifo(), capacity=5), "fifo.*lifo|lifo.*fifo"),
        (TaskSettings(sampler=Fifo(), remover=Lifo(), capacity=5), "fifo.*lifo|lifo.*fifo"),
        (TaskSettings(sampler=Fifo(), capacity=5), "None"),
    ],
)
def test_other_selectors_are_refused_and_nothing_changes(other, message):
    engine, task = engine_of(a=TaskSettings(sampler=Fifo(), remover=Fifo(), capacity=5))
    engine.insert(task, {})
    saved = state_of(engine)
    target, task = engine_of(a=other)
    target.insert(task, {"priority": 7})
    before = pickle.dumps(state_of(target))
    with pytest.raises(InvalidConfig, match=message):
        restore(target, saved)
    assert pickle.dumps(state_of(target)) == before


def test_another_format_is_refused():
    engine, _ = engine_of(a=TaskSettings())
    with pytest.raises(InvalidArgument, match="format"):
        restore(engine, {**state_of(engine), "format": 999})


def test_the_same_seed_and_calls_give_the_same_draws():
    one, other = (engine_of(**everything_settings(), seed=5)[0] for _ in range(2))
    assert walk(one, np.random.default_rng(1), 200) == walk(other, np.random.default_rng(1), 200)
    one, other = (engine_of(**everything_settings(), seed=seed)[0] for seed in (5, 6))
    assert walk(one, np.random.default_rng(1), 200) != walk(other, np.random.default_rng(1), 200)


# --- every count follows the rows


def counts_follow_the_rows(engine):
    """Compare ledger, bytes and limiter counters of all tasks with a recount of the columns."""
    columns, alive = engine.columns, engine.columns.alive()
    for task in engine.tasks.values():
        mine = alive[columns.task[alive] == task.code]
        amounts = task.ledger.amounts()
        assert closes(amounts)
        for place, name in enumerate(PLACES):
            here = mine[columns.place[mine] == place]
            assert amounts[name] == columns.measure(here)[:4]
            for status in range(len(STATUSES)):
                rows = here[columns.status[here] == status]
                assert task.ledger.groups(status, place) == len(rows)
                assert task.ledger.num_bytes(status, place) == columns.num_bytes[rows].sum()
                if place == RESIDENT:
                    assert sorted(task.pools[status].sampler.slots().tolist()) == sorted(rows.tolist())
                    assert len(task.pools[status]) == len(rows)
        assert task.counters.size == len(task.completed) + task.leased
        away = mine[(columns.place[mine] == OUT) | (columns.place[mine] == LEASED)]
        assert task.checked_out == np.isin(columns.status[away], RETURNING).sum()
    return True


def some_of(dice, slots):
    return dice.permutation(slots)[: int(dice.integers(0, 4))] if len(slots) else slots


@pytest.mark.parametrize("uses", [1, 3])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_count_follows_the_rows(seed, durable, uses):
    settings = TaskSettings(
        capacity=9,
        sampler=Fifo(),
        remover=Fifo(),
        max_times_sampled=uses,
        max_uncommitted_steps=3,
        rejected_capacity=2,
        is_durable=durable,
        expires=True,
    )
    engine, *tasks = engine_of(a=settings, b=settings, max_bytes=150)
    dice, columns, step = np.random.default_rng(seed), engine.columns, 0
    for _ in range(400):
        task, status = tasks[int(dice.integers(2))], int(dice.integers(len(STATUSES) - 1))
        alive = columns.alive()
        places = columns.place[alive]
        leased = alive[columns.pending[alive] > 0]
        row = {
            "num_tokens": int(dice.integers(1, 9)),
            "num_bytes": int(dice.integers(1, 20)),
            "version": step,
        }
        match int(dice.integers(12)):
            case 0 | 1 | 2:
                engine.insert(task, row, status, admitted=True)
            case 3:
                engine.take(task, status, 2, step)
            case 4:
                engine.draw(task, 2, step=step)
            case 5:
                engine.lend(task, status, 3)
            case 6:
                engine.acknowledge(some_of(dice, leased), {"a": step, "b": step})
            case 7:
                engine.give_back(some_of(dice, leased), delivered=bool(dice.integers(2)))
            case 8:
                for slot in some_of(dice, alive[places == OUT]).tolist():
                    engine.insert_again(slot, row, status)
            case 9:
                engine.delete(some_of(dice, alive[(places == RESIDENT) | (places == OUT)]))
                engine.lose(some_of(dice, columns.alive())[:1])
            case 10:
                stale = some_of(dice, task.completed.sampler.slots())
                tokens = np.minimum(columns.num_tokens[stale], 2)
                engine.expire(task, COMPLETED, stale, {"num_tokens": tokens})
            case _:
                step += 1
                rewind(engine, task, step - 2) if dice.random() < 0.5 else commit(task, step - 2)
                drop_consumed(engine, columns.alive())
        assert counts_follow_the_rows(engine)
    return_all(engine)
    assert counts_follow_the_rows(engine)
    other = Engine(lambda _: settings)
    restore(other, state_of(engine))
    assert counts_follow_the_rows(other)
    assert [task.ledger.amounts() for task in other.tasks.values()] == [t.ledger.amounts() for t in tasks]


# --- the ledger by itself


def test_a_ledger_closes_and_goes_there_and_back():
    ledger, here = Ledger(), Spot(COMPLETED, RESIDENT)
    ledger.enter(here, Measure(3, 30, 0, 0, 300))
    for place in (OUT, LEASED, UNCOMMITTED):
        ledger.move(here, Spot(COMPLETED, place), Measure(1, 10, 0, 0, 100))
    assert closes(ledger.amounts())
    ledger.leave(Spot(COMPLETED, LEASED), "consumed", Measure(1, 10, 0, 0, 100))
    assert closes(ledger.amounts())
    other = Ledger()
    other.restore(ledger.state())
    assert not closes(other.amounts()), "rows are counted, not stored"
    other.recount({Spot(COMPLETED, place): Measure(1, 10, 0, 0, 100) for place in (OUT, UNCOMMITTED)})
    assert other.amounts() == ledger.amounts()
    ledger.leave(here, "consumed", Measure(1))
    assert not closes(ledger.amounts()), "a negative amount is no closed ledger"
    assert list(ledger.amounts()) == ["put", *BUCKETS]


def test_missing_rows_are_lost():
    ledger = Ledger()
    ledger.enter(Spot(COMPLETED, RESIDENT), Measure(3, 30, 1, 10))
    ledger.recount({Spot(COMPLETED, RESIDENT): Measure(1, 10)})
    ledger.count_missing()
    assert ledger.amounts()["lost"] == Amount(2, 20, 1, 10)
    assert closes(ledger.amounts())


def test_settings_without_capacity_are_unlimited():
    engine, task = engine_of(a=TaskSettings(sampler=Uniform(), limiter=Unlimited()))
    for _ in range(200):
        engine.insert(task, {})
    assert len(engine.draw(task, 500).slots) == 200
    assert len(engine.draw(task, 5).slots) == 0


# --- many rows at once


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"remover": Fifo(), "capacity": 5},
        {"remover": Lifo(), "capacity": 5},
        {"remover": MinHeap(), "capacity": 7},
        {"remover": Fifo(), "capacity": 5, "sampler": Prioritized(), "max_times_sampled": 2},
        {"expires": True, "sampler": Stalest(), "initial_priority": "max"},
        {"limiter": Queue(4), "sampler": Fifo()},
    ],
)
@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
def test_insert_many_gives_what_single_inserts_give(options, shard):
    def run(many):
        engine, task = engine_of(math=TaskSettings(**{"max_times_sampled": 1, **options}))
        engine.uid_shard, engine.columns.dropped, seen, number = shard, [], [], 0
        for count, status in [
            (3, COMPLETED),
            (1, COMPLETED),
            (4, STATUS_CODE[Status.ABORTED]),
            (6, COMPLETED),
        ]:
            names = range(number, number + count)
            number += count
            rows = [
                {"priority": 1.0 + 7 * n % 5, "version": n % 3, "num_tokens": n, "num_bytes": n}
                for n in names
            ]
            tags = [{"n": n} if n % 2 else None for n in names]
            if status == COMPLETED and not engine.can_insert(task, count):
                with pytest.raises(WouldBlock):
                    engine.insert_many(task, rows, status)
                continue
            if many:
                slots, _, gone = engine.insert_many(task, rows, status, group_ids=list(names), tags=tags)
                assert len(slots) == count
                left = set(gone.tolist())
            else:
                left = set()
                for row, group_id, tag in zip(rows, names, tags, strict=True):
                    left.update(engine.insert(task, row, status, group_id=group_id, tags=tag).gone.tolist())
            seen.append(len(left))
            assert books_close(engine)
        kept = engine.columns.rows(engine.columns.alive())
        for name in (
            "sampler_position",
            "remover_position",
        ):  # the slots differ when rows are evicted between
            del kept[name]
        plain = {name: list(map(str, values)) for name, values in kept.items()}
        taken = sorted(uids(engine, engine.take(task, COMPLETED, 2)[0])) if "limiter" not in options else []
        dropped = sorted(engine.columns.dropped)
        return plain, dropped, task.ledger.amounts(), task.counters, engine.last_uid, engine.last_tick, taken

    alone, together = run(many=False), run(many=True)
    assert alone[:-1] == together[:-1]
    if not isinstance(options.get("sampler", Uniform()), Uniform | Prioritized):
        assert alone == together


def test_insert_many_is_refused_as_a_whole():
    engine, task = engine_of(math=TaskSettings(capacity=4, max_times_sampled=1), max_bytes=100)
    engine.insert_many(task, [{"num_bytes": 20}] * 2)
    before = state_of(engine)
    with pytest.raises(WouldBlock):
        engine.insert_many(task, [{}] * 3)
    with pytest.raises(WouldBlock):
        engine.insert_many(task, [{"num_bytes": 31}] * 2)
    with pytest.raises(InvalidArgument, match="101 bytes can never fit"):
        engine.insert_many(task, [{"num_bytes": 1}, {"num_bytes": 101}])
    with pytest.raises((TypeError, ValueError)):
        engine.insert_many(task, [{"num_tokens": 1}, {"num_tokens": "many"}])
    assert str(state_of(engine)) == str(before)
    slots, _, gone = engine.insert_many(task, [])
    assert len(slots) == len(gone) == 0
