"""A snapshot is written as a whole or not at all, in one file; a copy of a store is one."""

import threading

import pytest

from reroll.errors import SavedNotFound
from reroll.store import FILE_NAME, Change, copy_of, open_saved, open_store, write_snapshot
from store.samples import blob, change, contents, copy_to, gone, stored_keys, written


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_one_file_in_a_new_directory(tmp_path):
    directory = tmp_path / "new" / "and deep, with a # and a ?"
    write_snapshot(directory, [change(1), change(2)])
    assert names(directory) == [FILE_NAME]
    with open_saved(directory) as saved:
        assert list(contents(saved)["payloads"].values()) == [blob(1), blob(2)]
    assert names(directory) == [FILE_NAME], "reading leaves nothing behind"


def test_the_next_one_replaces_it(tmp_path):
    (tmp_path / "trainer.pt").write_bytes(b"somebody else's")
    write_snapshot(tmp_path, [change(1)])
    with open_saved(tmp_path) as old:
        write_snapshot(tmp_path, [change(2)])
        assert list(contents(old)["payloads"]) == [1], "who reads the old one goes on with it"
    with open_saved(tmp_path) as new:
        assert list(contents(new)["payloads"]) == [2]
    assert names(tmp_path) == [FILE_NAME, "trainer.pt"]


def test_nothing_to_save(tmp_path):
    write_snapshot(tmp_path, [])
    with open_saved(tmp_path) as saved:
        assert contents(saved) == {"records": {}, "payloads": {}}


class CodecError(Exception):
    """Somebody else's error."""


@pytest.mark.parametrize(
    "error", [CodecError("of the codec"), OSError("of the codec"), KeyboardInterrupt("of the codec")]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_in_the_changes_leaves_the_old_one(tmp_path, is_first, error):
    if not is_first:
        write_snapshot(tmp_path, [change(1)])

    def changes():
        for uid in range(2, 200):
            yield change(uid, 50_000)
        raise error

    with pytest.raises(type(error), match="of the codec"):
        write_snapshot(tmp_path, changes())
    if is_first:
        assert names(tmp_path) == []
        with pytest.raises(SavedNotFound):
            open_saved(tmp_path)
    else:
        assert names(tmp_path) == [FILE_NAME]
        with open_saved(tmp_path) as saved:
            assert list(contents(saved)["payloads"]) == [1]


def test_changes_are_consumed_one_by_one(tmp_path):
    alive = []

    class Payload(bytearray):
        def __init__(self, *args):
            super().__init__(*args)
            alive.append(1)

        def __del__(self):
            alive.pop()

    most = 0

    def changes():
        nonlocal most
        for uid in range(50):
            most = max(most, len(alive))
            yield Change(payloads=[(uid, Payload(1000))])

    write_snapshot(tmp_path, changes())
    assert most <= 2


def test_a_copy_is_of_the_moment_it_was_begun(tmp_path):
    with open_store(tmp_path / "store") as store:
        written(store, *(change(uid) for uid in range(20)))
        with store.begin_copy() as copy:
            written(store, *(change(uid) for uid in range(20, 40)), gone(3))
            changes = copy_of(copy, None, threading.Event())
            worker = threading.Thread(target=write_snapshot, args=(tmp_path / "copy", changes))
            worker.start()
            written(store, *(change(uid) for uid in range(40, 50)))
            worker.join()
        assert len(stored_keys(store)) == 49
    write_snapshot(tmp_path / "same", [change(uid) for uid in range(20)])
    with open_saved(tmp_path / "copy") as saved, open_saved(tmp_path / "same") as same:
        assert contents(saved) == contents(same)


def test_copies_while_writes_go_on_are_whole(tmp_path):
    with open_store(tmp_path / "store") as store:
        done = threading.Event()

        def write():
            for uid in range(300):
                one = change(uid, 500)
                if uid >= 10:
                    one.records += gone(uid - 10).records
                    one.payloads += gone(uid - 10).payloads
                store.write(one, lambda error: None)
            written(store, Change())
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        number = 0
        while not done.is_set() or number == 0:
            copy_to(store, tmp_path / "copy")
            number += 1
            with open_saved(tmp_path / "copy") as saved:
                found = contents(saved)
            uids = list(found["payloads"])
            assert [uid for uid, _ in found["records"].get("row", ())] == uids
            if uids:
                assert uids == list(range(max(0, uids[-1] - 9), uids[-1] + 1))
                assert found["records"]["state"] == [(0, b"state %d" % uids[-1])]
        writer.join()
