"""Each wrong query, the path that the error names, and the remedy."""

import math
import pickle

import numpy as np
import pytest

from reroll.errors import QueryError
from reroll.query import parse_query
from reroll.query.parse import MAX_DEPTH
from reroll.rollout import Status


@pytest.mark.parametrize(
    ("where", "path", "says"),
    [
        # not a query
        (None, "where", "a query is a dict"),
        ([], "where", "a query is a dict"),
        ("completed", "where", "got 'completed'"),
        ({"$not": 3}, 'where["$not"]', "a query is a dict"),
        ({"$and": [{}, None]}, 'where["$and"][1]', "got None"),
        ({1: 2}, "where", "keys are field names"),
        ({None: 2}, "where", "got None"),
        # fields
        ({"statsu": "failed"}, "where.statsu", 'did you mean "status"?'),
        ({"reward": 1}, "where.reward", 'did you mean "reward_'),
        ({"and": []}, "where.and", 'did you mean "$and"?'),
        ({"qqq": 1}, "where.qqq", "use one of: uid, timestamp_id"),
        ({"": 1}, 'where[""]', "unknown field"),
        ({"a b": 1}, 'where["a b"]', "unknown field"),
        ({"tags": {"x": 1}}, "where.tags", '"tags.difficulty"'),
        ({"tags.": 1}, 'where["tags."]', '"tags.difficulty"'),
        # operators
        ({"$eq": 1}, 'where["$eq"]', 'write {field: {"$eq": ...}}'),
        ({"$nor": []}, 'where["$nor"]', "use one of: $and, $or, $not"),
        ({"uid": {}}, "where.uid", "an operator is required"),
        ({"uid": {"$gte ": 1}}, 'where.uid["$gte "]', "use one of: $eq, $ne"),
        ({"uid": {"gt": 1}}, "where.uid.gt", "use one of: $eq, $ne"),
        ({"uid": {"$nin": 1}}, 'where.uid["$nin"]', "use one of: $eq, $ne"),
        ({"uid": {"$not": {"$gt": 1}}}, 'where.uid["$not"]', "outside of the field"),
        ({"uid": {3: 1}}, "where.uid", "operators are $eq"),
        # logic
        ({"$and": {}}, 'where["$and"]', "$and takes a list of queries"),
        ({"$or": {"uid": 1}}, 'where["$or"]', "$or takes a list of queries"),
        ({"$or": "uid"}, 'where["$or"]', "got 'uid'"),
        ({"$not": [{}]}, 'where["$not"]', "a query is a dict"),
        # numbers
        ({"uid": "1"}, "where.uid", "expected a number, got '1'"),
        ({"uid": True}, "where.uid", "expected a number, got True"),
        ({"uid": [1]}, "where.uid", '{"$in": [...]}'),
        ({"uid": 1j}, "where.uid", "got 1j"),
        ({"uid": {"$eq": {"a": 1}}}, 'where.uid["$eq"]', "got {'a': 1}"),
        ({"uid": math.nan}, "where.uid", "ask for None"),
        ({"uid": np.float32("nan")}, "where.uid", "ask for None"),
        ({"reward_mean": {"$lt": math.nan}}, 'where.reward_mean["$lt"]', "NaN equals nothing"),
        ({"reward_mean": {"$in": [1, math.nan]}}, 'where.reward_mean["$in"][1]', "NaN equals nothing"),
        ({"staleness": {"$gt": False}}, 'where.staleness["$gt"]', "expected a number"),
        ({"staleness": {"$gt": None}}, 'where.staleness["$gt"]', "None has no order"),
        # text and status
        ({"task_name": 1}, "where.task_name", "expected a string"),
        ({"task_name": {"$gt": 1}}, 'where.task_name["$gt"]', "expected a string"),
        ({"status": "done"}, "where.status", "use reroll.Status or one of: init, completed"),
        ({"status": "COMPLETED"}, "where.status", "expected a status"),
        ({"status": 1}, "where.status", "expected a status"),
        ({"status": ["failed"]}, "where.status", '{"$in": [...]}'),
        ({"status": {"$lt": "failed"}}, 'where.status["$lt"]', "statuses have no order"),
        (
            {"status": {"$between": ["failed", "init"]}},
            'where.status["$between"][0]',
            "statuses have no order",
        ),
        (
            {"$and": [{}, {"status": {"$in": ["x"]}}]},
            'where["$and"][1].status["$in"][0]',
            "expected a status",
        ),
        # lists
        ({"uid": {"$in": 1}}, 'where.uid["$in"]', "expected a list, tuple or set"),
        ({"task_name": {"$in": "math"}}, 'where.task_name["$in"]', "expected a list, tuple or set"),
        (
            {"task_name": {"$not_in": {"math": 1}}},
            'where.task_name["$not_in"]',
            "expected a list, tuple or set",
        ),
        ({"uid": {"$not_in": [1, "2"]}}, 'where.uid["$not_in"][1]', "expected a number"),
        ({"uid": {"$in": {"2"}}}, 'where.uid["$in"]', "expected a number"),
        # between
        ({"uid": {"$between": 1}}, 'where.uid["$between"]', "expected [lower, upper]"),
        ({"uid": {"$between": [1]}}, 'where.uid["$between"]', "expected [lower, upper]"),
        ({"uid": {"$between": [1, 2, 3]}}, 'where.uid["$between"]', "expected [lower, upper]"),
        ({"uid": {"$between": {1, 2}}}, 'where.uid["$between"]', "expected [lower, upper]"),
        ({"task_name": {"$between": "ab"}}, 'where.task_name["$between"]', "expected [lower, upper]"),
        ({"uid": {"$between": [2, 1]}}, 'where.uid["$between"]', "swap them"),
        ({"uid": {"$between": [2**53 + 1, 2.0**53]}}, 'where.uid["$between"]', "swap them"),
        ({"uid": {"$between": [None, 1]}}, 'where.uid["$between"][0]', "None has no order"),
        ({"uid": {"$between": [1, "2"]}}, 'where.uid["$between"][1]', "expected a number"),
        ({"tags.x": {"$between": ["b", "a"]}}, 'where.tags.x["$between"]', "swap them"),
        ({"tags.x": {"$between": [1, "2"]}}, 'where.tags.x["$between"]', "both bounds must be"),
        ({"tags.x": {"$between": [False, True]}}, 'where.tags.x["$between"]', "both bounds must be"),
        ({"tags.x": {"$between": [0, True]}}, 'where.tags.x["$between"]', "both bounds must be"),
        # the user's own values
        ({"tags.x": [1]}, "where.tags.x", '{"$in": [...]}'),
        ({"tags.x": {"$eq": b"x"}}, 'where.tags.x["$eq"]', "got b'x'"),
        ({"tags.a-b": object()}, 'where["tags.a-b"]', "got <object object"),
        ({"tags.x": {"$gt": None}}, 'where.tags.x["$gt"]', "None has no order"),
        ({"group_id": {"$eq": {}}}, 'where.group_id["$eq"]', "got {}"),
        ({"group_id": parse_query({})}, "where.group_id", "got And("),
    ],
)
def test_wrong_queries(where, path, says):
    with pytest.raises(QueryError) as caught:
        parse_query(where)
    message = str(caught.value)
    assert message.startswith(path + ": "), message
    assert says in message


def test_the_error_is_a_value_error_and_survives_pickle():
    with pytest.raises(ValueError, match="unknown field") as caught:
        parse_query({"nope": 1})
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  (our own bytes)
    assert type(copy) is QueryError
    assert str(copy) == str(caught.value)


def nested(depth, inner):
    for _ in range(depth):
        inner = {"$not": inner}
    return inner


def test_nesting_has_a_limit():
    parse_query(nested(MAX_DEPTH, {"uid": 1}))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(QueryError, match="nested more than 64 deep; flatten"):
            parse_query(nested(depth, {"uid": 1}))


def nest_again_and_again(query):
    for _ in range(1000):
        query = parse_query({"uid": 1, "$not": {"$or": [query]}})


def test_the_limit_also_holds_when_parsed_queries_are_nested_again_and_again():
    with pytest.raises(QueryError, match="nested more than"):
        nest_again_and_again(parse_query({"uid": 1}))


def test_whatever_was_parsed_is_accepted_again():
    query = parse_query(nested(MAX_DEPTH, {"uid": {"$ne": 1}, "status": "init"}))
    assert parse_query(query) is query


def test_a_query_that_contains_itself_is_refused():
    where = {}
    where["$and"] = [where]
    with pytest.raises(QueryError, match="nested more than"):
        parse_query(where)


class Shy:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("field", ["uid", "status", "task_name", "tags.x", "nope"])
def test_errors_are_short_and_never_fail_to_show_a_value(field):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    values = [deep, Shy(), {Shy(): deep}]
    values += ["x" * 1_000_000] if field in ("uid", "status") else []
    values += [10**5000] if field in ("status", "task_name") else []
    for value in values:
        with pytest.raises(QueryError) as caught:
            parse_query({field: {"$in": [value]}})
        assert len(str(caught.value)) < 300


def test_a_string_of_another_class_is_a_string():
    class Name(str):
        __slots__ = ()

    assert parse_query({"status": Name("completed")}) == parse_query({"status": Status.COMPLETED})
    with pytest.raises(QueryError, match="expected a status"):
        parse_query({"status": Name("Completed")})


@pytest.mark.parametrize("name", ["reward", "rewards", "score"])
def test_a_field_of_rollouts_leads_to_the_mean_of_the_group(name):
    with pytest.raises(QueryError, match=rf'^where\.{name}: unknown field; did you mean "reward_mean"\?$'):
        parse_query({name: 1.0})
