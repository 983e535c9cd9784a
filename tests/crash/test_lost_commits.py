"""What was acknowledged can be counted: a log, a file or a count of commits that was damaged never hides a loss."""

import random
import shutil
import subprocess
import sys
import warnings

import pytest

from crash.lives import end, order, start
from crash.numbered import config, describe, group, task_of
from reroll import CorruptData, RerollError, SavedNotFound, open_readonly
from reroll.observe.verify import verify
from reroll.store import FILE_NAME

PUTS = 50
LOG, MARKER = f"{FILE_NAME}-wal", f"{FILE_NAME}-commits"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return the files of a buffer whose process was killed when it had acknowledged 50 puts."""
    directory = tmp_path_factory.mktemp("killed")
    process = start("crash.saver")
    assert next(order(process, does="hold", store=str(directory), groups=PUTS)) == {"ready": PUTS}
    process.kill()
    end(process)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def laid_out(directory, files):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


async def numbers_in(buffer):
    rows = await buffer.query({})
    groups = await buffer.peek([row.uid for row in rows])
    return [describe(rollouts, row.status.value)[0] for row, rollouts in zip(rows, groups, strict=True)]


async def judge(directory, files):
    """Open damaged files; return whether all is there, after a check that a loss is told wherever it can be seen."""
    told = {}
    for name, look in {
        "read only": lambda: open_readonly(directory),
        "built": config(directory).build,
    }.items():
        laid_out(directory, files)
        try:
            whole = verify(directory).is_whole
        except (RerollError, SavedNotFound):
            whole = None  # nothing was found out
        buffer = None
        try:
            buffer = look()
            if name == "read only":
                rows = buffer.query({})
                found = [describe(r, "completed")[0] for r in buffer.peek([row.uid for row in rows])]
            else:
                found = await numbers_in(buffer)
        except SavedNotFound:
            assert name == "read only"
            found, words = None, f"{FILE_NAME}: restore"
        except CorruptData as error:
            found, words = None, str(error)
        finally:
            if buffer is not None:
                buffer.close() if name == "read only" else await buffer.close()
        assert found is not None or (FILE_NAME in words and ("restore" in words or "delete" in words)), words
        assert found in (None, list(range(PUTS))), f"{name}: {len(found)} of {PUTS} groups, and no error"
        assert not whole or found is not None, "verify says whole"
        told[name] = found is not None
    return told["built"]


async def test_all_is_there_after_a_kill(killed, tmp_path):
    assert await judge(tmp_path / "b", killed)
    assert verify(laid_out(tmp_path / "c", killed)).is_whole


@pytest.mark.parametrize(
    "removed",
    [{LOG}, {MARKER}, {FILE_NAME}, {LOG, MARKER}, {LOG, MARKER, f"{FILE_NAME}-shm"}, {FILE_NAME, LOG}],
)
async def test_files_that_were_removed(killed, tmp_path, removed):
    files = {name: data for name, data in killed.items() if name not in removed}
    assert not await judge(tmp_path / "b", files)


def damaged(files, name, chance):
    """Return files of which one was cut or altered in a few places."""
    data = bytearray(files[name])
    if chance.random() < 0.5:
        del data[chance.randrange(len(data)) :]
    else:
        for _ in range(chance.choice([1, 1, 8])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return {**files, name: bytes(data)}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(6, id="6"),
        pytest.param(250, id="250", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("name", [LOG, FILE_NAME, MARKER])
async def test_a_file_that_was_cut_or_altered(killed, tmp_path, name, cases):
    found = {await judge(tmp_path / "b", damaged(killed, name, random.Random(seed))) for seed in range(cases)}
    assert name == MARKER or False in found


async def test_a_log_that_lacks_its_end_is_told_with_the_number_of_commits(killed, tmp_path):
    log = killed[LOG]
    directory = laid_out(tmp_path / "b", {**killed, LOG: log[: len(log) // 2]})
    with pytest.raises(
        CorruptData, match=r'the last \d+ of \d+ acknowledged commits are missing.*on_corrupt="skip"'
    ):
        config(directory).build()
    assert (directory / LOG).stat().st_size == len(log) // 2, "nothing was changed"
    (problem,) = verify(directory).problems
    assert "acknowledged commits are missing" in problem


@pytest.mark.parametrize("removed", [LOG, MARKER, FILE_NAME])
async def test_what_is_missing_can_be_accepted(killed, tmp_path, removed):
    files = {name: data for name, data in killed.items() if name != removed}
    if removed == LOG:
        files[LOG] = killed[LOG][: len(killed[LOG]) // 2]
    directory = laid_out(tmp_path / "b", files)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        buffer = config(directory, on_corrupt="skip").build()
    assert removed == FILE_NAME or any("restore" in str(one.message) for one in told)
    left = await numbers_in(buffer)
    assert left == list(range(len(left)))
    assert len(left) == PUTS or removed != MARKER
    await buffer.put(group(PUTS, 1, "completed"), task_of(PUTS))
    directory = laid_out(tmp_path / "c", {path.name: path.read_bytes() for path in directory.iterdir()})
    await buffer.close()
    again = config(directory).build()  # as after a kill: the count of commits has begun anew
    assert await numbers_in(again) == [*left, PUTS]
    await again.close()


async def test_a_closed_buffer_is_one_file_that_can_be_copied(tmp_path):
    buffer = config(tmp_path / "a").build()
    for number in range(3):
        await buffer.put(group(number, 1, "completed"), task_of(number))
    await buffer.save(tmp_path / "saved")
    await buffer.close()
    for name in ("a", "saved"):
        assert [path.name for path in (tmp_path / name).iterdir()] == [FILE_NAME]
        copy = tmp_path / f"copy of {name}"
        copy.mkdir()
        shutil.copyfile(tmp_path / name / FILE_NAME, copy / FILE_NAME)
        again = config(copy).build()
        assert await numbers_in(again) == [0, 1, 2]
        await again.close()


async def test_a_buffer_saved_over_one_that_was_killed(killed, tmp_path):
    directory = laid_out(tmp_path / "b", killed)
    buffer = config(None).build()
    await buffer.put(group(7, 1, "completed"), task_of(7))
    await buffer.save(directory)
    assert {path.name for path in directory.iterdir()} == {FILE_NAME}
    again = config(directory).build()
    assert await numbers_in(again) == [7]
    await again.close()


async def test_another_history_of_the_same_length(killed, tmp_path):
    directory = laid_out(tmp_path / "b", killed)
    other = tmp_path / "other"
    process = start("crash.saver")
    assert next(order(process, does="hold", store=str(other), groups=PUTS)) == {"ready": PUTS}
    process.kill()
    end(process)
    shutil.copyfile(other / MARKER, directory / MARKER)
    with pytest.raises(CorruptData, match="is another one than the acknowledged commit"):
        config(directory).build()


def test_the_command_says_so(killed, tmp_path):
    files = {name: data for name, data in killed.items() if name != LOG}
    directory = laid_out(tmp_path / "b", files)
    for command in ("verify", "inspect"):
        told = subprocess.run(
            [sys.executable, "-c", "from reroll.cli import main; main()", command, directory],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode != 0
        assert "acknowledged commits are missing" in " ".join((told.stdout + told.stderr).split())
