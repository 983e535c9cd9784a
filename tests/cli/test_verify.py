"""verify: a whole file, a store in use, and every kind of damage."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest

from cli.looked_at import save
from observe.groups import CONFIG, fill, group
from reroll.store import FILE_NAME
from server.program import run


@pytest.fixture(params=["saved", "store"])
def place(request, tmp_path):
    save(tmp_path)
    return tmp_path / request.param


def change(place, statement, *values):
    with closing(sqlite3.connect(place / FILE_NAME, isolation_level=None)) as connection:
        assert connection.execute(statement, values).rowcount


def damage(place):
    """Return what `verify` says of what is damaged."""
    found = run("verify", str(place))
    assert found.exit_code == 1, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1].endswith("damaged")
    return found.stdout


def test_a_whole_buffer(place):
    found = run("verify", str(place))
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.rstrip().endswith("whole")
    told = json.loads(run("verify", str(place), "--json").stdout)
    assert told["is_whole"]
    assert told["problems"] == []
    assert told["groups"] >= 11
    assert told["payload_bytes"] > 0


async def test_a_store_in_use(tmp_path):
    async with CONFIG.model_copy(update={"store": tmp_path}).build() as buffer:
        await fill(buffer)
        async with buffer.lease({"math": 2}):
            await buffer.put(group(4), "math")
            found = await asyncio.to_thread(run, "verify", str(tmp_path))
    assert found.exit_code == 0, found.stdout + found.stderr


@pytest.mark.parametrize("byte", [0, 40, -1])
def test_an_altered_payload_is_named(place, byte):
    with closing(sqlite3.connect(place / FILE_NAME, isolation_level=None)) as connection:
        ((blob,),) = connection.execute("SELECT blob FROM payloads WHERE uid = 7").fetchall()
    altered = bytearray(blob)
    altered[byte] ^= 1
    change(place, "UPDATE payloads SET blob = ? WHERE uid = 7", bytes(altered))
    assert "the rollouts of groups 7 are damaged" in damage(place)


def test_an_altered_row_is_named(place):
    change(place, "UPDATE records SET crc = crc + 1 WHERE kind = 'row' AND key = 7")
    assert "the rows of groups 7 are damaged" in damage(place)


def test_a_missing_payload_is_named(place):
    change(place, "DELETE FROM payloads WHERE uid = 7")
    said = damage(place)
    assert "the rollouts of groups 7 are missing" in said


def test_a_missing_row_is_noticed(place):
    change(place, "DELETE FROM records WHERE kind = 'row' AND key = 7")
    assert "its row records" in damage(place)


def test_an_altered_state_is_noticed(place):
    change(place, "UPDATE records SET value = x'00' WHERE kind = 'state'")
    assert "the state record" in damage(place)


def test_a_truncated_file_is_damaged(place):
    file = place / FILE_NAME
    file.write_bytes(file.read_bytes()[: 1 << 15])
    assert "truncated" in damage(place)


def test_what_is_no_buffer_at_all(tmp_path):
    (tmp_path / FILE_NAME).write_text("hello " * 1000)
    found = run("verify", str(tmp_path))
    assert found.exit_code == 1
    assert "Traceback" not in found.stdout + found.stderr


def old_or_new(folder, number):
    """Return a saved buffer that says it has another format."""
    save(folder)
    with closing(sqlite3.connect(folder / "saved" / FILE_NAME, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    return str(folder / "saved")


@pytest.mark.parametrize("command", [("verify",), ("inspect",), ("show", "1")])
def test_a_newer_format_is_one_line(tmp_path, command):
    name, *rest = command
    found = run(name, old_or_new(tmp_path, 4), *rest)
    assert found.exit_code == 2
    (line,) = found.stderr.splitlines()
    assert "has format 4" in line
    assert "upgrade reroll" in line


@pytest.mark.parametrize("command", [("inspect",), ("show", "1")])
def test_a_format_from_before_the_first_is_one_line(tmp_path, command):
    name, *rest = command
    found = run(name, old_or_new(tmp_path, 0), *rest)
    assert found.exit_code == 2
    assert len(found.stderr.splitlines()) == 1
