import pytest

from reroll.query import only_pool, parse_query
from reroll.rollout import Status


@pytest.mark.parametrize(
    ("where", "pool"),
    [
        ({"task_name": "math"}, ("math", None)),
        ({"status": "failed"}, (None, Status.FAILED)),
        ({"task_name": "math", "status": Status.FAILED}, ("math", Status.FAILED)),
        ({"status": {"$eq": "failed"}, "task_name": {"$in": ["math"]}}, ("math", Status.FAILED)),
        ({"$and": [{"task_name": ""}, {"status": "init"}]}, ("", Status.INIT)),
        ({}, None),
        ({"$or": []}, None),
        ({"uid": 1}, None),
        ({"uid": 1, "task_name": "math"}, None),
        ({"group_id": "math"}, None),
        ({"task_name": None}, None),
        ({"task_name": {"$ne": "math"}}, None),
        ({"task_name": {"$gte": "math"}}, None),
        ({"task_name": {"$in": ["math", "code"]}}, None),
        ({"task_name": {"$in": []}}, None),
        ({"status": {"$in": ["failed", None]}}, None),
        ({"$and": [{"task_name": "math"}, {"task_name": "code"}]}, None),
        ({"$or": [{"task_name": "math"}, {"status": "failed"}]}, None),
        ({"$not": {"task_name": "math"}}, None),
    ],
)
def test_only_pool(where, pool):
    found = only_pool(parse_query(where))
    assert found == pool
    if pool is not None and pool[1] is not None:
        assert type(found[1]) is Status
