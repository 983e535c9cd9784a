"""The conformance suite, run by clients of a server in another process: over tcp and ipc, durable, and for threads."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from buffer.test_suite import Called
from reroll import BlockingReplayBuffer, ReplayBuffer, ReplayBufferConfig, connect, connect_blocking
from reroll.remote.client import BlockingRemoteBuffer, RemoteBuffer
from reroll.testing.buffer.builders import group, names
from reroll.testing.buffer_suite import BufferSuite, VerbSuite
from server.hosting import Host


class Served:
    """Each buffer of a test is a server of its own."""

    bind = "tcp://127.0.0.1:0"

    @pytest.fixture(autouse=True)
    def place(self, host: Host, tmp_path: Path) -> None:
        self.host = host
        self.folder = tmp_path
        self.clients: list[Any] = []

    def serve(self, config: ReplayBufferConfig) -> str:
        return self.host.start(config, self.bind.format(self.folder / str(len(self.clients))))


class TestTcp(Served, BufferSuite):
    async def make(self, config: ReplayBufferConfig) -> Any:
        self.clients.append(connect(self.serve(config)))
        return self.clients[-1]

    async def settle(self) -> None:
        """What was sent has arrived, and what came of it is here: answers keep their order."""
        for _ in range(3):
            await super().settle()
            await asyncio.gather(*(client.health() for client in self.clients))


@pytest.mark.slow
class TestIpc(TestTcp):
    bind = "ipc://{}"


@pytest.mark.slow
class TestDurable(TestTcp):
    def serve(self, config: ReplayBufferConfig) -> str:
        store = self.folder / f"store-{len(self.clients)}"
        return super().serve(config.model_copy(update={"store": store}))


class TestIpcBlocking(Served, VerbSuite):
    bind = "ipc://{}"

    async def make(self, config: ReplayBufferConfig) -> Any:
        self.clients.append(connect_blocking(self.serve(config)))
        return Called(self.clients[-1])


@pytest.mark.parametrize(
    ("ours", "theirs"), [(RemoteBuffer, ReplayBuffer), (BlockingRemoteBuffer, BlockingReplayBuffer)]
)
def test_clients_have_the_verbs_and_signatures_of_buffers(ours, theirs):
    verbs = {name: verb for name, verb in inspect.getmembers(theirs) if not name.startswith("_")}
    assert verbs
    for name, verb in verbs.items():
        twin = getattr(ours, name)
        assert inspect.iscoroutinefunction(twin) == inspect.iscoroutinefunction(verb), name
        if name != "close":
            assert inspect.signature(twin) == inspect.signature(verb), name
            assert twin.__doc__ == verb.__doc__, name


async def test_tables_cross(host):
    config = ReplayBufferConfig(sampler="fifo")
    local = config.build()
    async with connect(host.start(config, "tcp://127.0.0.1:0")) as client:
        for number in range(3):
            for buffer in (local, client):
                await buffer.put(group(number, members=2, reward=1.0), "t", tags={"x": number})
        where = {"uid": {"$gte": 2}}
        assert (await client.to_arrow(where)).drop_columns("num_bytes") == (
            (await local.to_arrow(where)).drop_columns("num_bytes")
        )
        assert (await client.to_arrow(payloads=True)).num_rows == 6
        assert (await client.to_pandas(where))["uid"].tolist() == [2, 3]


async def test_replay_samples_cross(host):
    config = ReplayBufferConfig(sampler="prioritized", max_times_sampled=3, seed=1)
    local = config.build()
    async with connect(host.start(config, "tcp://127.0.0.1:0")) as client:
        for number in range(8):
            for buffer in (local, client):
                await buffer.put(group(number), "t", priority=1.0 + number)
        for options in ({}, {"replace": True}, {"allow_short": True}, {}):
            here, there = [await buffer.sample(4, "t", train_step=1, **options) for buffer in (local, client)]
            assert [info for _, info in there] == [info for _, info in here]
            assert names([taken for taken, _ in there]) == names([taken for taken, _ in here])
        assert names(await client.get(2, "t", "completed")) == names(await local.get(2, "t", "completed"))
        assert (await client.ledger())["t"] == (await local.ledger())["t"]
        async with client.lease({"t": 2}) as batch:
            assert batch.samples["t"][0].info.times_sampled >= 1
            await batch.ack()
