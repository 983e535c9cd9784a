"""Files of another format or kind are refused, and nothing in a file is ever run."""

import sqlite3

import pytest

from reroll.errors import CorruptData, UnsupportedFormat
from reroll.store import FILE_NAME, open_saved, open_store, write_checkpoint
from store.samples import change


def altered_by(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_a_newer_format(tmp_path, opener):
    write_checkpoint(tmp_path, [change(1)])
    altered_by(tmp_path / FILE_NAME, "PRAGMA user_version = 3; CREATE TABLE more (x)")
    with pytest.raises(UnsupportedFormat, match=f"{FILE_NAME} has format 3.*upgrade"):
        opener(tmp_path)


@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_a_file_of_another_application(tmp_path, opener):
    altered_by(tmp_path / FILE_NAME, "CREATE TABLE songs (name)")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(UnsupportedFormat, match="another application"):
        opener(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


HOSTILE = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON payloads BEGIN DELETE FROM rows; END",
    "view": "CREATE VIEW v AS SELECT load_extension('evil')",
    "view in place of a table": "DROP TABLE state; CREATE VIEW state AS SELECT 1 AS id, x'00' AS value, 0 AS crc",
    "another table": "CREATE TABLE more (x)",
    "index": "CREATE INDEX i ON rows (abs(uses))",
    "generated column": "DROP TABLE state; CREATE TABLE state (id INTEGER PRIMARY KEY, value BLOB, crc AS (abs(id)))",
    "another column": "ALTER TABLE rows ADD COLUMN more",
    "virtual table": "CREATE VIRTUAL TABLE f USING fts5(x)",
    "statistics": "ANALYZE",
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("opener", [open_saved, open_store])
def test_other_tables_are_refused(tmp_path, script, opener):
    write_checkpoint(tmp_path, [change(1)])
    try:
        altered_by(tmp_path / FILE_NAME, script)
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(CorruptData, match="tables"):
        opener(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_schema_that_was_written_by_hand(tmp_path):
    write_checkpoint(tmp_path, [change(1)])
    script = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE rows (' WHERE name = 'rows'"
    altered_by(tmp_path / FILE_NAME, script)
    with pytest.raises(CorruptData):
        open_saved(tmp_path)


def test_the_file_says_what_it_is(tmp_path):
    write_checkpoint(tmp_path, [change(1)])
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("SELECT value FROM about WHERE name = 'kind'").fetchone() == (
        "reroll replay buffer",
    )
    assert connection.execute("PRAGMA application_id").fetchone() == (0x5265726C,)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
