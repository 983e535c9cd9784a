"""Query nodes: dicts and ready nodes, mixed; wrong ones are refused when they are made, with their path."""

import dataclasses
import pickle
import typing

import pytest

from integrations.states import state
from reroll import QueryError, Status
from reroll.integrations.xtuner import (
    QUERY_KEYS,
    BetweenNode,
    ConditionNode,
    LogicNode,
    LogicOperator,
    Operators,
    QueryDict,
    QueryKey,
    QueryNode,
    QueryType,
    ScalarNode,
    SetNode,
    StorageItem,
    parse_query,
)
from reroll.query.parse import LOGIC, OPERATORS


def test_a_value_is_an_equality():
    assert parse_query({"task_name": "math"}) == ScalarNode("task_name", "$eq", "math")


def test_several_conditions_are_joined():
    parsed = parse_query({"staleness": {"$gt": 0, "$lte": 5}, "uid": {"$in": [1, 2]}})
    expected = [
        ScalarNode("staleness", "$gt", 0),
        ScalarNode("staleness", "$lte", 5),
        SetNode("uid", "$in", [1, 2]),
    ]
    assert parsed == LogicNode("$and", expected)


def test_logic_nests_and_nodes_stand_among_dicts():
    ready = BetweenNode("uid", 1, 3)
    parsed = parse_query({"$or": [ready, {"$not": {"status": Status.FAILED}}, {"$and": [ready, {}]}]})
    assert isinstance(parsed, LogicNode)
    assert parsed.relation == "$or"
    assert parsed.conditions[0] is ready
    assert parsed.conditions[1] == LogicNode("$not", [ScalarNode("status", "$eq", "failed")])
    assert parsed.conditions[2] == LogicNode("$and", [ready, LogicNode("$and", [])])


def test_a_ready_node_is_taken_as_it_is():
    node = LogicNode("$and", [ScalarNode("uid", "$gt", 1)])
    assert parse_query(node) is node
    assert isinstance(node, QueryNode)
    assert isinstance(node.conditions[0], ConditionNode)
    assert pickle.loads(pickle.dumps(node)) == node  # noqa: S301  (our own bytes)


def test_the_operators_are_those_of_the_language():
    assert typing.get_args(Operators) == OPERATORS
    assert typing.get_args(LogicOperator) == LOGIC


WRONG = [
    ({"nope": 1}, r"where\.nope.*unknown field"),
    ({"priority": 1.0}, "unknown field"),  # of buffers, not of items
    ({"stalenes": 1}, 'did you mean "staleness"'),
    ({"uid": "1"}, "expected a number"),
    ({"uid": {"$nin": [1]}}, "unknown operator"),
    ({"uid": {}}, "an operator is needed"),
    ({"uid": {1: 1}}, "operators are"),
    ({"uid": {"$between": [2, 1]}}, "lower bound is above"),
    ({"uid": {"$between": [1]}}, r"\[lower, upper\]"),
    ({"status": "done"}, "one of: init"),
    ({"status": {"$lt": "failed"}}, "no order"),
    ({"task_name": {"$in": "math"}}, "expected a list"),
    ({"item": {"$gt": []}}, "no order"),
    ({"item": {"$in": 1}}, "expected a list"),
    ({"$and": {}}, "takes a list"),
    ({1: 1}, "keys are field names"),
    (
        {"$or": [{"uid": 1}, {"$not": {"uid": None, "staleness": "x"}}]},
        r'where\["\$or"\]\[1\]\["\$not"\]\.staleness',
    ),
    ("uid", "a query is a dict or a node"),
]


@pytest.mark.parametrize(("query", "message"), WRONG, ids=str)
def test_wrong_queries_are_refused_with_their_path(query, message):
    with pytest.raises(QueryError, match=message):
        parse_query(query)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScalarNode("nope", "$eq", 1),
        lambda: ScalarNode("uid", "$in", 1),
        lambda: SetNode("uid", "$in", 3),
        lambda: BetweenNode("uid", 3, 1),
        lambda: BetweenNode("item", [], []),
        lambda: LogicNode("$nor", []),
        lambda: LogicNode("$and", [{"uid": 1}]),
        lambda: LogicNode("$not", []),
    ],
)
def test_wrong_nodes_cannot_be_made(make):
    with pytest.raises(QueryError):
        make()


def test_a_dict_that_holds_itself_ends():
    query: dict = {}
    query["$and"] = [query]
    with pytest.raises(QueryError, match="nested"):
        parse_query(query)


def test_groups_are_compared_as_a_whole():
    assert parse_query({"item": [state(1)]}) == ScalarNode("item", "$eq", [state(1)])
    assert parse_query({"item": [state(1)]}) != ScalarNode("item", "$eq", [state(2)])


def test_the_names_of_types():
    assert [column.name for column in dataclasses.fields(StorageItem)] == QUERY_KEYS
    assert set(typing.get_args(QueryType)) == {QueryDict, QueryNode}
    assert typing.get_args(QueryDict)[0] is QueryKey
