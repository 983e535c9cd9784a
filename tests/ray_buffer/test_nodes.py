"""A node dies: what it held in memory is lost and counted, what is on shared storage comes back on another."""

import pytest

from ray_buffer.actors import total
from ray_buffer.pool import own_buffer
from reroll import ReplayBufferConfig
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group, names

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def third_node(ray_cluster):
    """Return a function that starts the node `three`; it is removed at the end."""
    nodes = []

    def start():
        nodes.append(
            ray_cluster.add_node(
                num_cpus=0,
                resources={"three": 1000},
                object_store_memory=80_000_000,
                include_dashboard=False,
            )
        )
        return nodes[-1]

    yield start
    ray_cluster.remove_node(nodes[-1])


def on(shard):
    return {"resources": {("three", "one")[shard]: 0.001}}


async def test_a_node_that_dies_costs_its_groups_and_they_are_counted(ray_cluster, third_node, tmp_path):
    node = third_node()
    memory = ReplayBufferConfig(sampler="fifo")
    stored = ReplayBufferConfig(sampler="fifo", store=tmp_path / "shared")
    with (
        own_buffer(memory, num_shards=2, placement=on) as lossy,
        own_buffer(stored, num_shards=2, placement=on) as safe,
    ):
        for name in range(10):
            await lossy.put(group(name), "t")
            await safe.put(group(name), "t")
        await lossy.take_batch({"t": 2}, wait=True)
        assert total(await lossy.ledger(), "consumed") == 2  # which a shard in memory hears of a moment later
        ray_cluster.remove_node(node, allow_graceful=False)
        third_node()
        books = (await lossy.ledger())["t"]
        assert closes(books)
        assert books["put"].groups == 10
        assert (books["lost"].groups, books["resident"].groups) == (4, 4)
        assert sorted(names(await safe.get(10, "t", "completed"))) == list(range(10))
        assert total(await safe.ledger(), "lost") == 0
