"""What a server takes up: memory when consumers stop, processor time while calls wait."""

import asyncio
import os
from pathlib import Path

import pytest
import zmq

from reroll import LimitReached, ReplayBufferConfig, Server, WaitTimeout, connect
from reroll.remote.protocol import Call, ClientMessage, encode_message
from reroll.remote.values import to_bytes
from reroll.testing.buffer.builders import group
from server.program import Program

MEGABYTE = 1 << 20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def large() -> list:
    return group(response="x" * MEGABYTE)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("remover", ["", "remover: fifo\n"])
async def test_memory_is_bounded_when_consumers_stop(tmp_path, remover):
    config = tmp_path / "buffer.yaml"
    config.write_text(f"sampler: fifo\ncapacity: 8\n{remover}")
    with Program("--config", str(config), "--max-pending-bytes", str(16 * MEGABYTE)) as server:
        async with connect(server.address) as producer:
            await asyncio.gather(*(producer.put(large(), "t") for _ in range(8)))
            before = resident_bytes(server.process.pid)
            held = evicted = refused = 0
            for _ in range(10):
                calls = [producer.put(large(), "t", timeout=0.05) for _ in range(20)]
                done = await asyncio.gather(*calls, return_exceptions=True)
                held += sum(isinstance(one, WaitTimeout) for one in done)
                refused += sum(isinstance(one, LimitReached) for one in done)
                evicted += sum(isinstance(one, int) for one in done)
            assert held + refused + evicted == 200
            assert (evicted > 0) == bool(remover)
            assert (held > 0) != bool(remover)
            assert await producer.count("t", "completed") == 8
            grown = resident_bytes(server.process.pid) - before
            assert grown < 80 * MEGABYTE, "200 megabytes were offered"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
async def test_memory_is_bounded_when_a_client_does_not_read():
    with Program("--max-pending-calls", "20") as server, zmq.Context() as context:
        async with connect(server.address) as other:
            for _ in range(15):
                await asyncio.gather(*(other.put(group(), "t") for _ in range(20)))
            before = resident_bytes(server.process.pid)
            with context.socket(zmq.DEALER) as silent:
                for option, value in ((zmq.LINGER, 0), (zmq.RCVHWM, 1), (zmq.RCVBUF, 4096)):
                    silent.setsockopt(option, value)
                silent.connect(server.address)
                asked = encode_message(ClientMessage([Call(1, "query", to_bytes({"where": {}}))]))
                for sent in range(2000):  # each time for an answer of 70 KB
                    silent.send_multipart(asked)
                    if sent % 50 == 0:
                        await other.count("t", "completed")
                assert await other.count("t", "completed") == 300
                grown = resident_bytes(server.process.pid) - before
                assert grown < 60 * MEGABYTE, "140 megabytes were asked for"


@pytest.mark.slow  # it looks at a clock
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
async def test_a_thousand_waiting_calls_cost_nothing():
    with Program() as server:
        async with connect(server.address) as client:
            calls = [asyncio.ensure_future(client.take_batch({"t": 1}, wait=True)) for _ in range(1000)]
            await client.health()
            before = cpu_s(server.process.pid)
            await asyncio.sleep(2.0)
            assert cpu_s(server.process.pid) - before < 0.2
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_many_calls_wait_in_order():
    config = ReplayBufferConfig(sampler="fifo")
    async with Server(config, "tcp://127.0.0.1:0") as server, connect(server.address) as client:
        calls = [asyncio.ensure_future(client.take_batch({"t": 1}, wait=True)) for _ in range(200)]
        await asyncio.gather(*(client.put(group(number), "t") for number in range(200)))
        taken = [groups["t"][0][0].group_id for groups, _ in await asyncio.gather(*calls)]
        assert taken == list(range(200)), "in order of arrival"
