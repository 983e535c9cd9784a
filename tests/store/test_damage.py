"""Altered or truncated anywhere: what is read is what was written, or `CorruptData` says otherwise."""

import random
import sqlite3

import pytest

from reroll.errors import CorruptData, UnsupportedFormat
from reroll.store import FILE_NAME, open_saved, open_store, write_snapshot
from store.samples import blob, change, contents, counted, start

CHANGES = counted([change(uid, 3000 + uid * 1000) for uid in range(40)])
FORMAT_BYTES = range(60, 64)
"""Where the header of a SQLite file has its user's version: a higher one is a newer format."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a checkpoint, and what is in it."""
    directory = tmp_path_factory.mktemp("whole")
    write_snapshot(directory, CHANGES)
    with open_saved(directory) as saved:
        return (directory / FILE_NAME).read_bytes(), contents(saved)


def content_or_none(path):
    """Return what is read, or None for `CorruptData`."""
    try:
        with open_saved(path) as saved:
            return contents(saved)
    except CorruptData:
        return None


def test_bytes_altered_anywhere(whole, tmp_path):
    data, expected = whole
    chance = random.Random(1)
    path = tmp_path / FILE_NAME
    found = 0
    # The header and the roots of the tables, where a byte decides about everything, and all the rest.
    places = [*range(100), *range(100, 400, 3), *(chance.randrange(len(data)) for _ in range(400))]
    for page in range(8):
        places += range(page * 32768, page * 32768 + 12)
    for place in places:
        altered = bytearray(data)
        altered[place] ^= chance.randrange(1, 256)
        path.write_bytes(altered)
        try:
            content = content_or_none(path)
        except UnsupportedFormat:
            assert place in FORMAT_BYTES
            continue
        assert content in (None, expected), f"byte {place}"
        found += content is None
    assert found > 300, "most bytes matter"


def test_a_page_in_place_of_another(whole, tmp_path):
    data, expected = whole
    chance = random.Random(2)
    path = tmp_path / FILE_NAME
    for _ in range(60):
        a, b = (chance.randrange(len(data) // 32768) * 32768 for _ in range(2))
        altered = bytearray(data)
        altered[a : a + 32768], altered[b : b + 32768] = data[b : b + 32768], data[a : a + 32768]
        path.write_bytes(altered)
        assert content_or_none(path) in (None, expected)


@pytest.mark.parametrize(("table", "leaf"), [("records", 10), ("payloads", 13)])
def test_a_cell_in_place_of_another(tmp_path, table, leaf):
    """Two pointers to one cell: each is whole and their number is right, but one is there twice and one is not."""
    write_snapshot(tmp_path, counted([change(uid, 100) for uid in range(10)]))
    path = tmp_path / FILE_NAME
    connection = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    (page,) = connection.execute(query, (table,)).fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    start_of_page = (page - 1) * 32768
    assert data[start_of_page] == leaf, "a leaf of a table"
    pointers = start_of_page + 8
    data[pointers + 6 : pointers + 8] = data[pointers + 8 : pointers + 10]
    path.write_bytes(data)
    assert content_or_none(tmp_path) is None


def test_zeros_in_place_of_a_page(whole, tmp_path):
    data, expected = whole
    path = tmp_path / FILE_NAME
    for start_of_page in range(0, len(data), 32768):
        altered = bytearray(data)
        altered[start_of_page : start_of_page + 32768] = bytes(32768)
        path.write_bytes(altered)
        assert content_or_none(path) in (None, expected)


def test_truncated_anywhere(whole, tmp_path):
    data, _ = whole
    chance = random.Random(3)
    path = tmp_path / FILE_NAME
    lengths = [0, 1, 15, 16, 99, 100, 511, 512, 513, 32767, 32768, 32769, len(data) - 1, len(data) - 32768]
    for length in [*lengths, *(chance.randrange(len(data)) for _ in range(50))]:
        path.write_bytes(data[:length])
        with pytest.raises(CorruptData, match=r"replay_buffer.*restore"):
            open_saved(path)
        with pytest.raises(CorruptData):
            open_store(tmp_path)


def test_no_database(tmp_path):
    (tmp_path / FILE_NAME).write_text("once upon a time " * 100)
    with pytest.raises(CorruptData, match="not a database"):
        open_saved(tmp_path)
    with pytest.raises(CorruptData):
        open_store(tmp_path)
    assert (tmp_path / FILE_NAME).read_text().startswith("once upon")


def altered_by(path, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records WHERE kind = 'row' AND key = 7",
        "DELETE FROM payloads WHERE uid = 7",
        "DELETE FROM records WHERE kind = 'lease' AND key = 7",
        "DELETE FROM records WHERE key = 'put 000039'",
        "DELETE FROM records WHERE kind = 'state'",
        "DELETE FROM records WHERE kind = 'commit'",
        "DELETE FROM records",
        "UPDATE records SET value = '{}' WHERE kind = 'commit'",
        "UPDATE records SET value = replace(value, 'completed', 'aborted') WHERE kind = 'row' AND key = 7",
        "UPDATE records SET value = CAST(value AS TEXT) WHERE kind = 'row' AND key = 7",
        "UPDATE records SET value = NULL WHERE kind = 'row' AND key = 7",
        "UPDATE records SET value = 7 WHERE kind = 'row' AND key = 7",
        "UPDATE records SET key = 1000 WHERE kind = 'row' AND key = 7",
        "UPDATE records SET crc = 0 WHERE kind = 'row' AND key = 7",
        "UPDATE payloads SET uid = 1000 WHERE uid = 7",
        "UPDATE payloads SET blob = (SELECT blob FROM payloads WHERE uid = 8) WHERE uid = 7",
        "UPDATE payloads SET blob = substr(blob, 1, 100) WHERE uid = 7",
        "UPDATE payloads SET blob = NULL WHERE uid = 7",
        "UPDATE payloads SET blob = 'text' WHERE uid = 7",
        "UPDATE payloads SET blob = zeroblob(1000) WHERE uid = 7",
        "UPDATE records SET value = x'00' WHERE kind = 'lease' AND key = 7",
        "UPDATE records SET kind = 'uses' WHERE kind = 'lease' AND key = 7",
        "UPDATE records SET key = '7' WHERE kind = 'lease' AND key = 7",
        "UPDATE records SET value = x'00' WHERE kind = 'state'",
        "INSERT INTO records VALUES ('state', 1, x'00', 0)",
        "PRAGMA user_version = 0",
        "PRAGMA application_id = 1",
    ],
)
def test_what_was_altered_by_hand(tmp_path, statement):
    write_snapshot(tmp_path, CHANGES)
    altered_by(tmp_path / FILE_NAME, statement)
    assert content_or_none(tmp_path) is None


def test_a_payload_that_is_missing_is_not_unknown(tmp_path):
    write_snapshot(tmp_path, CHANGES)
    altered_by(tmp_path / FILE_NAME, "DELETE FROM payloads WHERE uid = 7")
    with open_store(tmp_path) as store, pytest.raises(CorruptData, match="uid 7"):
        store.read([6, 7])


def test_an_altered_payload_is_found_by_its_uid(tmp_path):
    write_snapshot(tmp_path, CHANGES)
    altered_by(tmp_path / FILE_NAME, "UPDATE payloads SET blob = x'00' WHERE uid = 7")
    with open_saved(tmp_path) as saved:
        assert list(saved.payloads([8, 6])) == [blob(8, 11000), blob(6, 9000)]
        with pytest.raises(CorruptData, match="uid 7"):
            list(saved.payloads([8, 7]))


DYING = """
import os
from reroll.store import open_store
from store.samples import change, written
store = open_store(sys.argv[1])
written(store, *(change(uid) for uid in range(40)))
os._exit(0)
"""


def test_a_log_that_was_altered(tmp_path):
    """What a crash left in the log ends where it was altered: before that, whole commits; after it, nothing."""
    with start(DYING, tmp_path) as process:
        process.wait()
    log, chance = tmp_path / f"{FILE_NAME}-wal", random.Random(4)
    data, file = log.read_bytes(), (tmp_path / FILE_NAME).read_bytes()
    for _ in range(40):
        altered = bytearray(data)
        altered[chance.randrange(len(data))] ^= 1
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / FILE_NAME).write_bytes(file)
        log.write_bytes(altered[: chance.choice([len(data), chance.randrange(len(data))])])
        found = content_or_none(tmp_path)
        assert found is None or list(found["payloads"]) == list(range(len(found["payloads"])))
