"""Generated rows, queries and wrong queries.

Operands are drawn from the same small pool as the stored values, and from the numbers right beside them, so that
conditions are met, just met and just missed far more often than by chance.
"""

import math

import numpy as np
from hypothesis import strategies as st

from query.rows import FLOAT_FIELDS, INT32_FIELDS, INT_FIELDS, Row
from reroll import errors
from reroll.query import parse_query
from reroll.rollout import Status

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
EDGES = sorted({edge + d for edge in (0, *INT32, 2**53, -(2**53), *INT64) for d in (-2, -1, 0, 1, 2)})


NUMBERS = [*EDGES, *map(float, EDGES), 0.5, -0.5, 1.5, 2**70, -(2**70), 10**400, -(10**400), 1e300]


def stored_integers(low, high):
    return st.sampled_from([edge for edge in EDGES if low <= edge <= high]) | st.integers(low, high)


stored_floats = (
    st.sampled_from(
        [0.0, -0.0, 0.5, 1.0, 2.5, 2.0**53, -(2.0**53), 2.0**63, 1e300, math.inf, -math.inf, math.nan]
    )
    | st.floats()
)
# Deferred, so that Hypothesis does not print the long list wherever it names the strategy.
numbers = st.deferred(
    lambda: st.sampled_from(NUMBERS) | st.integers() | st.floats(allow_nan=False) | numpy_numbers
)
numpy_numbers = st.sampled_from([np.int64(2**53 + 1), np.float64(2**53), np.float32(0.5), np.int8(1)])
task_names = st.sampled_from(["", "code", "math", "maths"])
statuses = st.sampled_from(list(Status)) | st.sampled_from([status.value for status in Status])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 1.0, 0.5, 2**53, 2**53 + 1, 2.0**53, math.inf]),
    st.sampled_from([np.float64(2**53), np.int64(1), np.True_]),
    st.sampled_from(["", "1", "a", "b", "True"]),
)
tag_names = st.sampled_from(["level", "set", "a.b"])


def or_missing(values):
    return st.none() | values


rows = st.builds(
    Row,
    **{name: or_missing(stored_integers(*INT64)) for name in INT_FIELDS},
    **{name: or_missing(stored_integers(*INT32)) for name in INT32_FIELDS},
    **{name: or_missing(stored_floats) for name in FLOAT_FIELDS},
    task_name=or_missing(task_names),
    status=or_missing(statuses),
    group_id=scalars | st.just(math.nan),
    tags=st.dictionaries(tag_names, scalars | st.just(math.nan), max_size=3),
)
row_lists = st.lists(rows, max_size=5)

# Few enough that two conditions often meet on one field; each sort of column is among them.
number_fields = st.sampled_from(["uid", "staleness", "attempts", "reward_mean"])
scalar_fields = st.just("group_id") | tag_names.map("tags.".__add__)


def collections(values):
    return (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=4).map(tuple)
        | st.frozensets(values, max_size=4)
    )


def equalities(values):
    return st.one_of(
        values,
        st.fixed_dictionaries({}, optional={"$eq": values, "$ne": values}).filter(bool),
        st.fixed_dictionaries(
            {}, optional={"$in": collections(values), "$not_in": collections(values)}
        ).filter(bool),
    )


def orderings(values):
    pairs = st.tuples(values, values).map(sorted)
    bounds = {"$gt": values, "$gte": values, "$lt": values, "$lte": values, "$between": pairs}
    return st.fixed_dictionaries({}, optional=bounds).filter(bool)


def comparisons(values):
    return equalities(or_missing(values)) | orderings(values)


text = st.sampled_from(["", "1", "a", "b"])
small = st.sampled_from([0, 1, 0.5, 2**53 + 1, 2.0**53])
booleans = st.sampled_from(["$gt", "$gte", "$lt", "$lte"]).flatmap(
    lambda operator: st.fixed_dictionaries({operator: st.booleans()})
)
conditions = st.one_of(
    st.dictionaries(number_fields, comparisons(numbers), max_size=2),
    st.dictionaries(st.just("task_name"), comparisons(task_names), min_size=1),
    st.dictionaries(st.just("status"), equalities(or_missing(statuses)), min_size=1),
    st.dictionaries(
        scalar_fields,
        equalities(scalars) | orderings(small) | orderings(text) | booleans,
        min_size=1,
        max_size=2,
    ),
)


def logic(inner):
    parts = st.lists(inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"$and": parts}),
        st.fixed_dictionaries({"$or": parts | parts.map(tuple)}),
        st.fixed_dictionaries({"$not": inner}),
        st.fixed_dictionaries({"$or": parts, "$not": inner, "uid": comparisons(numbers)}),
        inner.map(parse_query),  # parsed queries may stand inside dicts
    )


queries = st.recursive(conditions, logic, max_leaves=6)

# Whatever a caller might pass: right and wrong keys and values in any shape.
words = ["uid", "status", "task_name", "tags", "tags.", "tags.level", "group_id", "reward_mean", "nope"]
operators = ["$and", "$or", "$not", "$eq", "$ne", "$gt", "$lte", "$in", "$not_in", "$between", "$nope"]
keys = st.sampled_from([*words, *operators]) | st.text(max_size=3) | st.none() | st.integers()
leaves = st.one_of(
    scalars,
    statuses,
    st.text(max_size=3),
    st.floats(),
    st.sampled_from([b"bytes", 1j, object(), Row(), Status, errors.QueryError("x")]),
)
junk = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)
broken = st.sampled_from(
    [
        {"nope": 1},
        {"uid": "1"},
        {"uid": True},
        {"uid": math.nan},
        {"uid": {}},
        {"uid": {"$gt": None}},
        {"uid": {"$between": [2, 1]}},
        {"status": "done"},
        {"status": {"$lt": "failed"}},
        {"task_name": {"$in": "math"}},
        {"tags.level": {"$between": [1, "b"]}},
        {"$and": {}},
        {1: 1},
        [],
        None,
    ]
)


def around(inner):
    """Return right queries with one wrong part in them."""
    return st.one_of(
        st.fixed_dictionaries({"$not": inner}),
        st.tuples(queries, inner, queries).map(lambda parts: {"$or": list(parts)}),
        st.tuples(queries, inner).map(lambda parts: {"uid": 1, "$and": parts}),
    )


malformed = st.recursive(broken, around, max_leaves=3)
