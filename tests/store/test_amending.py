"""Rows that changed are kept together in facts until they are written in place; whoever reads sees the last of each."""

import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from reroll.errors import CorruptData
from reroll.store import FILE_NAME, Change, amending, open_saved, open_store, seals
from reroll.store.amending import AMENDED, write_amended
from store.samples import change, contents, row, written


def ask(directory, statement, *values):
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def facts(directory):
    return ask(directory, "SELECT key, value FROM facts WHERE kind = ?", AMENDED)


def rows_of(source):
    return {values[0]: values for values in source.rows()}


def some(chance, uids, most):
    return chance.sample(sorted(uids), min(len(uids), chance.randrange(most)))


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_what_was_written_last(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(amending, "MAX_ROWS", 60)
    chance, here, gone, last = random.Random(seed), {}, set(), 0
    directory = tmp_path / "0"
    store = open_store(directory)

    def values(uid):
        return row(uid, uses=chance.randrange(1 << 40), reward_mean=0.5)

    for turn in range(60):
        new = range(last + 1, last + 1 + chance.randrange(8))
        last = max(new, default=last)
        changed = {uid: values(uid) for uid in (*new, *some(chance, here, 40), *some(chance, gone, 3))}
        leaving = set(some(chance, here.keys() - changed, 12))
        written(store, Change(rows=list(changed.values()), gone=sorted(leaving)))
        here = {uid: known for uid, known in (here | changed).items() if uid not in leaving}
        gone = (gone | leaving) - here.keys()
        with open_saved(directory) as saved:
            assert rows_of(saved) == here
            assert sum(len(rows) for _, rows in saved.amended()) <= 60 + 40
        if turn % 15 == 14:  # as after a crash: nobody has closed it
            left, directory = directory, tmp_path / str(turn)
            shutil.copytree(left, directory)
            store.close()
            store = open_store(directory)
            assert rows_of(store) == here
    store.close()
    with open_saved(directory) as saved:
        assert rows_of(saved) == here


def test_what_is_closed_or_copied_has_them_in_place(tmp_path):
    many = range(1, 31)
    with open_store(tmp_path / "store") as store:
        written(store, *(change(uid) for uid in many))
        written(store, Change(rows=[row(uid, uses=5, reward_mean=0.5) for uid in many]))
        assert len(facts(tmp_path / "store")) == 1
        assert ask(tmp_path / "store", "PRAGMA user_version") == [(2,)]
        store.copy_to(tmp_path / "copy")
        seen = rows_of(store)
    for name in ("store", "copy"):
        assert facts(tmp_path / name) == []
        assert ask(tmp_path / name, "PRAGMA user_version") == [(1,)]
        assert ask(tmp_path / name, "SELECT DISTINCT uses FROM rows") == [(5,)]
        with open_saved(tmp_path / name) as saved:
            assert rows_of(saved) == seen
    with open_saved(tmp_path / "store") as one, open_saved(tmp_path / "copy") as other:
        assert contents(one) == contents(other)


def test_a_fact_goes_with_the_last_of_its_rows(tmp_path):
    many = range(1, 31)
    with open_store(tmp_path) as store:
        written(store, Change(rows=[row(uid) for uid in many]))
        written(store, Change(rows=[row(uid, uses=5) for uid in many]))
        written(store, Change(gone=[*range(1, 20)]))
        assert len(facts(tmp_path)) == 1
        written(store, Change(rows=[row(20, uses=6)]))
        assert len(facts(tmp_path)) == 2, "what is in a fact comes in a later one, also by itself"
        written(store, Change(gone=[*range(20, 31)]))
        assert facts(tmp_path) == []
        assert rows_of(store) == {}


def test_few_rows_are_written_in_place(tmp_path):
    with open_store(tmp_path) as store:
        written(store, Change(rows=[row(uid) for uid in range(1, 31)]))
        written(store, Change(rows=[row(uid, uses=5) for uid in range(1, 4)]))
        assert facts(tmp_path) == []
        assert len(ask(tmp_path, "SELECT uid FROM rows WHERE uses = 5")) == 3


@pytest.fixture
def left_behind(tmp_path):
    """Return the directory of a store with amended rows that nobody has closed."""
    with open_store(tmp_path / "store") as store:
        written(store, Change(rows=[row(uid) for uid in range(1, 31)]))
        written(store, Change(rows=[row(uid, uses=5) for uid in range(1, 31)]))
        shutil.copytree(tmp_path / "store", tmp_path / "left")
    return tmp_path / "left"


def put_value(directory, value):
    ((key, _),) = facts(directory)
    crc = seals.seal_of(AMENDED, key, value)
    ask(directory, "UPDATE facts SET value = ?, crc = ? WHERE kind = ?", value, crc, AMENDED)


DAMAGES = {
    "altered": lambda place: ask(place, "UPDATE facts SET value = value || x'00'"),
    "missing": lambda place: ask(place, "DELETE FROM facts"),
    "no rows": lambda place: put_value(place, b"\x93\x01\x02\x03"),
    "a row of other types": lambda place: put_value(place, write_amended([("one",) * len(row(1))])),
    "a row that is cut": lambda place: put_value(place, write_amended([row(1)[:-1]])),
    "another key": lambda place: ask(
        place, "UPDATE facts SET key = 'x', crc = ?", seals.seal_of(AMENDED, "x", facts(place)[0][1])
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_fact_is_found(left_behind, damage):
    damage(left_behind)
    with open_saved(left_behind) as saved, pytest.raises(CorruptData, match=FILE_NAME):
        rows_of(saved)
    with pytest.raises(CorruptData, match=FILE_NAME):
        open_store(left_behind)
