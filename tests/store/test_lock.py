"""One writer for a directory, in this process or another, as long as it lives."""

import os
import signal

import pytest

from reroll.errors import StoreError, StoreLocked
from reroll.store import FILE_NAME, open_saved, open_store, write_snapshot
from reroll.store import lock as lock_module
from store.samples import change, contents, copy_to, keys, start, stored_keys, written

HOLDER = """
from reroll.store import open_store
from store.samples import change, written
store = open_store(sys.argv[1])
written(store, change(1))
print("open", flush=True)
sys.stdin.readline()
store.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_a_second_opener_in_the_same_process(tmp_path):
    with open_store(tmp_path) as store:
        with pytest.raises(StoreLocked, match="this process") as caught:
            open_store(tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert isinstance(caught.value, StoreError)
        written(store, change(1))
    open_store(tmp_path).close()


def test_a_second_opener_in_another_process(tmp_path):
    with start(HOLDER, tmp_path) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=f"process {holder.pid}.*close"):
            open_store(tmp_path)
        with pytest.raises(StoreLocked):
            write_snapshot(tmp_path, [change(2)])
        with open_saved(tmp_path) as saved:
            assert list(contents(saved)["payloads"]) == [1], "reading is free"
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "closed\n"
        open_store(tmp_path).close()


def test_the_lock_ends_with_the_process(tmp_path):
    with start(HOLDER, tmp_path) as holder:
        assert holder.stdout.readline() == "open\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with open_store(tmp_path) as store:
            assert stored_keys(store) == [1]


def test_no_checkpoint_into_a_store_in_use(tmp_path):
    with open_store(tmp_path) as store:
        written(store, change(1))
        with pytest.raises(StoreLocked):
            write_snapshot(tmp_path, [change(2)])
        with pytest.raises(StoreLocked):
            copy_to(store, tmp_path)
        assert len(store.read([1])) == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_one_checkpoint_at_a_time(tmp_path):
    def changes():
        with pytest.raises(StoreLocked):
            write_snapshot(tmp_path, [])
        yield change(1)

    write_snapshot(tmp_path, changes())
    with open_saved(tmp_path) as saved:
        assert keys(saved) == [1]


FORKING = """
import os, signal
from reroll.store import open_store
store = open_store(sys.argv[1])
told, tell = os.pipe()
child = os.fork()
if child == 0:
    from reroll.errors import ForkedProcess
    from reroll.store import Change
    try:
        store.write(Change(), print)
    except ForkedProcess as error:
        print(error, flush=True)
    store.close()
    os.write(tell, b"x")
    signal.pause()
os.read(told, 1)
print(child, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    with start(FORKING, tmp_path) as holder:
        assert f"belongs to process {holder.pid}" in holder.stdout.readline()
        child = int(holder.stdout.readline())
        with pytest.raises(StoreLocked):
            open_store(tmp_path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        os.kill(child, 0)  # it is alive
        open_store(tmp_path).close()
        os.kill(child, signal.SIGKILL)


def test_a_lock_file_that_is_removed_meanwhile(tmp_path, monkeypatch):
    """Between opening the file and locking it, its last holder removed it, and a third made a new one and holds that."""
    path, others = tmp_path / "replay_buffer.lock", []
    original = lock_module._try_lock

    def late(descriptor):
        monkeypatch.undo()
        path.unlink()
        others.append(open_store(tmp_path))
        return original(descriptor)

    monkeypatch.setattr(lock_module, "_try_lock", late)
    with pytest.raises(StoreLocked):
        open_store(tmp_path)
    others[0].close()
    open_store(tmp_path).close()


def test_a_lock_file_that_was_left_does_no_harm(tmp_path):
    (tmp_path / "replay_buffer.lock").write_text("12345\n")
    open_store(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
