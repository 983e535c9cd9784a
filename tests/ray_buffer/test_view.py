"""A buffer on Ray, looked at by its name."""

import pytest

from observe.groups import CONFIG, fill
from ray_buffer.pool import buffer_of
from reroll import Closed
from reroll.observe import open_view


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_buffer_is_looked_at_by_name(ray_cluster, shards):
    with buffer_of(CONFIG, num_shards=shards) as buffer:
        await fill(buffer)
        async with await open_view(f"ray:tests/{buffer._spec.name}") as view:
            stats = await view.stats()
            assert (stats.total.num_groups, stats.tasks["math"].trained.groups) == (11, 2)
            assert (stats.tasks["math"].limits.capacity, stats.tasks["math"].limits.occupied) == (100, 6)
            assert await view.ledger() == await buffer.ledger()
            page = await view.rows({"task_name": "code"}, order_by="-priority", limit=2, offset=1)
            assert ([row["tags"] for row in page.rows], page.total) == ([{"n": 6}, {"n": 3}], 4)
            told = await view.group(page.rows[0]["uid"])
            assert told["rollouts"][0]["versions"] == [(0, 4), (1, 4)]


async def test_a_name_that_there_is_not(ray_cluster):
    with pytest.raises(Closed, match="no buffer"):
        await open_view("ray://looking/nobody", timeout=1.0)
