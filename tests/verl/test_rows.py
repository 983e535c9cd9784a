"""Rows of a unit on disk: what was put and not cleared is there after any end of the process."""

import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from reroll.errors import Closed, NotStorable, StoreLocked
from reroll.integrations.transfer_queue.rows import Info, Rows
from reroll.integrations.transfer_queue.unit import DurableData, wait_for_predecessor
from reroll.store.lock import LOCK_NAME


def row(key, **tags):
    return Info("train", key, tags)


def put(rows, indexes, **columns):
    infos = {index: row(f"k{index}", n=index) for index in indexes}
    rows.write(*rows.plan_put(infos, indexes, columns))


def plain(values):
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_those_of_a_dictionary(tmp_path, seed):
    chance, model, rows = random.Random(seed), {}, Rows(tmp_path)
    for _ in range(40):
        indexes = chance.sample(range(12), chance.randint(1, 5))
        if chance.random() < 0.3:
            rows.clear(indexes)
            for index in indexes:
                model.pop(index, None)
        else:
            names = chance.sample(["a", "b", "c"], chance.randint(0, 3))
            columns = {name: [torch.tensor([chance.random()]) for _ in indexes] for name in names}
            put(rows, indexes, **columns)
            for position, index in enumerate(indexes):
                model.setdefault(index, {}).update({name: columns[name][position] for name in names})
        if chance.random() < 0.2:
            rows.close()
            rows = Rows(tmp_path)
        found = {index: plain(values) for index, values in rows.values()}
        assert found == {index: plain(values) for index, values in model.items()}
    assert sorted(rows.indexes()) == sorted(model)
    rows.close()


VALUES = [
    *(torch.arange(6).to(dtype) for dtype in (torch.int64, torch.bool, torch.bfloat16, torch.float8_e4m3fn)),
    *(
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.arange(12.0).reshape(3, 4).T,
        torch.zeros(2, dtype=torch.complex64),
    ),
    *("text", b"bytes", None, 3, {"a": [1, (2, 3)], "b": {"c": np.float32(2)}}, np.arange(3), ["x"]),
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_values_come_back(tmp_path, number):
    value = VALUES[number]
    rows = Rows(tmp_path)
    put(rows, [3], field=[value])
    rows.close()
    ((index, found),) = Rows(tmp_path).values()
    assert index == 3
    assert type(found["field"]) is type(value)
    if isinstance(value, torch.Tensor):
        assert (found["field"].dtype, found["field"].shape) == (value.dtype, value.shape)
        assert found["field"].float().equal(value.float()) if not value.is_complex() else True
        found["field"].zero_()  # writable
    else:
        assert repr(found["field"]) == repr(value)


def test_what_cannot_be_stored_changes_nothing(tmp_path):
    rows = Rows(tmp_path)
    put(rows, [1], field=["before"])
    with pytest.raises(NotStorable, match=r"row 'k1'.*object"):
        put(rows, [1], field=[object()])
    with pytest.raises(NotStorable, match="row 1"):
        rows.plan_put({1: row("k1", tag=object())}, [1], {})
    assert dict(rows.values()) == {1: {"field": "before"}}


def test_cleared_rows_free_their_space(tmp_path):
    rows = Rows(tmp_path)
    for _ in range(30):
        put(rows, [0, 1], field=[torch.zeros(250_000), torch.zeros(250_000)])
        rows.clear([0, 1])
    rows.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10_000_000  # of 60 MB that were put


def test_a_copy_is_loaded_as_a_whole(tmp_path):
    rows = Rows(tmp_path / "store")
    put(rows, [1, 2], field=["one", "two"])
    rows.save(tmp_path / "copy")
    put(rows, [2, 3], field=["other", "three"], more=[1, 2])
    rows.clear([1])
    rows.load(tmp_path / "copy")
    assert dict(rows.values()) == {1: {"field": "one"}, 2: {"field": "two"}}
    rows.close()
    again = Rows(tmp_path / "store")
    assert dict(again.values()) == {1: {"field": "one"}, 2: {"field": "two"}}
    assert again.info(2) == row("k2", n=2)


HOLDER = """
import sys
from reroll.integrations.transfer_queue.rows import Rows
rows = Rows(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has the rows open, and ends when it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_one_process_writes(tmp_path, holder):
    with pytest.raises(StoreLocked, match=f"process {holder.pid}"):
        Rows(tmp_path)


def test_a_unit_waits_for_the_end_of_the_process_before(tmp_path, holder):
    lock = tmp_path / LOCK_NAME
    waiter = threading.Thread(target=wait_for_predecessor, args=(lock,))
    waiter.start()
    holder.kill()
    waiter.join(60)
    assert not waiter.is_alive()
    Rows(tmp_path).close()  # neither locked nor damaged
    assert not lock.exists()
    lock.write_text(f"{os.getpid()}")
    os.utime(lock, (0, 0))
    wait_for_predecessor(lock)  # this process is younger than the file: it has reused the number


def test_a_put_that_fails_changes_nothing(tmp_path):
    data = DurableData(2, Rows(tmp_path))
    data.infos = {index: row(f"k{index}") for index in range(9)}
    data.put_data({"field": ["one"]}, [1])
    with pytest.raises(ValueError, match="capacity exceeded"):
        data.put_data({"field": ["two", "three"]}, [2, 3])
    data.rows.close()
    with pytest.raises(Closed):
        data.put_data({"field": ["other", "two"]}, [1, 2])
    assert data.field_data == {"field": {1: "one"}}
    assert data.active_key_count == 1
    assert dict(Rows(tmp_path).values()) == {1: {"field": "one"}}
