"""Files of another format or kind are refused, and nothing in a file is ever run."""

import contextlib
import sqlite3

import pytest

from reroll.errors import CorruptData, UnsupportedFormat
from reroll.store import COLUMNS, FILE_NAME, open_saved, open_store, write_snapshot
from store.samples import change


def altered_by(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_a_newer_format(tmp_path, opener):
    write_snapshot(tmp_path, [change(1)])
    altered_by(tmp_path / FILE_NAME, "PRAGMA user_version = 4; CREATE TABLE more (x)")
    with pytest.raises(UnsupportedFormat, match=f"{FILE_NAME} has format 4.*upgrade"):
        opener(tmp_path)


@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_an_older_format(tmp_path, opener):
    altered_by(
        tmp_path / FILE_NAME,
        f"CREATE TABLE rows (uid); PRAGMA user_version = 2; PRAGMA application_id = {0x5265726C}",
    )
    with pytest.raises(UnsupportedFormat, match=f"{FILE_NAME} has format 2.*new directory"):
        opener(tmp_path)


@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_a_file_of_another_application(tmp_path, opener):
    altered_by(tmp_path / FILE_NAME, "CREATE TABLE songs (name)")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(UnsupportedFormat, match="another application"):
        opener(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


HOSTILE = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON payloads BEGIN DELETE FROM records; END",
    "another view of groups": "DROP VIEW groups; CREATE VIEW groups AS SELECT load_extension('evil')",
    "view": "CREATE VIEW v AS SELECT load_extension('evil')",
    "view in place of a table": "DROP TABLE payloads; CREATE VIEW payloads AS SELECT 1 AS uid, 0 AS crc, x'00' AS blob",
    "another table": "CREATE TABLE more (x)",
    "index": "CREATE INDEX i ON records (abs(crc))",
    "generated column": "DROP TABLE payloads; CREATE TABLE payloads (uid INTEGER PRIMARY KEY, blob BLOB, crc AS (abs(uid)))",
    "another column": "ALTER TABLE records ADD COLUMN more",
    "virtual table": "CREATE VIRTUAL TABLE f USING fts5(x)",
    "statistics": "ANALYZE",
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_other_tables_are_refused(tmp_path, script, opener):
    write_snapshot(tmp_path, [change(1)])
    try:
        altered_by(tmp_path / FILE_NAME, script)
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(CorruptData, match="tables"):
        opener(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_schema_that_was_written_by_hand(tmp_path):
    write_snapshot(tmp_path, [change(1)])
    script = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE records (' WHERE name = 'records'"
    altered_by(tmp_path / FILE_NAME, script)
    with pytest.raises(CorruptData):
        open_saved(tmp_path)


def test_the_file_says_what_it_is(tmp_path):
    write_snapshot(tmp_path, [change(1)])
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("PRAGMA application_id").fetchone() == (0x5265726C,)
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_the_view_shows_rows(tmp_path):
    write_snapshot(tmp_path, [change(1), change(2)])
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        found = connection.execute("SELECT * FROM groups")
        assert [name for name, *_ in found.description] == list(COLUMNS[:-1])
        assert [row[:4] for row in found] == [
            (1, "task 1", "completed", "pool"),
            (2, "task 2", "completed", "pool"),
        ]
        query = "SELECT uid FROM groups WHERE group_id = 'group' AND priority > 0.2"
        assert connection.execute(query).fetchall() == [(2,)]
