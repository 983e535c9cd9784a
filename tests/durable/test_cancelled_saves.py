"""Saves, resumes and reads that are cancelled while a thread works: the process lives, and the buffer goes on."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from durable.stores import fifo, picture
from replay.buffers import TASK, fill, group
from reroll.observe.view import FileSource

SCRIPT = Path(__file__).with_name("save_cancelled.py")
TIMES = [pytest.param(25, id="some"), pytest.param(1500, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("cancels", TIMES)
@pytest.mark.parametrize("kind", ["memory", "durable"])
def test_saves_that_are_cancelled_at_random_moments(tmp_path, kind, cancels):
    command = [sys.executable, "-X", "faulthandler", SCRIPT, tmp_path, kind, str(cancels), "1"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > cancels // 2


async def test_saves_of_one_buffer_follow_one_another(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 3)
    await asyncio.gather(*(buffer.save(tmp_path / "saved") for _ in range(4)))
    waiting = asyncio.gather(*(buffer.save(tmp_path / "saved") for _ in range(4)), return_exceptions=True)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await buffer.save(tmp_path / "saved")
    await buffer.close()


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16, 32, 64])
async def test_a_durable_resume_that_is_cancelled(tmp_path, turns):
    """It has not begun, or it comes to its end: the buffer is empty or whole, in memory and on disk."""
    saved = fifo(tmp_path / "saved")
    await fill(saved, 150)
    whole = await picture(saved)
    await saved.close()
    buffer = fifo(tmp_path / "store")
    resuming = asyncio.ensure_future(buffer.resume(tmp_path / "saved"))
    for _ in range(turns):
        await asyncio.sleep(0.001)
    resuming.cancel()
    await asyncio.wait([resuming])
    if not len(buffer):
        await buffer.resume(tmp_path / "saved")
    assert await picture(buffer) == whole
    await buffer.put(group(), TASK)
    await buffer.close()
    again = fifo(tmp_path / "store")
    assert len(again) == 151
    assert len(await again.get(151, TASK, "completed")) == 151
    await again.close()


async def test_reads_of_a_file_that_are_cancelled_while_it_is_written(tmp_path):
    buffer = fifo(tmp_path / "store")
    await fill(buffer, 50)
    source = await asyncio.to_thread(FileSource, tmp_path / "store")
    for turn in range(60):
        reading = asyncio.ensure_future(source.peek(list(range(1, 51))))
        await asyncio.sleep(0.0005 * (turn % 5))
        reading.cancel()
        if turn % 5 == 0:
            await buffer.put(group(), TASK)
        await source.stats()  # reads the file anew if it was written, and closes the one before
    await source.close()
    await buffer.close()
