"""Values, errors and queries as bytes, and back."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.strategies import queries, row_lists
from reroll import (
    CorruptData,
    InvalidArgument,
    LeaseExpired,
    MinSize,
    NotStorable,
    RerollError,
    SampleToInsertRatio,
    UnknownUid,
    Unlimited,
    WaitTimeout,
    parse_query,
)
from reroll.engine.limits import limiter_of
from reroll.query import matches
from reroll.remote.methods import bind_arguments, to_plain
from reroll.remote.values import error_to_bytes, to_bytes, to_error, to_value

atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(values)
def test_values_come_back_as_they_were(value):
    back = to_value(to_bytes(value))
    assert back == value
    assert type(back) is type(value)


@given(st.binary(max_size=100))
def test_bytes_are_values_or_refused(blob):
    with suppress(RerollError):
        to_value(blob)


def test_what_cannot_be_sent_is_named():
    with pytest.raises(NotStorable, match=r"put\['tags'\]"):
        to_bytes({"tags": object()}, "put")


def test_what_is_nested_too_deep_is_said_so():
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"$not": deep}
    with pytest.raises(NotStorable, match="deep"):
        to_bytes({"where": deep}, "query")


@pytest.mark.parametrize(
    "value", [{"sizes": {"t": 16}}, {"sizes": {"t": {"u": 1}}}, {"sizes": {1: 2}}, {"a": {"b": [1]}}]
)
def test_dicts_in_dicts_come_back_as_they_were(value):
    assert to_value(to_bytes(value)) == value


@pytest.mark.parametrize(
    "error",
    [
        WaitTimeout("too late"),
        LeaseExpired("gone", [3, 4]),
        UnknownUid("no group 5"),
        ValueError("plain"),
        ImportError("needs pyarrow"),
    ],
)
def test_errors_come_back_as_the_same_class(error):
    back = to_error(error_to_bytes(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert getattr(back, "uids", None) == getattr(error, "uids", None)


class OwnError(Exception):
    pass


class OwnArgument(InvalidArgument):
    pass


def test_errors_of_other_classes_are_told_as_what_they_are_children_of():
    assert type(to_error(error_to_bytes(OwnArgument("x")))) is InvalidArgument
    back = to_error(error_to_bytes(OwnError("what happened")))
    assert type(back) is RerollError
    assert str(back) == "OwnError: what happened"
    assert str(to_error(error_to_bytes(WaitTimeout(object())))).startswith("<object")


@pytest.mark.parametrize(
    "blob", [to_bytes(5), to_bytes(("SystemExit", (1,))), to_bytes(("WaitTimeout", "x")), b""]
)
def test_nobody_else_chooses_the_class(blob):
    with pytest.raises(CorruptData):
        to_error(blob)


@given(queries, row_lists)
def test_queries_cross_whether_or_not_they_were_parsed(where, rows):
    wanted = [matches(parse_query(where), row) for row in rows]
    for written in (where, parse_query(where)):
        there = parse_query(to_value(to_bytes({"where": to_plain("where", written)}))["where"])
        assert [matches(there, row) for row in rows] == wanted


@pytest.mark.parametrize("limiter", [MinSize(3), SampleToInsertRatio(2.0, 10, 40.0), Unlimited()])
def test_limiters_cross_as_options(limiter):
    assert limiter_of(to_value(to_bytes(to_plain("rate_limiter", limiter)))) == limiter


def test_a_limiter_of_ones_own_does_not_cross():
    with pytest.raises(InvalidArgument, match="class of your own"):
        to_plain("rate_limiter", object())


def test_arguments_are_bound_as_the_verb_would():
    assert bind_arguments("forget", ((uid for uid in (1, 2)),), {}) == {"uids": [1, 2]}
    assert bind_arguments("patch", (5,), {"reward": [1.0]}) == {"uid": 5, "reward": [1.0]}
    with pytest.raises(TypeError, match=r"^count\(\): .*group_status"):
        bind_arguments("count", ("t",), {})
    with pytest.raises(TypeError, match=r"^count\(\): .*positional"):
        bind_arguments("count", ("t", "completed", 3), {})
