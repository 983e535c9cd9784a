"""What was written is read, from a durable store and from a checkpoint, whatever the changes were."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.errors import Closed, StoreFailed, UnknownUid
from reroll.store import FILE_NAME, Change, open_saved, open_store, write_snapshot
from store.samples import blob, change, contents, copy_to, gone, written

INT64 = st.integers(-(2**63), 2**63 - 1)
UIDS = st.integers(0, 9)
KEYS = st.one_of(INT64, st.text(max_size=3), st.binary(max_size=3))
RECORDS = st.tuples(st.sampled_from(["put_id", "lease"]), KEYS, st.one_of(st.none(), st.binary(max_size=5)))
PAYLOADS = st.tuples(UIDS, st.none() | st.binary(max_size=5))
CHANGES = st.builds(Change, records=st.lists(RECORDS, max_size=5), payloads=st.lists(PAYLOADS, max_size=3))
RANK = {int: 0, str: 1, bytes: 2}


class Model:
    """The same in dicts."""

    def __init__(self, changes):
        self.records, self.payloads = {"put_id": {}, "lease": {}}, {}
        for one in changes:
            for kind, key, value in one.records:
                self.records[kind][key] = value
            self.payloads |= dict(one.payloads)
        self.payloads = {uid: blob for uid, blob in self.payloads.items() if blob is not None}

    def of(self, kind):
        """Return the records of a kind in the order of SQLite: numbers, text by its bytes, bytes."""
        found = [(key, value) for key, value in self.records[kind].items() if value is not None]
        return sorted(
            found, key=lambda one: (RANK[type(one[0])], one[0].encode() if type(one[0]) is str else one[0])
        )


def agree(reader, model):
    assert dict(reader.all_payloads()) == model.payloads
    assert list(reader.payloads(model.payloads)) == list(model.payloads.values())
    for kind in model.records:
        assert list(reader.records(kind)) == model.of(kind)
        for key, value in model.of(kind):
            assert reader.record(kind, key) == value


@given(changes=st.lists(CHANGES, max_size=6), queued=st.booleans())
def test_any_changes(changes, queued, tmp_path_factory):
    directory, model = tmp_path_factory.mktemp("any"), Model(changes)
    if changes:
        changes[-1].totals = {kind: len(model.of(kind)) for kind in model.records}
    with open_store(directory / "store") as store:
        if queued:
            written(store, *changes)
        else:
            for one in changes:
                written(store, one)
        assert store.read(list(model.payloads)) == list(model.payloads.values())
        with store.reader() as reader:
            agree(reader, model)
        copy_to(store, directory / "copy")
    write_snapshot(directory / "snapshot", changes)
    for name in ("store", "copy", "snapshot"):
        with open_saved(directory / name) as saved:
            agree(saved, model)
    with open_store(directory / "store") as store, store.reader() as reader:
        agree(reader, model)


def test_a_record_that_is_not_there(tmp_path):
    write_snapshot(tmp_path, [change(1)])
    with open_saved(tmp_path) as saved, pytest.raises(KeyError):
        saved.record("lease", 2)


def test_any_buffer_is_a_payload(tmp_path):
    data = bytes(range(256))
    payloads = [
        (1, data),
        (2, bytearray(data)),
        (3, memoryview(data)[10:20]),
        (4, memoryview(data).cast("Q")),
    ]
    with open_store(tmp_path) as store:
        written(store, Change(payloads=payloads))
        assert store.read([4, 3, 2, 1]) == [data, data[10:20], data, data]


def test_a_payload_that_is_not_there(tmp_path):
    with open_store(tmp_path) as store:
        written(store, change(1), gone(1))
        with pytest.raises(UnknownUid, match="uid 1"):
            store.read([1])
    with open_saved(tmp_path) as saved, pytest.raises(UnknownUid):
        next(saved.payloads([1]))


def test_the_file_itself_can_be_named(tmp_path):
    write_snapshot(tmp_path, [change(1)])
    with open_saved(tmp_path / FILE_NAME) as a, open_saved(str(tmp_path)) as b:
        assert contents(a) == contents(b)


def test_a_store_in_use_is_read_beside_it(tmp_path):
    with open_store(tmp_path) as store:
        written(store, change(1))
        with open_saved(tmp_path) as saved:
            before = contents(saved)
            written(store, change(2), gone(1))
            assert contents(saved) == before
        with open_saved(tmp_path) as saved:
            assert list(contents(saved)["payloads"]) == [2]


def test_reading_by_many_threads(tmp_path):
    with open_store(tmp_path) as store:
        written(store, *(change(uid) for uid in range(20)))
        wrong = []

        def read():
            for first in range(15):
                uids = [first + 4, first, first + 2]
                if store.read(uids) != [blob(uid) for uid in uids]:
                    wrong.append(first)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        written(store, *(change(uid) for uid in range(20, 60)))
        for thread in threads:
            thread.join()
        assert not wrong


def test_after_close(tmp_path):
    store = open_store(tmp_path)
    store.write(change(1), lambda error: None)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.write(change(2), lambda error: None)
    with pytest.raises(Closed):
        store.read([1])
    with pytest.raises(Closed):
        store.begin_copy()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    with open_saved(tmp_path) as saved:
        assert list(contents(saved)["payloads"]) == [1], "what was queued is written first"


def test_what_is_no_record_fails_the_store(tmp_path):
    with open_store(tmp_path) as store:
        written(store, change(1))
        with pytest.raises(StoreFailed):
            written(store, Change(records=[("lease", 1, "text")]))
        assert store.read([1]) == [blob(1)]


def test_a_checkpoint_can_go_on_as_a_store(tmp_path):
    write_snapshot(tmp_path, [change(1)])
    with open_store(tmp_path) as store:
        written(store, change(2))
    with open_saved(tmp_path) as saved:
        assert list(contents(saved)["payloads"]) == [1, 2]
