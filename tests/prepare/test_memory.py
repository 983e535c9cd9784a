"""Memory is used again when nobody holds what lies in it, and never before."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepare.batches import found_tokens, group_of, samples
from reroll.prepare import ArrayPool, pack, sequences_of, split


def address(array):
    return array.__array_interface__["data"][0]


def test_a_block_is_used_again_when_it_is_let_go():
    memory = ArrayPool()
    first = memory.block(1000)
    place = address(first)
    part = first[10:20].view(np.int16)
    del first
    gc.collect()
    second = memory.block(1000)
    assert address(second) != place, "a part of it is still held"
    del part
    gc.collect()
    assert memory.spare_bytes >= 1000
    assert address(memory.block(1050)) == place, "a little more fits"


def test_a_block_that_is_too_small_is_let_go():
    memory = ArrayPool()
    memory.block(1000)
    gc.collect()
    assert len(memory.block(1500)) == 1500
    gc.collect()
    assert memory.spare_bytes == 1500 + 187


def test_few_blocks_are_spare():
    memory = ArrayPool(spare_blocks=1)
    blocks = [memory.block(800) for _ in range(3)]
    blocks.clear()
    gc.collect()
    assert memory.spare_bytes == 900


def test_a_batch_that_is_held_stays_as_it_is():
    memory = ArrayPool()
    old = split(sequences_of([group_of([0.0, 1.0])]), 2, pack_length=16, pool=memory)[1].micro_batches[0]
    before = {name: array.copy() for name, array in old.arrays().items()}
    for _ in range(5):
        split(sequences_of([group_of([1.0, 3.0], [5, 6])]), 2, pack_length=16, pool=memory)
        gc.collect()
    assert all(np.array_equal(before[name], array) for name, array in old.arrays().items())


def test_a_tensor_holds_its_memory():
    pytest.importorskip("torch")
    memory = ArrayPool()
    ids = pack(sequences_of([group_of([0.0, 1.0])]), 16, pool=memory).to_torch()["input_ids"]
    before = ids.clone()
    gc.collect()
    assert memory.spare_bytes == 0
    pack(sequences_of([group_of([0.0, 1.0], [6, 6])]), 16, pool=memory)
    assert ids.equal(before)


@given(st.lists(samples(max_groups=3), max_size=4))
def test_what_was_there_before_does_not_show(steps):
    memory = ArrayPool()
    for drawn in steps:
        table = sequences_of(drawn)
        fresh, again = pack(table, 20), pack(table, 20, pool=memory)
        assert found_tokens([fresh]) == found_tokens([again])
