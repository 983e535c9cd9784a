"""Whatever is found in the place of a buffer's files, opening it raises typed errors only, and changes nothing."""

import os
import random
import sqlite3
from contextlib import suppress

import pytest

from reroll import ReplayBufferConfig, RerollError, Rollout, StoreFailed, open_readonly
from reroll.observe.verify import verify
from reroll.store import FILE_NAME

NAMES = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", f"{FILE_NAME}-commits", "replay_buffer.lock")


def _another_database(path, data):
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE rows (uid INTEGER PRIMARY KEY)")
    connection.commit()
    connection.close()


def _a_directory(path, data):
    path.unlink()
    path.mkdir()


def _without_permission(path, data):
    path.chmod(0)


WAYS = {
    "0 bytes": lambda path, data: path.write_bytes(b""),
    "random bytes": lambda path, data: path.write_bytes(random.Random(1).randbytes(max(len(data), 100))),
    "a random tail": lambda path, data: path.write_bytes(data[:200] + random.Random(2).randbytes(len(data))),
    "truncated": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "zeros": lambda path, data: path.write_bytes(bytes(len(data))),
    "a directory": _a_directory,
    "another database": _another_database,
    "without permission": _without_permission,
    "a link to nowhere": lambda path, data: (path.unlink(), path.symlink_to("nowhere/at/all")),
    "a link to itself": lambda path, data: (path.unlink(), path.symlink_to(path)),
}


def content(directory):
    return {
        path.name: path.read_bytes() if path.is_file() else None
        for path in directory.iterdir()
        if path.name not in (f"{FILE_NAME}-shm", "replay_buffer.lock")  # what readers and writers share
    }


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """Return the files of a buffer as a crash leaves them."""
    directory = tmp_path_factory.mktemp("left")
    buffer = ReplayBufferConfig(store=directory, sampler="fifo").build_blocking()
    for number in range(20):
        buffer.put([Rollout(prompt_ids=[1], response_ids=[number] * 900, status="completed")], "math")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    buffer.close()
    assert set(files) == set(NAMES)
    return files


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_there_instead_of_a_file(tmp_path, left_behind, name, way, on_corrupt):
    if way == "without permission" and os.geteuid() == 0:
        pytest.skip("the superuser may read everything")
    for file, data in left_behind.items():
        (tmp_path / file).write_bytes(data)
    WAYS[way](tmp_path / name, left_behind[name])
    before = content(tmp_path)
    for look in (open_readonly, verify):
        try:
            seen = look(tmp_path)
        except RerollError:
            continue
        if look is open_readonly:
            assert len(seen) == 20
            seen.close()
    assert content(tmp_path) == before
    config = ReplayBufferConfig(store=tmp_path, sampler="fifo", on_corrupt=on_corrupt)
    try:
        buffer = config.build_blocking()
    except RerollError as error:
        words = str(error)
    else:
        words = str(tmp_path)
        assert on_corrupt == "skip" or len(buffer) == 20
        with suppress(StoreFailed):
            buffer.close()
    assert str(tmp_path) in words
    if words != str(tmp_path) and on_corrupt == "raise":
        assert content(tmp_path) == before, "what cannot be opened is left as it is"


def test_each_page_of_a_closed_buffer_overwritten(tmp_path):
    config = ReplayBufferConfig(store=tmp_path, sampler="fifo")
    with config.build_blocking() as buffer:
        for number in range(20):
            buffer.put([Rollout(prompt_ids=[1], response_ids=[number] * 9000, status="completed")], "math")
    file = tmp_path / FILE_NAME
    data, told = file.read_bytes(), []
    for page in range(0, len(data), 32768):
        for start in (page, page + 100, page + 32000):
            file.write_bytes(data[:start] + random.Random(start).randbytes(700) + data[start + 700 :])
            try:
                config.build_blocking().close()
            except RerollError as error:
                told.append(str(error))
    assert told
    assert all(str(file) in words for words in told)
