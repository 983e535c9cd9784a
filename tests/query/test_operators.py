"""What each operator means, by example; both evaluators answer every one."""

import math
import pickle

import numpy as np
import pytest

from query.rows import Columns, Row
from reroll.query import FIELDS, And, Or, mask, matches, parse_query
from reroll.rollout import Status


def answer(where, **values) -> bool:
    """Ask both evaluators about a row with these values, beside other rows."""
    query = parse_query(where)
    tags = {name.removeprefix("tags_"): values.pop(name) for name in list(values) if name.startswith("tags_")}
    row = Row(**values, tags=tags)
    columns = mask(query, Columns([Row(uid=90), row, Row(uid=91)]))
    assert columns.dtype == np.bool_
    assert columns.shape == (3,)
    assert columns[1] == matches(query, row)
    return bool(columns[1])


BELOW_EQUAL_ABOVE = {
    "$gt": [False, False, True],
    "$gte": [False, True, True],
    "$lt": [True, False, False],
    "$lte": [True, True, False],
    "$eq": [False, True, False],
    "$ne": [True, False, True],
}


@pytest.mark.parametrize("operator", BELOW_EQUAL_ABOVE)
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("uid", (6, 7, 8)),
        ("staleness", (-1, 0, 1)),
        ("reward_mean", (0.25, 0.5, 0.75)),
        ("priority", (-math.inf, 0.0, math.inf)),
        ("task_name", ("code", "math", "maths")),
        ("tags.level", (6, 7.0, 8)),
        ("tags.level", ("a", "b", "c")),
        ("group_id", (0.5, 1, 1.5)),
    ],
)
def test_orderings_and_equality(operator, field, values):
    where = {field: {operator: values[1]}}
    name = field.replace(".", "_")
    assert [answer(where, **{name: value}) for value in values] == BELOW_EQUAL_ABOVE[operator]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, True),
        ({"$and": []}, True),
        ({"$or": []}, False),
        ({"$not": {}}, False),
        ({"$not": {"$or": []}}, True),
        ({"uid": 5}, True),
        ({"uid": 5.0}, True),
        ({"uid": 5, "task_name": "code"}, False),
        ({"uid": {"$gt": 4, "$lt": 6}}, True),
        ({"uid": {"$gt": 4, "$lt": 5}}, False),
        ({"$and": [{"uid": 5}, {"task_name": "math"}]}, True),
        ({"$and": [{"uid": 5}, {"task_name": "code"}]}, False),
        ({"$or": [{"uid": 6}, {"task_name": "math"}]}, True),
        ({"$or": ({"uid": 6}, {"task_name": "code"})}, False),
        ({"$or": [{"uid": 6}], "task_name": "math"}, False),
        ({"$not": {"uid": 5, "task_name": "code"}}, True),
        ({"uid": {"$in": [4, 5]}}, True),
        ({"uid": {"$in": (5, None)}}, True),
        ({"uid": {"$in": {5.0}}}, True),
        ({"uid": {"$in": frozenset({4, 6})}}, False),
        ({"uid": {"$in": []}}, False),
        ({"uid": {"$not_in": []}}, True),
        ({"uid": {"$not_in": [4, 6]}}, True),
        ({"uid": {"$not_in": [4, 5]}}, False),
        ({"uid": {"$between": [5, 7]}}, True),
        ({"uid": {"$between": (3, 5)}}, True),
        ({"uid": {"$between": [5, 5]}}, True),
        ({"uid": {"$between": [5.5, 7]}}, False),
        ({"uid": {"$between": [-math.inf, math.inf]}}, True),
        ({"task_name": {"$between": ["m", "n"]}}, True),
        ({"task_name": {"$in": ["math", "code"]}}, True),
        ({"status": "completed"}, True),
        ({"status": Status.COMPLETED}, True),
        ({"status": {"$ne": Status.COMPLETED}}, False),
        ({"status": {"$in": ["failed", Status.COMPLETED]}}, True),
        ({"status": {"$not_in": {"failed"}}}, True),
        ({"uid": np.int64(5)}, True),
        ({"uid": {"$lt": np.float32(5.5)}}, True),
        ({"tags.a.b": "deep"}, True),
        ({"tags.flag": np.True_}, True),
    ],
)
def test_by_example(where, expected):
    values = {
        "uid": 5,
        "task_name": "math",
        "status": Status.COMPLETED,
        "tags_a.b": "deep",
        "tags_flag": True,
    }
    assert answer(where, **values) is expected


@pytest.mark.parametrize("field", [*FIELDS, "tags.absent"])
def test_a_missing_value_equals_only_none(field):
    values = {} if field == "tags.absent" else {field: None}
    other = {"status": "failed", "task_name": "math"}.get(field, 0)
    assert answer({field: None}, **values)
    assert not answer({field: {"$ne": None}}, **values)
    assert answer({field: {"$in": [other, None]}}, **values)
    assert not answer({field: {"$not_in": [other, None]}}, **values)
    assert not answer({field: other}, **values)
    assert not answer({field: {"$in": [other]}}, **values)
    assert answer({field: {"$ne": other}}, **values)
    assert answer({field: {"$not_in": [other]}}, **values)


@pytest.mark.parametrize("operator", ["$gt", "$gte", "$lt", "$lte"])
@pytest.mark.parametrize("bound", [-math.inf, -1, 0, 1, math.inf])
@pytest.mark.parametrize(
    ("field", "missing"), [("version", None), ("reward_mean", None), ("reward_mean", math.nan)]
)
def test_a_missing_number_satisfies_no_ordering(operator, bound, field, missing):
    assert not answer({field: {operator: bound}}, **{field: missing})
    assert not answer({field: {"$between": [bound, math.inf]}}, **{field: missing})


@pytest.mark.parametrize("field", ["reward_mean", "group_id", "tags.level"])
def test_nan_is_missing(field):
    values = {field.replace(".", "_"): math.nan}
    assert answer({field: None}, **values)
    assert not answer({field: {"$ne": None}}, **values)


@pytest.mark.parametrize(
    ("stored", "operand"),
    [(True, 1), (1, True), (0, False), ("1", 1), (1, "1"), ("True", True), (False, None)],
)
def test_kinds_never_mix(stored, operand):
    for name, field in (("tags_level", "tags.level"), ("group_id", "group_id")):
        assert not answer({field: operand}, **{name: stored})
        assert answer({field: {"$ne": operand}}, **{name: stored})
        assert not answer({field: {"$in": [operand]}}, **{name: stored})
        if operand is not None:
            for operator in ("$gt", "$gte", "$lt", "$lte"):
                assert not answer({field: {operator: operand}}, **{name: stored})


def test_booleans_are_ordered_among_themselves():
    assert answer({"tags.flag": {"$gt": False}}, tags_flag=True)
    assert not answer({"tags.flag": {"$lt": False}}, tags_flag=True)


@pytest.mark.parametrize("stored", [(1, 2), object(), b"x", np.longdouble(1), np.timedelta64(0)])
def test_a_foreign_group_id_equals_nothing_and_has_no_order(stored):
    assert not answer({"group_id": {"$in": [None, 0, "", True]}}, group_id=stored)
    assert not answer({"group_id": {"$gte": 0}}, group_id=stored)


def with_its_own_hash(plain):
    return type("Own", (type(plain),), {"__hash__": lambda self: 0})(plain)


@pytest.mark.parametrize("plain", ["high", 7, 7.5])
def test_a_value_of_a_subclass_is_its_plain_value(plain):
    own = with_its_own_hash(plain)
    assert answer({"group_id": plain}, group_id=own)
    assert answer({"group_id": {"$in": [own]}}, group_id=plain)
    assert answer({"group_id": {"$between": [own, own]}}, group_id=own)


def test_a_numpy_group_id_is_its_number():
    assert answer({"group_id": 7}, group_id=np.int64(7))
    assert answer({"group_id": {"$gt": 6.5}}, group_id=np.float32(7))


@pytest.mark.parametrize(
    ("stored", "where"),
    [
        (2**53 + 1, {"uid": {"$gt": 2.0**53}}),
        (2**53 + 1, {"uid": {"$ne": 2.0**53}}),
        (2**53 + 1, {"uid": {"$not_in": [2.0**53, 1]}}),
        (2**63 - 1, {"uid": {"$lt": 2.0**63}}),
        (2**63 - 1, {"uid": {"$lt": 2**63, "$ne": 2**63}}),
        (2**63 - 1, {"uid": {"$lte": 10**400, "$lt": math.inf}}),
        (-(2**63), {"uid": {"$gt": -(10**400), "$gte": -math.inf}}),
        (2**53 + 1, {"uid": {"$gt": np.float64(2**53), "$ne": np.float64(2**53)}}),
        (2**53 + 1, {"group_id": {"$gt": np.float64(2**53), "$ne": np.float64(2**53)}}),
        (np.float64(2**53), {"group_id": {"$lt": 2**53 + 1, "$ne": 2**53 + 1}}),
        (2, {"uid": {"$lt": 2.5, "$gt": 1.5, "$ne": 2.5}}),
        (-2, {"uid": {"$gt": -2.5, "$lt": -1.5}}),
        (2**31 - 1, {"attempts": {"$lt": 2**31, "$ne": -(2**31)}}),
        (2.0**53, {"priority": {"$lt": 2**53 + 1, "$ne": 2**53 + 1}}),
        (2.0**53 + 4, {"priority": {"$gt": 2**53 + 3, "$gte": 2**53 + 3}}),
        (math.inf, {"priority": {"$gt": 10**400, "$ne": 10**400}}),
        (1e308, {"priority": {"$lt": 10**400, "$gt": -(10**400)}}),
    ],
)
def test_numbers_are_compared_exactly(stored, where):
    (field,) = where
    assert answer(where, **{field: stored})


def test_narrow_floats_are_not_rounded_to():
    class Narrow(Columns):
        def numbers(self, name):
            return np.array([0.1], dtype=np.float32), None

    assert not mask(parse_query({"reward_mean": 0.1}), Narrow([Row()]))[0]
    assert mask(parse_query({"reward_mean": {"$gt": 0.1}}), Narrow([Row()]))[0]


def test_a_parsed_query_is_taken_as_it_is_also_inside_dicts():
    old = parse_query({"staleness": {"$gte": 2}})
    assert parse_query(old) is old
    assert parse_query({"$not": old}) == parse_query({"$not": {"staleness": {"$gte": 2}}})
    assert parse_query({"$or": [old, {"uid": 1}]}).parts[0] is old


def test_equal_queries_are_equal_and_hash_alike():
    one = parse_query({"uid": {"$in": [1, 2]}, "status": Status.FAILED})
    two = parse_query({"uid": {"$in": {2.0, 1}}, "status": "failed"})
    assert one == two
    assert hash(one) == hash(two)
    assert parse_query({"tags.x": True}) != parse_query({"tags.x": 1})


def test_a_parsed_query_survives_pickle():
    query = parse_query(
        {"$or": [{"uid": {"$in": [1, None]}}, {"$not": {"tags.x": {"$gt": "a"}}}], "status": "init"}
    )
    assert pickle.loads(pickle.dumps(query)) == query  # noqa: S301  (our own bytes)


def test_a_later_change_of_the_dict_changes_nothing():
    wanted = [1]
    query = parse_query({"uid": {"$in": wanted}})
    wanted.append(2)
    assert not matches(query, Row(uid=2))


def test_masks_are_new_arrays_and_columns_stay_as_they_are():
    columns = Columns([Row(version=None), Row()])
    array, missing = columns.numbers("version")
    before = array.copy(), missing.copy()
    columns.numbers = lambda name: (array, missing)
    for where in ({"version": None}, {"version": {"$lt": 1}}, {"$not": {"version": 0}}):
        mask(parse_query(where), columns)[:] = True
    assert (array == before[0]).all()
    assert (missing == before[1]).all()


def test_empty_sources_give_empty_masks():
    for where in (
        {},
        {"uid": 1},
        {"reward_mean": {"$in": [1, 2]}},
        {"status": "failed"},
        {"tags.x": 1},
        {"$or": []},
    ):
        assert mask(parse_query(where), Columns([])).shape == (0,)


def test_nodes_without_parts():
    assert parse_query({}) == And(())
    assert parse_query({"$or": []}) == Or(())
