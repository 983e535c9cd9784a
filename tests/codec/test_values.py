"""Whatever can be stored comes back as it was: every type, every bit."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.exactness import assert_kept, back, exact
from codec.strategies import values
from reroll import NotStorable, Status
from reroll.codec import decode, encode
from reroll.codec.frame import MAX_DEPTH
from reroll.rollout import VersionRuns


@given(values)
def test_any_value(value):
    assert_kept(value)


@given(values, st.sampled_from([bytes, bytearray, memoryview]), st.integers(0, 9))
def test_any_bytes_that_hold_it(value, kind, shift):
    blob = bytes(shift) + encode(value)
    assert exact(decode(memoryview(kind(blob))[shift:]), value)


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            False,
            0,
            -1,
            2**63,
            2**64 - 1,
            2**64,
            -(2**63) - 1,
            10**1000,
            0.0,
            -0.0,
            math.inf,
            math.nan,
        ),
        *("", "ä\0\N{GRINNING FACE}", "\ud800 alone", b"", b"\0" * 5000, bytearray(b"x" * 5000), bytearray()),
        *(
            [],
            (),
            {},
            set(),
            frozenset(),
            [[]],
            ((),),
            [()],
            ([],),
            {"": {}},
            {(): []},
            {frozenset({(1,)}): 0},
        ),
        *({1: "a", 1.5: "b", "1": "c", None: "d", b"1": "e"}, {"\ud800": 1}, {"a": 10**30, "b": "\udfff"}),
        *(
            1 + 2j,
            complex(-0.0, math.nan),
            Decimal("1.10"),
            Decimal("-0"),
            Decimal("sNaN12"),
            Decimal("-Infinity"),
        ),
        *(UUID(int=5), date(2024, 2, 29), timedelta(-1, 2, 3), datetime.min),  # noqa: DTZ901  (kept as it is)
        *(
            datetime(2024, 1, 2, 3, 4, 5, 6, UTC),
            datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        ),
        *(datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST")), datetime.max),  # noqa: DTZ901
        *(Path("a/b"), PurePosixPath("a//b"), PureWindowsPath("C:\\x"), Path()),
        *(Status.EXPIRED, VersionRuns(), VersionRuns.of([1, 1, 2, 0])),
        *([1, 2.0, True, None, "x"] * 20, [True, 1] * 40, [0.0, -0.0] * 40, [2**64 - 1] * 40, [2**64] * 40),
        *([1] * 31, [1] * 32, list(range(256)), list(range(257)), [-1] * 32, [2**31] * 32, [-(2**63)] * 32),
        [[list(range(8)) for _ in range(5)] for _ in range(50)],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": None}]
        * 60,
        (1, [2, (3, {4: {5, frozenset({6})}})]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_examples(value):
    assert_kept(value)


def test_the_order_of_a_dict_is_kept():
    entries = {3: "c", 1: "a", "2": "b"}
    assert list(back(entries)) == [3, 1, "2"]
    assert list(back({"b": 1, "a": 2})) == ["b", "a"]


def test_subclasses_are_other_types():
    class Text(str):
        __slots__ = ()

    class Number(int):
        pass

    class Map(dict):
        pass

    for value in (Text("a"), Number(1), Map(), np.array([1]).view(np.matrix), np.ma.array([1])):
        with pytest.raises(NotStorable, match="not registered"):
            encode([value])


def test_a_long_list_is_an_independent_list():
    numbers = list(range(1000))
    restored = back({"a": numbers, "b": numbers})
    restored["a"].append(1)
    assert restored["b"] == numbers


def nested(levels, wrap):
    value = []
    for _ in range(levels - 1):
        value = wrap(value)
    return value


WRAPS = {
    "list": lambda value: [value],
    "list with more": lambda value: [value, 1, "x"],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"a": value},
    "dict of numbers": lambda value: {1: value},
    "same twice": lambda value: [value, 1 + 1j],
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=list(WRAPS))
def test_nesting_up_to_the_limit(wrap):
    value = nested(MAX_DEPTH, wrap)
    assert_kept(value)
    with pytest.raises(NotStorable, match=f"{MAX_DEPTH}"):
        encode(wrap(value))
    with pytest.raises(NotStorable, match=f"{MAX_DEPTH}"):
        encode(nested(5000, wrap))


def test_the_same_value_gives_the_same_bytes():
    assert encode({"a": [1, np.arange(3)]}) == encode({"a": [1, np.arange(3)]})
