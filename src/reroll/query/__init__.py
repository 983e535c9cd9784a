"""The query language: plain dicts that select groups of a buffer.

    query     = {entry, ...}                  every entry must hold; {} matches everything
    entry     = "$and": [query, ...]          all hold; an empty list is true
              | "$or":  [query, ...]          one holds; an empty list is false
              | "$not": query
              | field: value                  the same as field: {"$eq": value}
              | field: {operator: operand, ...}
    operator  = "$eq" | "$ne"                 operand: one value, or None for a missing value
              | "$gt" | "$gte" | "$lt" | "$lte"    operand: one value
              | "$in" | "$not_in"             operand: a list, tuple or set of values
              | "$between"                    operand: [lower, upper], both included
    field     = a name of FIELDS | "tags.<name>"

A missing value (None or NaN) equals only None and satisfies no ordering; "$ne" and "$not_in" are the exact negations of
"$eq" and "$in". Values of different types are never equal: True is not 1, "1" is not 1, but 1 is 1.0.

`parse` finds all errors of a query; evaluating a parsed query raises none.
"""

from reroll.query.evaluate import ColumnSource, Queryable, cost, mask, matches, only_pool
from reroll.query.nodes import FIELDS, And, Compare, Kind, Not, OneOf, Or, Query, Scalar, tag_of, typed
from reroll.query.parse import parse_query

__all__ = [
    "FIELDS",
    "And",
    "ColumnSource",
    "Compare",
    "Kind",
    "Not",
    "OneOf",
    "Or",
    "Query",
    "Queryable",
    "Scalar",
    "cost",
    "mask",
    "matches",
    "only_pool",
    "parse_query",
    "tag_of",
    "typed",
]
