"""A durable buffer that is killed again and again keeps every promise that it acknowledged."""

import pytest

from crash.lives import Store, end, order, start
from crash.numbered import config
from reroll import StoreLocked
from reroll.store import open_saved


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(20, 1, id="20 kills"),
        pytest.param(120, 2, marks=[pytest.mark.slow, pytest.mark.timeout(1200)], id="120 kills"),
    ],
)
def test_one_store_lives_through_many_kills(tmp_path, kills, seed):
    store = Store(tmp_path, seed)
    try:
        for _ in range(kills):
            store.live_and_die()
        store.rest()
    finally:
        store.close()
    assert store.kills.total() == kills
    assert store.kills.keys() == {"working", "opening", "writing"}


def test_a_store_on_disk_lives_through_kills(tmp_path):
    store = Store(tmp_path, 3, sync="disk")
    try:
        for _ in range(3):
            store.live_and_die()
        store.rest()
    finally:
        store.close()


async def test_one_process_writes_and_others_read(tmp_path):
    process = start("crash.saver")
    told = order(process, does="hold", store=str(tmp_path), groups=5)
    assert next(told) == {"ready": 5}
    with pytest.raises(StoreLocked, match=f"process {process.pid}"):
        config(tmp_path).build()
    with open_saved(tmp_path) as saved:
        assert [row[0] for row in saved.rows()] == [1, 2, 3, 4, 5]
    process.kill()
    end(process)
    buffer = config(tmp_path).build()
    assert len(buffer) == 5, "the lock of the dead is no lock"
    await buffer.close()
