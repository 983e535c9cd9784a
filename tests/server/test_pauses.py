"""A server that is stopped, or busy, and its clients: the time in which it did not listen is not held against them."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack

from reroll import connect
from reroll.testing.buffer.builders import group
from server.program import Program

TTL_S = 2.0
PAUSE_S = 3 * TTL_S
HOLDER = """
import sys
from reroll import connect_blocking
client = connect_blocking(sys.argv[1])
client.lease({"t": 1}).__enter__()
print("leased", flush=True)
sys.stdin.read()
"""


def hold(address: str) -> "subprocess.Popen[str]":
    """Start a process that leases a group."""
    command = [sys.executable, "-c", HOLDER, address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


async def test_leases_of_live_clients_survive_a_pause_of_the_server():
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Program("--client-ttl-s", str(TTL_S)))
        clients = [
            await stack.enter_async_context(connect(server.address, heartbeat_s=0.2)) for _ in range(5)
        ]
        await asyncio.gather(*(clients[0].put(group(n), "t") for n in range(16)))
        batches = [await client.lease({"t": 4}) for client in clients[:4]]
        greedy = asyncio.ensure_future(
            clients[4].take_batch({"t": 1}, wait=True, timeout=PAUSE_S + 4 * TTL_S)
        )
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_S)  # the length of the pause, not a wait for something
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        for _ in range(20):  # over several sweeps of the server, which were due in the pause or come after it
            assert not greedy.done(), "a group of a live lease holder was handed out again"
            await asyncio.sleep(TTL_S / 10)
        for batch in batches:
            await batch.ack()
        greedy.cancel()
        await asyncio.gather(greedy, return_exceptions=True)
        books = (await clients[0].ledger())["t"]
        assert (books["consumed"].groups, books["resident"].groups) == (16, 0)


async def test_a_client_that_died_during_a_pause_is_still_found():
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Program("--client-ttl-s", str(TTL_S)))
        other = await stack.enter_async_context(connect(server.address, heartbeat_s=0.2))
        await other.put(group("g"), "t")
        holder = hold(server.address)
        stack.enter_context(holder)
        assert await asyncio.to_thread(holder.stdout.readline) == "leased\n"
        os.kill(server.process.pid, signal.SIGSTOP)
        holder.kill()
        os.kill(server.process.pid, signal.SIGCONT)
        groups, _ = await other.take_batch({"t": 1}, wait=True, timeout=60)
        assert len(groups["t"]) == 1
