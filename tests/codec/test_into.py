"""What is written to memory that is used again is what `encode` returns."""

from mmap import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.exactness import exact
from codec.strategies import values
from reroll import NotStorable
from reroll.codec import decode, encode, encode_into


@given(st.lists(values, min_size=1, max_size=4))
def test_the_same_bytes_one_after_the_other(several):
    with mmap(-1, 1 << 22) as memory:
        memory.write(b"before")
        blobs = [encode_into(memory, value) for value in several]
        assert all(isinstance(blob, memoryview) and blob.readonly for blob in blobs)
        assert [bytes(blob) for blob in blobs] == list(map(encode, several))
        assert memory[: memory.tell()] == b"before" + b"".join(blobs)
        del blobs  # a view would keep the memory open


def test_what_has_no_room_is_bytes_of_its_own():
    value = {"a": np.arange(100), "b": "text"}
    size = len(encode(value))
    memory = mmap(-1, 2 * size - 1)
    first, second = encode_into(memory, value), encode_into(memory, value)
    assert isinstance(first, memoryview)
    assert type(second) is bytes
    assert memory.tell() == size, "what was begun is taken back"
    assert exact(decode(first), value)
    assert exact(decode(second), value)


def test_memory_that_is_used_again():
    memory = mmap(-1, 1 << 12)
    encode_into(memory, [np.arange(50), "a longer text than the next"])
    memory.seek(0)
    assert bytes(encode_into(memory, [np.arange(9)])) == encode([np.arange(9)])


def test_what_cannot_be_stored_leaves_the_memory_as_it_was():
    memory = mmap(-1, 1 << 12)
    with pytest.raises(NotStorable, match=r"rollouts\[0\]"):
        encode_into(memory, [object()], root="rollouts")
    assert memory.tell() == 0
