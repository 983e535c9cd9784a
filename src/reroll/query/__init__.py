"""The query language: what to select from a buffer, written as plain dicts.

    query     = {entry, ...}                  every entry must hold; {} matches everything
    entry     = "$and": [query, ...]          all hold; an empty list is true
              | "$or":  [query, ...]          one holds; an empty list is false
              | "$not": query
              | field: value                  the same as field: {"$eq": value}
              | field: {operator: operand, ...}
    operator  = "$eq" | "$ne"                 operand: one value, or None for "missing"
              | "$gt" | "$gte" | "$lt" | "$lte"    operand: one value
              | "$in" | "$not_in"             operand: a list, tuple or set of values
              | "$between"                    operand: [lower, upper], both included
    field     = a name of FIELDS | "tags.<name>"

A missing value (None or NaN) equals only None and satisfies no ordering; "$ne" and "$not_in" are the exact
negations of "$eq" and "$in". Kinds never mix: True is not 1, "1" is not 1, but 1 is 1.0.

    values     what a value is: missing, a boolean, a number or text, and when two are the same
    fields     the fields and what each may hold
    nodes      a parsed query: five frozen nodes
    explain    how an error names a place in a query, a value, and the nearest right name
    operands   one operator and its checked operand become a node
    parse      a dict becomes nodes, or a QueryError that names the path
    evaluate   nodes on one row, in plain Python: the oracle
    columns    nodes on whole columns: fast, and equal to the oracle
    numbers    one condition on a column of numbers, exact for every int and float
    pool       which queries select by task and status alone

All errors of a query are found when it is parsed; evaluation raises none.
"""

from reroll.query.columns import ColumnSource, cost, mask
from reroll.query.evaluate import Queryable, matches
from reroll.query.fields import FIELDS
from reroll.query.nodes import And, Compare, Not, OneOf, Or, Order, Query
from reroll.query.parse import parse_query
from reroll.query.pool import only_pool
from reroll.query.values import Scalar

__all__ = [
    "FIELDS",
    "And",
    "ColumnSource",
    "Compare",
    "Not",
    "OneOf",
    "Or",
    "Order",
    "Query",
    "Queryable",
    "Scalar",
    "cost",
    "mask",
    "matches",
    "only_pool",
    "parse_query",
]
