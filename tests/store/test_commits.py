"""Changes that queue up share a commit, in order; what `sync` says reaches SQLite."""

import threading

import pytest

from reroll.store import ROW, Change, open_saved, open_store
from reroll.store import durable as durable_module
from store.samples import change, gone, keys, stored_keys, written


class Gate:
    """An acknowledgement that keeps the writer's thread until it is opened."""

    def __init__(self):
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, error):
        self.reached.set()
        assert self.opened.wait(60)


def test_what_queues_up_shares_a_commit(tmp_path):
    with open_store(tmp_path) as store:
        gate, told = Gate(), []
        store.write(change(0), gate)
        assert gate.reached.wait(60)
        assert store.commits == 1
        for uid in range(1, 101):
            store.write(change(uid, 100), lambda error, uid=uid: told.append((uid, error, store.commits)))
        assert told == [], "nothing is acknowledged before it is committed"
        gate.opened.set()
        written(store, Change(records=[("state", 0, b"last")]))
        assert told == [(uid, None, 2) for uid in range(1, 101)], "one commit, acknowledged in order after it"
        with store.reader() as reader:
            assert reader.record("state", 0) == b"last"


def test_a_long_queue_is_committed_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(durable_module, "COMMIT_BYTES", 10_000)
    with open_store(tmp_path) as store:
        gate = Gate()
        store.write(change(0), gate)
        assert gate.reached.wait(60)
        changes = [change(uid, 1000) for uid in range(1, 51)]
        done = threading.Event()
        for one in changes:
            store.write(one, lambda error: None)
        store.write(Change(), lambda error: done.set())
        gate.opened.set()
        assert done.wait(60)
        assert 6 <= store.commits <= 8


def test_the_last_change_wins(tmp_path):
    with open_store(tmp_path) as store:
        gate = Gate()
        store.write(Change(), gate)
        assert gate.reached.wait(60)
        for number in range(10):
            store.write(Change(records=[("lease", 1, b"%d" % number)]), lambda error: None)
        store.write(change(2), lambda error: None)
        store.write(gone(2, 3), lambda error: None)
        gate.opened.set()
        written(store, change(3))
        with store.reader() as reader:
            assert list(reader.records("lease")) == [(1, b"9"), (2, b""), (3, b"")]
            assert keys(reader) == reader.payload_uids() == [3]


def test_an_acknowledged_change_is_seen_by_others(tmp_path):
    with open_store(tmp_path) as store:
        for uid in range(5):
            written(store, change(uid))
            with open_saved(tmp_path) as saved:
                assert len(list(saved.records(ROW))) == uid + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_acknowledgement_that_raises_stops_nobody(tmp_path):
    def careless(error):
        raise LookupError("a mistake in the callback")

    with open_store(tmp_path) as store:
        store.write(change(1), careless)
        written(store, change(2))
        assert store.error is None


def test_closing_from_an_acknowledgement(tmp_path):
    store = open_store(tmp_path)
    told = threading.Event()
    store.write(change(1), lambda error: (store.close(), told.set())[0])
    assert told.wait(60)
    store.close()
    with open_store(tmp_path) as again:
        assert stored_keys(again) == [1]


@pytest.mark.parametrize(("sync", "level"), [("os", 1), ("disk", 2)])
def test_sync(tmp_path, sync, level):
    with open_store(tmp_path, sync=sync) as store:
        written(store, change(1))
        pragmas = {
            name: store._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "page_size", "trusted_schema", "secure_delete")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": level,
        "page_size": 32768,
        "trusted_schema": 0,
        "secure_delete": 0,
    }
