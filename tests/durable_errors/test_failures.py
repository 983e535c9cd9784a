"""Disks that are full and directories that cannot be written to: typed errors, and every acknowledged group is kept."""

import os

import pytest

from durable_errors.samples import TASK, check_books, filled, group, numbers, saved
from reroll import Closed, StoreFailed, StoreLocked
from reroll.store import FILE_NAME
from store.samples import start

LARGE = 20_000
"""Tokens of each rollout of a group of a third of a megabyte."""


def put_until_full(buffer):
    """Put groups until the disk is full; return the numbers of those that were acknowledged, and the error."""
    acknowledged = []
    for number in range(1, 100):
        try:
            buffer.put(group(number, tokens=LARGE), TASK)
        except StoreFailed as error:
            return acknowledged, error
        acknowledged.append(number)
    raise AssertionError("the disk was never full")


def test_a_full_disk_during_put(make, small_disk):
    buffer = make(store=small_disk)
    acknowledged, error = put_until_full(buffer)
    assert acknowledged
    assert "space on the disk" in str(error)
    assert str(small_disk) in str(error)
    for call in (
        lambda: buffer.put(group(200), TASK),
        lambda: buffer.get(1, TASK, "completed"),
        lambda: buffer.sample(1, TASK),
        lambda: buffer.advance(3),
        lambda: buffer.commit(3),
        lambda: buffer.rewind(3),
        lambda: buffer.delete([1]),
        lambda: buffer.forget([1]),
        lambda: buffer.patch(1, reward=[1.0] * 4),
        lambda: buffer.update_priorities({1: 2.0}),
        lambda: buffer.refresh_staleness(task_stale_thresholds={TASK: 1}, current_train_step=9),
        lambda: buffer.save(small_disk / "saved"),
        lambda: buffer.resume(small_disk / "saved"),
    ):
        with pytest.raises(StoreFailed) as caught:
            call()
        assert caught.value is error, "the same for all"
    for call in (lambda: buffer.count(TASK, "completed"), lambda: buffer.query({}), lambda: buffer.peek([1])):
        with pytest.raises(StoreFailed) as caught:  # a look goes no further than what was acknowledged
            call()
        assert caught.value is error
    with pytest.raises(StoreFailed):
        buffer.close()
    with pytest.raises(Closed):
        buffer.put(group(201), TASK)
    again = make(store=small_disk)
    check_books(again)
    assert numbers(again.peek(again.uids())) == acknowledged


def test_a_full_disk_during_take(make, small_disk):
    """Taking writes rows only; what it could not write was not handed out, and is there again."""
    buffer = make(store=small_disk, max_uncommitted_steps=0)
    for number in range(1, 4):
        buffer.put(group(number), TASK)
    left = os.statvfs(small_disk)
    with (small_disk / "other").open("wb") as other:
        other.write(bytes(left.f_bavail * left.f_bsize))
    taken = []
    with pytest.raises(StoreFailed) as caught:  # noqa: PT012  (some still fit into what is there)
        for _ in range(3):
            taken += numbers(buffer.get(1, TASK, "completed"))
    with pytest.raises(StoreFailed) as later:
        buffer.get(1, TASK, "completed")
    assert later.value is caught.value
    with pytest.raises(StoreFailed):
        buffer.close()
    (small_disk / "other").unlink()
    again = make(store=small_disk, max_uncommitted_steps=0)
    check_books(again)
    assert again.take_all() == [number for number in (1, 2, 3) if number not in taken]


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_full_disk_during_save(make, small_disk, tmp_path, is_durable):
    buffer = filled(make, 2, **({"store": tmp_path / "store"} if is_durable else {}))
    buffer.save(small_disk)
    for number in range(3, 30):
        buffer.put(group(number, tokens=LARGE), TASK)
    before = buffer.ledger()
    with pytest.raises(StoreFailed, match=f"{small_disk}.*space on the disk"):
        buffer.save(small_disk)
    assert [path.name for path in small_disk.iterdir()] == [FILE_NAME]
    assert buffer.ledger() == before
    again = make()
    again.resume(small_disk)
    assert again.take_all() == [1, 2], "the old checkpoint is as it was"
    buffer.save(tmp_path / "elsewhere")
    assert buffer.take_all() == list(range(1, 30)), "and the buffer goes on"


def test_a_full_disk_during_resume(make, small_disk, tmp_path):
    source = make()
    for number in range(1, 30):
        source.put(group(number, tokens=LARGE), TASK)
    source.save(tmp_path / "large")
    saved(make, tmp_path / "small")
    buffer = make(store=small_disk)
    with pytest.raises(StoreFailed, match="space on the disk") as caught:
        buffer.resume(tmp_path / "large")
    for call in (lambda: buffer.put(group(1), TASK), lambda: buffer.get(1, TASK, "completed")):
        with pytest.raises(StoreFailed) as later:
            call()
        assert later.value is caught.value
    with pytest.raises(StoreFailed):
        buffer.close()
    again = make(store=small_disk)
    assert len(again) == 0
    again.resume(tmp_path / "small")
    assert again.take_all() == [1, 2, 3, 4, 5, 6]


LIMITED = """
import asyncio, resource, signal
from durable_errors.samples import TASK, config, group
from reroll import StoreFailed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
buffer = config(store=sys.argv[1]).build_blocking()
count = 0
try:
    while True:
        buffer.put(group(count + 1, tokens=10_000), TASK)
        count += 1
except StoreFailed:
    print(count)
memory = config().build_blocking()
memory.put(group(1), TASK)
memory.save(sys.argv[2])
for number in range(30):
    memory.put(group(number, tokens=10_000), TASK)
try:
    memory.save(sys.argv[2])
except StoreFailed:
    print(len(memory))
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of file sizes are POSIX")
def test_files_that_may_not_grow(make, tmp_path):
    with start(LIMITED, tmp_path / "store", tmp_path / "saved") as process:
        count, left = map(int, process.communicate()[0].split())
    assert process.returncode == 0
    assert count > 0
    assert left == 31
    assert make(store=tmp_path / "store").take_all() == list(range(1, count + 1))
    again = make()
    again.resume(tmp_path / "saved")
    assert again.take_all() == [1]


THREADS = """
import os, resource, signal, threading, time
from durable_errors.samples import TASK, config, group
from reroll import StoreFailed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
buffer = config(store=sys.argv[1]).build_blocking()
acknowledged, raised = [], []

def until_it_fails(call):
    try:
        while True:
            call()
    except StoreFailed as error:
        raised.append(error)

def producer(numbers):
    def put():
        number = next(numbers)
        buffer.put(group(number, tokens=5_000), TASK)
        acknowledged.append(number)
    return put

calls = [producer(iter(range(first, 10_000, 4))) for first in range(1, 5)]
calls.append(lambda: buffer.take_batch({"another task": 1}, wait=True))
calls.append(lambda: buffer.wait_ready({"another task": 1}))
threads = [threading.Thread(target=until_it_fails, args=(call,), daemon=True) for call in calls]
for thread in threads:
    thread.start()
deadline = time.monotonic() + 60
for thread in threads:
    thread.join(max(0, deadline - time.monotonic()))
if any(thread.is_alive() for thread in threads):
    os._exit(1)  # the exit would wait for a store that waits
assert all(error is raised[0] for error in raised)
try:
    buffer.close()
except StoreFailed:
    print(*sorted(acknowledged))
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of file sizes are POSIX")
def test_a_full_disk_fails_every_thread(make, tmp_path):
    with start(THREADS, tmp_path) as process:
        acknowledged = list(map(int, process.communicate()[0].split()))
    assert process.returncode == 0
    assert acknowledged
    again = make(store=tmp_path)
    check_books(again)
    assert again.take_all() == acknowledged


def test_a_directory_that_cannot_be_written_to(make, tmp_path, read_only):
    directory = saved(make, tmp_path / "saved")
    read_only(directory)
    buffer = filled(make)
    for place in (directory, directory / "below"):
        with pytest.raises(StoreFailed, match=f"{place}.*permissions"):
            buffer.save(place)
        with pytest.raises(StoreFailed, match=f"{place}.*permissions"):
            make(store=place)
    assert len(buffer) == 6
    again = make()
    again.resume(directory)
    assert len(again) == 6, "what is at rest can be read there"


def test_two_buffers_on_one_store(make, tmp_path):
    first = filled(make, store=tmp_path)
    with pytest.raises(
        StoreLocked, match=f"{tmp_path} is being written to by this process: close that buffer"
    ):
        make(store=tmp_path)
    with pytest.raises(StoreLocked, match="is being written to"):
        filled(make).save(tmp_path)
    with pytest.raises(StoreLocked, match="is being written to"):
        first.save(tmp_path)
    reader = make()
    reader.resume(tmp_path)
    assert len(reader) == 6, "reading needs no lock"
    first.close()
    second = make(store=tmp_path)
    assert len(second) == 6
    assert second.take_all() == [1, 2, 3, 4, 5, 6]


def test_closed_and_reopened(make, tmp_path):
    for number in range(1, 4):
        buffer = make(store=tmp_path)
        assert len(buffer) == number - 1
        buffer.put(group(number), TASK)
        buffer.close()
        buffer.close()
        for call in (
            lambda buffer=buffer: buffer.put(group(9), TASK),
            lambda buffer=buffer: buffer.save(tmp_path / "saved"),
            lambda buffer=buffer: buffer.resume(tmp_path / "saved"),
        ):
            with pytest.raises(Closed):
                call()
    assert make(store=tmp_path).take_all() == [1, 2, 3]


@pytest.mark.parametrize("is_durable", [False, True])
def test_an_error_while_saving_leaves_everything(make, tmp_path, is_durable, monkeypatch):
    buffer = filled(make, **({"store": tmp_path / "store"} if is_durable else {}))
    buffer.save(tmp_path / "saved")
    data = (tmp_path / "saved" / FILE_NAME).read_bytes()
    buffer.put(group(7), TASK)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreFailed, match="Input/output error"):
        buffer.save(tmp_path / "saved")
    monkeypatch.undo()
    assert (tmp_path / "saved" / FILE_NAME).read_bytes() == data
    assert [path.name for path in (tmp_path / "saved").iterdir()] == [FILE_NAME]
    buffer.save(tmp_path / "saved")
    assert buffer.take_all() == [1, 2, 3, 4, 5, 6, 7]
