"""Columns: growth, defaults, and slots that are used again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.engine.rows import NO_VERSION, Columns


def ints(slots):
    return np.array(slots, np.int64)


def test_defaults():
    columns = Columns()
    slot = columns.allocate({"uid": 1})
    row = columns.rows(ints([slot]))
    assert (row["priority"][0], row["uses"][0], row["version"][0], row["attempts"][0]) == (
        1,
        0,
        NO_VERSION,
        1,
    )
    assert np.isnan(row["reward_mean"][0])


def test_growth_keeps_every_value():
    columns = Columns()
    count = 5_000
    for uid in range(1, count + 1):
        slot = columns.allocate(
            {"uid": uid, "priority": uid / 7, "version": -uid, "uses": uid % 9, "num_bytes": 3 * uid}
        )
        assert slot == uid - 1
    uids = np.arange(1, count + 1)
    row = columns.rows(columns.alive())
    np.testing.assert_array_equal(row["uid"], uids)
    np.testing.assert_array_equal(row["priority"], uids / 7)
    np.testing.assert_array_equal(row["version"], -uids)
    np.testing.assert_array_equal(row["uses"], uids % 9)
    np.testing.assert_array_equal(row["num_bytes"], 3 * uids)
    assert len(columns) == count


def test_a_slot_that_is_used_again_remembers_nothing():
    columns = Columns()
    slot = columns.allocate({"uid": 1, "priority": 9.0, "uses": 5, "version": 3, "reward_mean": 0.5})
    columns.release(ints([slot]))
    assert len(columns) == 0
    assert columns.allocate({"uid": 2}) == slot
    row = columns.rows(ints([slot]))
    assert (row["uid"][0], row["priority"][0], row["uses"][0], row["version"][0]) == (2, 1, 0, NO_VERSION)
    assert np.isnan(row["reward_mean"][0])


def test_memory_stays_bounded_under_churn():
    columns = Columns()
    slots = [columns.allocate({"uid": uid}) for uid in range(1, 101)]
    for uid in range(101, 5_000):
        columns.release(ints([slots.pop(uid % 100)]))
        slots.append(columns.allocate({"uid": uid}))
    assert max(slots) < 101
    assert len(columns.uid) <= 256


@given(st.lists(st.integers(0, 30), max_size=120))
def test_alive_is_by_uid_and_exact(choices):
    columns, held, uid = Columns(), {}, 0
    for choice in choices:
        if choice < 20 or not held:
            uid += 1
            slot = columns.allocate({"uid": uid})
            assert slot not in held
            held[slot] = uid
        else:
            slot = sorted(held)[choice % len(held)]
            columns.release(ints([slot]))
            del held[slot]
    assert columns.alive().tolist() == sorted(held, key=held.get)
    assert len(columns) == len(held)


@pytest.mark.parametrize("count", [0, 1, 50, 64, 65, 1_000])
def test_restored_rows_stand_without_gaps_and_more_can_follow(count):
    columns = Columns()
    for uid in range(1, count + 11):
        columns.allocate({"uid": uid, "priority": float(uid)})
    columns.release(columns.alive()[::7][:10])
    saved = columns.rows(columns.alive())
    other = Columns()
    other.allocate({"uid": 99})
    other.restore(saved)
    kept = len(columns)
    assert other.alive().tolist() == list(range(kept))
    for name, column in other.rows(other.alive()).items():
        np.testing.assert_array_equal(column, saved[name], err_msg=name)
    for uid in range(10_000, 10_100):
        assert other.allocate({"uid": uid, "priority": 0.5}) == kept + uid - 10_000
    assert other.priority[:kept].tolist() == saved["priority"].tolist()
