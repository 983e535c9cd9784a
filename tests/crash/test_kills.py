"""A durable buffer that is killed again and again keeps every promise that it acknowledged."""

import os

import pytest

from crash.lives import Store, end, order, start
from crash.numbered import config
from reroll import StoreLocked
from reroll.store import ROW, open_saved

KILLS = int(os.environ.get("REROLL_KILLS", "2000"))
"""How many kills the long run sees, over its 20 stores."""
SLOW = [pytest.mark.slow, pytest.mark.timeout(max(600, 6 * KILLS))]


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(12, 1, marks=pytest.mark.timeout(600), id="12 kills"),
        *(pytest.param(KILLS // 20, seed, marks=SLOW, id=f"store {seed}") for seed in range(100, 120)),
    ],
)
def test_one_store_lives_through_many_kills(tmp_path, kills, seed):
    """Processes are killed, paused and interrupted; they cancel saves and fork; and copies of their log are damaged."""
    store = Store(tmp_path / "store", seed)
    try:
        while store.kills.total() < kills:
            store.live_and_die()
        store.rest()
    finally:
        store.close()
    assert store.kills.keys() == {"working", "opening", "writing"} or kills < 12
    assert kills < 100 or store.events.keys() >= {
        *("interrupted", "paused", "loss told", "saved", "cancelled", "forked")
    }


def test_a_store_on_disk_lives_through_kills(tmp_path):
    store = Store(tmp_path / "store", 3, sync="disk")
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
        assert [uid for uid, _ in saved.records(ROW)] == [1, 2, 3, 4, 5]
    process.kill()
    end(process)
    buffer = config(tmp_path).build()
    assert len(buffer) == 5, "the lock of the dead is no lock"
    await buffer.close()
