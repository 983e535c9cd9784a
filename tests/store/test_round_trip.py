"""What was written is read, from a durable store and from a checkpoint, whatever the changes were."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll.errors import Closed, StoreFailed, UnknownUid
from reroll.store import COLUMNS, FILE_NAME, Change, open_saved, open_store, write_checkpoint
from store.samples import blob, change, contents, row, written

INT64 = st.integers(-(2**63), 2**63 - 1)
UIDS = st.integers(0, 9)
KEYS = st.one_of(INT64, st.text(max_size=3), st.binary(max_size=3))
FACTS = st.tuples(st.sampled_from(["put_id", "lease"]), KEYS, st.one_of(st.none(), st.binary(max_size=5)))
ROWS = st.builds(
    lambda uid, number, real, text, data: row(
        uid, version=number, priority=real, reward_mean=real, task=text, tags=text or None, members=data
    ),
    *(UIDS, INT64, st.floats(), st.text(max_size=5), st.binary(max_size=5)),
)
PAYLOADS = st.tuples(UIDS, st.binary(max_size=5))
CHANGES = st.builds(
    Change,
    rows=st.lists(ROWS, max_size=3),
    gone=st.lists(UIDS, max_size=2),
    payloads=st.lists(PAYLOADS, max_size=3),
    facts=st.lists(FACTS, max_size=5),
    state=st.none() | st.binary(max_size=5),
)


class Model:
    """The same in dicts."""

    def __init__(self, changes):
        self.rows, self.payloads, self.facts, self.state = {}, {}, {"put_id": {}, "lease": {}}, None
        for one in changes:
            self.rows |= {row[0]: row for row in one.rows}
            self.payloads |= dict(one.payloads)
            for uid in one.gone:
                self.rows.pop(uid, None)
                self.payloads.pop(uid, None)
            for kind, key, value in one.facts:
                if value is None:
                    self.facts[kind].pop(key, None)
                else:
                    self.facts[kind][key] = value
            if one.state is not None:
                self.state = one.state


def comparable(rows):
    # SQLite knows no NaN in a priority and no negative zero; an engine has neither.
    return [tuple("nan" if value is None or value != value else value for value in row) for row in rows]  # noqa: PLR0124


def agree(saved, model):
    assert comparable(saved.rows()) == comparable(row for _, row in sorted(model.rows.items()))
    assert dict(saved.all_payloads()) == model.payloads
    assert list(saved.payloads(model.payloads)) == list(model.payloads.values())
    assert saved.state == model.state
    for kind, facts in model.facts.items():
        assert list(saved.facts(kind)) == list(facts.items())


@given(changes=st.lists(CHANGES, max_size=6), queued=st.booleans())
def test_any_changes(changes, queued, tmp_path_factory):
    # A priority that is NaN is refused before it comes here.
    for one in changes:
        one.rows = [row for row in one.rows if not math.isnan(row[COLUMNS.index("priority")])]
    directory, model = tmp_path_factory.mktemp("any"), Model(changes)
    with open_store(directory / "store") as store:
        if queued:
            written(store, *changes)
        else:
            for one in changes:
                written(store, one)
        assert store.read(list(model.payloads)) == list(model.payloads.values())
        assert store.state == model.state
        store.copy_to(directory / "copy")
    write_checkpoint(directory / "checkpoint", changes)
    for name in ("store", "copy", "checkpoint"):
        with open_saved(directory / name) as saved:
            agree(saved, model)
    with open_store(directory / "store") as store:
        assert comparable(store.rows()) == comparable(row for _, row in sorted(model.rows.items()))
        assert list(store.facts("put_id")) == list(model.facts["put_id"].items())


def test_columns():
    assert COLUMNS[0] == "uid"
    assert len(COLUMNS) == len(row(1)) == 29


def test_nan_comes_back(tmp_path):
    write_checkpoint(
        tmp_path, [Change(rows=[row(1, reward_mean=math.nan, reward_std=math.nan, priority=-0.0)])]
    )
    with open_saved(tmp_path) as saved:
        (back,) = saved.rows()
    assert math.isnan(back[COLUMNS.index("reward_mean")])
    assert math.isnan(back[COLUMNS.index("reward_std")])


def test_facts_keep_their_place(tmp_path):
    with open_store(tmp_path) as store:
        written(store, Change(facts=[("put_id", key, b"1") for key in "cab"]))
        written(store, Change(facts=[("put_id", "a", b"2"), ("put_id", "c", None), ("put_id", "c", b"3")]))
        assert list(store.facts("put_id")) == [("a", b"2"), ("b", b"1"), ("c", b"3")]


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
        written(store, change(1), Change(gone=[1]))
        with pytest.raises(UnknownUid, match="uid 1"):
            store.read([1])
    with open_saved(tmp_path) as saved, pytest.raises(UnknownUid):
        next(saved.payloads([1]))


def test_the_file_itself_can_be_named(tmp_path):
    write_checkpoint(tmp_path, [change(1)])
    with open_saved(tmp_path / FILE_NAME) as a, open_saved(str(tmp_path)) as b:
        assert contents(a) == contents(b)


def test_a_store_in_use_is_read_beside_it(tmp_path):
    with open_store(tmp_path) as store:
        written(store, change(1))
        with open_saved(tmp_path) as saved:
            before = contents(saved)
            written(store, change(2), Change(gone=[1]))
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


def test_what_is_no_row_fails_the_store(tmp_path):
    with open_store(tmp_path) as store:
        written(store, change(1))
        with pytest.raises(StoreFailed):
            written(store, Change(rows=[("no", "row")]))
        assert store.read([1]) == [blob(1)]


def test_a_checkpoint_can_go_on_as_a_store(tmp_path):
    write_checkpoint(tmp_path, [change(1)])
    with open_store(tmp_path) as store:
        written(store, change(2))
    with open_saved(tmp_path) as saved:
        assert list(contents(saved)["payloads"]) == [1, 2]
