"""Arrays and numpy scalars: dtype, shape, order, views into the blob, one copy of what is shared."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given

from codec.exactness import assert_kept, back, exact
from codec.strategies import arrays, scalars
from reroll import NotStorable
from reroll.codec import decode, encode
from reroll.codec.frame import ALIGNMENT


@given(arrays)
def test_any_array(array):
    restored = assert_kept(array)
    assert restored.flags.c_contiguous


@given(arrays)
def test_any_array_in_fortran_order(array):
    restored = assert_kept(np.asfortranarray(array))
    assert restored.flags.f_contiguous


@given(arrays)
def test_any_view(array):
    for view in (array.T, array[::2] if array.ndim else array, np.broadcast_to(array, (2, *array.shape))):
        assert_kept(view)


@given(scalars)
def test_any_scalar(scalar):
    assert_kept(scalar)


DETAILED = np.dtype(
    {
        "names": ["a", "b", "c"],
        "formats": ["<i2", (">f8", (2, 3)), [("x", "U3"), ("y", "M8[25s]")]],
        "offsets": [40, 64, 0],
        "titles": ["first", None, None],
        "itemsize": 130,
    }
)


@pytest.mark.parametrize(
    "array",
    [
        *(
            np.array(5),
            np.array("x"),
            np.array(5, ">i8"),
            np.empty(0),
            np.empty((0, 3)),
            np.empty((3, 0), order="F"),
        ),
        *(np.float16([1, np.nan]), np.array([np.nan, -0.0, np.inf]), np.array([True, False]), np.array([1j])),
        *(
            np.array(["2020", "NaT"], "M8[D]"),
            np.array([3], "m8"),
            np.array([b"a\0b", b""]),
            np.array(["ä", "bcd"]),
        ),
        *(np.arange(10)[::-1], np.arange(10)[::3], np.arange(10, dtype=">u4"), np.zeros(4, "V7")),
        *(np.zeros(3, DETAILED), np.zeros((2, 2), np.dtype([("a", "u1"), ("b", "f8")], align=True))),
        *(np.longdouble([1, 2]), np.clongdouble([1j]), np.zeros((1,) * 32)),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}"[:40],
)
def test_examples(array):
    assert_kept(array)
    assert_kept(array[()])


def test_scalars_keep_zeros_at_their_end():
    assert_kept([np.str_("a\0"), np.bytes_(b"a\0"), np.str_(""), np.bytes_(b"")])
    assert_kept(np.str_("\ud800"))


def test_arrays_are_aligned_read_only_views():
    value = [
        np.arange(size, dtype=dtype) for size in (1, 3, 100) for dtype in (np.uint8, np.int32, np.float64)
    ]
    value += [np.ones((3, 5), order="F"), np.array(["abc"]), np.array(1, ">f8")]
    for blob in (encode(value), bytearray(encode(value)), memoryview(b"x" + encode(value))[1:]):
        restored = decode(blob)
        first = restored[0].__array_interface__["data"][0]
        for array in restored:
            assert not array.flags.writeable
            assert not array.flags.owndata
            assert array.flags.aligned
            assert (array.__array_interface__["data"][0] - first) % ALIGNMENT == 0
            with pytest.raises(ValueError):
                array.flags.writeable = True
    blob = encode(value)
    assert np.shares_memory(decode(blob)[3], np.frombuffer(blob, np.uint8))


def test_an_array_that_is_shared_is_stored_once_and_stays_shared():
    prompt = np.arange(1000)
    once, often = encode([prompt]), encode([prompt, {"a": prompt}, (prompt,), prompt[:]])
    restored = decode(often)
    assert restored[0] is restored[1]["a"] is restored[2][0]
    assert restored[3] is not restored[0]
    assert len(often) < len(once) + prompt.nbytes + 200


def test_an_array_that_is_copied_for_writing_is_shared_too():
    column = np.arange(100).reshape(10, 10)[:, 3]
    restored = back([column, column])
    assert restored[0] is restored[1]


def test_arrays_that_are_gone_are_not_taken_for_others():
    class Made:
        pass

    from reroll import register  # noqa: PLC0415

    counter = iter(range(1000))
    register(Made, encode=lambda _: np.full((20, 2), next(counter))[:, 0], decode=lambda array: array)
    assert [array[0] for array in back([Made() for _ in range(50)])] == list(range(50))


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array([None, 1]),
        np.zeros(2, [("a", "O")]),
        np.zeros(2, [("a", "i4"), ("b", [("c", "O", (2,))])]),
        np.zeros(3, [("a", "S0")])["a"],
    ],
    ids=lambda array: str(array.dtype),
)
def test_what_is_no_bytes_is_refused(array):
    with pytest.raises(NotStorable, match=r"^value\[0\]: an array of dtype"):
        encode([array])


def test_types_of_newer_numpy_are_refused():
    strings = getattr(np.dtypes, "StringDType", None)
    if strings is None:
        pytest.skip("numpy 1 has no such strings")
    with pytest.raises(NotStorable, match="dtype StringDType"):
        encode(np.array(["a"], strings()))


def test_writing_changes_nothing():
    array = np.arange(6).reshape(2, 3)
    before = array.copy(), array.flags.writeable, array.strides
    encode([array, array.T])
    assert exact(array, before[0])
    assert (array.flags.writeable, array.strides) == before[1:]


def test_writing_takes_the_memory_of_the_blob_once():
    array = np.zeros(4_000_000, np.uint8)
    tracemalloc.start()
    try:
        blob = encode([array])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(blob) is bytes
    assert peak < 1.1 * len(blob)
