"""A durable buffer that is killed again and again keeps every promise that it acknowledged."""


import pytest

from crash.lives import Store


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
