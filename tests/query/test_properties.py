"""Laws over generated queries and rows; above all, that the fast evaluator agrees with the oracle."""

import contextlib
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query.rows import Columns
from query.strategies import (
    collections,
    junk,
    malformed,
    number_fields,
    numbers,
    or_missing,
    queries,
    row_lists,
    scalar_fields,
    scalars,
    statuses,
)
from reroll.errors import QueryError
from reroll.query import Not, mask, matches, only_pool, parse_query

# Enough to meet the rare pairs (a big integer beside the float next to it) in every run.
thorough = settings(max_examples=max(500, settings.default.max_examples))


def oracle(where, rows):
    query = parse_query(where)
    return [matches(query, row) for row in rows]


@thorough
@given(queries, row_lists)
def test_columns_agree_with_the_oracle(where, rows):
    assert mask(parse_query(where), Columns(rows)).tolist() == oracle(where, rows)


@thorough
@given(number_fields, st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte"]), numbers, row_lists)
def test_columns_agree_on_every_number(field, operator, operand, rows):
    where = {field: {operator: operand}}
    assert mask(parse_query(where), Columns(rows)).tolist() == oracle(where, rows)


@given(number_fields, st.lists(or_missing(numbers), max_size=40), row_lists)
def test_columns_agree_on_long_lists(field, wanted, rows):
    where = {field: {"$in": wanted}}
    assert mask(parse_query(where), Columns(rows * 8)).tolist() == oracle(where, rows) * 8


@given(queries, row_lists)
def test_not_negates(where, rows):
    assert oracle({"$not": where}, rows) == [not answer for answer in oracle(where, rows)]
    assert oracle({"$not": {"$not": where}}, rows) == oracle(where, rows)


fields_with_values = st.one_of(
    st.tuples(number_fields, or_missing(numbers), collections(or_missing(numbers))),
    st.tuples(scalar_fields, scalars, collections(scalars)),
    st.tuples(st.just("status"), or_missing(statuses), collections(or_missing(statuses))),
)


@given(fields_with_values, row_lists)
def test_ne_and_not_in_are_exact_negations(case, rows):
    field, value, values = case
    assert oracle({field: {"$ne": value}}, rows) == oracle({"$not": {field: {"$eq": value}}}, rows)
    assert oracle({field: {"$not_in": values}}, rows) == oracle({"$not": {field: {"$in": values}}}, rows)
    assert oracle({field: {"$in": values}}, rows) == oracle({"$or": [{field: one} for one in values]}, rows)


@given(st.lists(queries, max_size=3), row_lists)
def test_de_morgan(parts, rows):
    negated = [{"$not": part} for part in parts]
    assert oracle({"$not": {"$and": parts}}, rows) == oracle({"$or": negated}, rows)
    assert oracle({"$not": {"$or": parts}}, rows) == oracle({"$and": negated}, rows)


@given(queries, row_lists)
def test_a_parsed_query_means_what_the_dict_means(where, rows):
    query = parse_query(where)
    assert parse_query(query) is query
    assert parse_query({"$and": [query]}) == query
    assert parse_query({"$not": query}) == Not(query)
    assert pickle.loads(pickle.dumps(query)) == query  # noqa: S301  (our own bytes)


@given(
    st.one_of(
        queries, st.fixed_dictionaries({}, optional={"task_name": st.just("math"), "status": statuses})
    ),
    row_lists,
)
def test_a_pool_is_the_whole_query(where, rows):
    pool = only_pool(parse_query(where))
    if pool is not None:
        asked = {
            name: value
            for name, value in zip(("task_name", "status"), pool, strict=True)
            if value is not None
        }
        assert oracle(asked, rows) == oracle(where, rows)


@given(malformed)
def test_one_wrong_part_spoils_the_query(where):
    with pytest.raises(QueryError, match=r"^where"):
        parse_query(where)


@thorough
@given(junk, row_lists)
def test_junk_raises_query_errors_only(where, rows):
    with contextlib.suppress(QueryError):
        query = parse_query(where)
        assert mask(query, Columns(rows)).tolist() == [matches(query, row) for row in rows]
