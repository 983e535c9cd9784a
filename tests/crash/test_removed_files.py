"""Files that are removed or replaced under an open buffer: it stops before it acknowledges anything more."""

import os
import shutil

import pytest

from crash.lives import end, order, start
from crash.numbered import config, describe, group, task_of
from reroll import StoreFailed, StoreLocked
from reroll.store import FILE_NAME

LOCK = "replay_buffer.lock"


class Holder:
    """Another process that has the buffer open, and puts or takes when it is asked to."""

    def __init__(self, directory):
        self._process = start("crash.holder")
        self._told = order(self._process, store=str(directory))
        assert next(self._told) == {"open": True}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        end(self._process)

    def ask(self, does, number=None):
        """Return what a call gave, or the name of its error and the message."""
        self._process.stdin.write(f'{{"does": "{does}", "number": {number or 0}}}\n')
        self._process.stdin.flush()
        told = next(self._told)
        return told.get("result", (told.get("error"), told.get("words")))


async def numbers_in(buffer):
    rows = await buffer.query({})
    groups = await buffer.peek([row.uid for row in rows])
    return [describe(rollouts, row.status.value)[0] for row, rollouts in zip(rows, groups, strict=True)]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-commits"])
@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_file_that_is_gone_takes_no_puts(tmp_path, suffix, way):
    with Holder(tmp_path) as holder:
        assert holder.ask("put", 0) == 1
        file = tmp_path / f"{FILE_NAME}{suffix}"
        if way == "replaced":
            shutil.copyfile(file, tmp_path / "copy")
            (tmp_path / "copy").replace(file)
        else:
            file.unlink()
        for _ in range(2):
            error, words = holder.ask("put", 1)
            assert error == "StoreFailed"
            assert str(file) in words
            assert "open the buffer again" in words


async def test_all_that_was_acknowledged_is_there_when_the_log_was_removed_and_the_buffer_closed(tmp_path):
    with Holder(tmp_path) as holder:
        assert [holder.ask("put", number) for number in range(3)] == [1, 2, 3]
        (tmp_path / f"{FILE_NAME}-wal").unlink()
        assert holder.ask("put", 3)[0] == "StoreFailed"
        holder.ask("close")
    buffer = config(tmp_path).build()
    assert await numbers_in(buffer) == [0, 1, 2]
    await buffer.close()


def test_a_directory_that_is_gone_takes_no_puts(tmp_path):
    directory = tmp_path / "b"
    with Holder(directory) as holder:
        assert holder.ask("put", 0) == 1
        directory.rename(tmp_path / "moved")
        assert holder.ask("put", 1)[0] == "StoreFailed"


async def test_a_lock_file_that_was_removed_lets_one_writer_go_on(tmp_path):
    with Holder(tmp_path) as first:
        assert [first.ask("put", number) for number in (0, 3, 5)] == [1, 2, 3]
        assert first.ask("take") == [0]
        (tmp_path / LOCK).unlink()
        second = config(tmp_path).build()
        assert await second.put(group(8, 1, "completed"), task_of(8)) == 4
        for does in ("put", "take", "put"):
            error, words = first.ask(does, 10)
            assert error == "StoreFailed"
            assert "another process may write there now" in words
        first.ask("close")
        with pytest.raises(StoreLocked):  # the lock file of the second is still there
            config(tmp_path).build()
        taken, _ = await second.take_batch({"math": 9})
        assert [describe(one, "completed")[0] for one in taken["math"]] == [3, 5, 8], (
            "and 0 is not trained twice"
        )
        assert await second.put(group(13, 1, "completed"), task_of(13)) == 5
        await second.close()
    third = config(tmp_path).build()
    assert await numbers_in(third) == [13]
    await third.close()


async def test_a_writer_finds_the_commits_of_another(tmp_path):
    """Also where the lock file is its own again: the number of the last commit is not."""
    with Holder(tmp_path) as first:
        assert first.ask("put", 0) == 1
        os.link(tmp_path / LOCK, tmp_path / "kept")
        (tmp_path / LOCK).unlink()
        second = config(tmp_path).build()
        assert await second.put(group(3, 1, "completed"), task_of(3)) == 2
        (tmp_path / "kept").replace(tmp_path / LOCK)
        error, words = first.ask("put", 5)
        assert error == "StoreFailed"
        assert "was written by another process" in words
        with pytest.raises(StoreFailed, match=LOCK):
            await second.put(group(5, 1, "completed"), task_of(5))
        with pytest.raises(StoreFailed):
            await second.close()
    third = config(tmp_path).build()
    assert await numbers_in(third) == [0, 3]
    await third.close()
