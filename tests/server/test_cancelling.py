"""A call and its cancellation that a server reads in one pass: the pool serves other clients, and the server stops."""

import asyncio
import contextlib
import random
import signal
import time
from contextlib import contextmanager

import pytest
import zmq

from reroll import ReplayBufferConfig, Server, connect
from reroll.remote.protocol import Call, ClientMessage, decode_host_message, encode_message
from reroll.remote.values import to_bytes
from reroll.server import Limits
from reroll.testing.buffer.builders import group, names
from server.program import Program
from server.waiting import until

STOP_S = 20.0
"""A server that hangs never stops; one on a busy machine takes seconds."""


@contextmanager
def paused(program):
    """Stop the process of a server, so that it reads all that is sent inside in one pass."""
    program.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        program.process.send_signal(signal.SIGCONT)


def started(tmp_path, kind, *options, capacity=1):
    config = tmp_path / "buffer.yaml"
    config.write_text(f"sampler: fifo\ncapacity: {capacity}\n")
    store = ["--store", str(tmp_path / "store")] if kind == "durable" else []
    return Program("--config", str(config), *store, *options)


async def held(client):
    """Return how many calls wait, and how many leases and reservations are open."""
    stats = await client.stats()
    return sum(wait.count for wait in stats.total.waiting.values()) + stats.leases + stats.reservations


async def check_that_others_are_served(address):
    """Check that nothing of a cancelled call is left, as another client sees it; groups and room are there."""
    async with connect(address) as other:
        async with asyncio.timeout(60):
            while await held(other):  # noqa: ASYNC110  (the server hears of a cancellation a moment before its call ends)
                await asyncio.sleep(0.01)
        for number in range(2):
            await other.put(group(number), "t", timeout=30)
            groups, _ = await other.take_batch({"t": 1}, wait=True, timeout=30)
            assert names(groups["t"]) == [number]


@pytest.mark.parametrize("kind", ["memory", "durable"])
async def test_a_take_that_ends_while_the_server_is_stopped(tmp_path, kind):
    with started(tmp_path, kind) as program:
        async with connect(program.address) as client:
            await client.health()
            with paused(program):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.take_batch({"t": 1}, wait=True), 0.3)
                await asyncio.sleep(0.3)
            await client.health()  # read after the cancellation
            await check_that_others_are_served(program.address)
        began = time.monotonic()
        assert program.stop() == 0
        assert time.monotonic() - began < STOP_S


@pytest.mark.parametrize("verb", ["take_batch", "lease", "sample", "put", "wait_ready"])
async def test_calls_that_are_cancelled_a_turn_after_they_were_sent(tmp_path, verb):
    with started(tmp_path, "memory") as program:
        async with connect(program.address) as client:
            if verb == "put":
                await client.put(group("first"), "t")  # no room for another one

            async def wait():
                if verb == "put":
                    await client.put(group(), "t")
                elif verb == "sample":
                    await client.sample(1, "t")
                elif verb == "wait_ready":
                    await client.wait_ready({"t": 1})
                elif verb == "lease":
                    await client.lease({"t": 1}, wait=True)
                else:
                    await client.take_batch({"t": 1}, wait=True)

            await client.health()
            with paused(program):
                for _ in range(300):
                    call = asyncio.ensure_future(wait())
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)  # it is sent
                    call.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await call
            await client.health()
            if verb == "put":
                assert names(await client.get(2, "t", "completed")) == ["first"]
            await check_that_others_are_served(program.address)
        began = time.monotonic()
        assert program.stop() == 0
        assert time.monotonic() - began < STOP_S


@pytest.mark.parametrize("kind", ["memory", "durable"])
async def test_saves_that_clients_cancel(tmp_path, kind):
    """The server lives, and the next save finds the directory free."""
    dice = random.Random(0)
    with started(tmp_path, kind, "--checkpoints", str(tmp_path / "saved"), capacity=1000) as program:
        async with connect(program.address) as client:
            for number in range(100):
                await client.put(group(number, tokens=5000), "t")
            for _ in range(20):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.save("here"), dice.uniform(0.002, 0.04))
            await client.save("here")
            assert (await client.health())["groups"] == 100
        assert program.stop() == 0
    again = ReplayBufferConfig(sampler="fifo", capacity=1000).build()
    await again.resume(tmp_path / "saved" / "here")
    assert len(again) == 100


class Sleepy:
    """A service whose only verb waits."""

    verbs = ("wait",)

    async def wait(self):
        await asyncio.Event().wait()

    async def stop(self):
        pass


async def test_a_call_of_a_service_that_is_cancelled_in_the_message_that_asks_for_it_is_over():
    server = Server(ReplayBufferConfig(), "tcp://127.0.0.1:0", limits=Limits(max_pending_calls=1))
    server.add_service("sleepy", Sleepy())
    async with server:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.connect(server.address)
            asked = ClientMessage([Call(1, "sleepy.wait", to_bytes({}))], cancelled=[1])
            socket.send_multipart(encode_message(asked))
            for number in range(2, 50):  # until the first call is over, the server allows no other
                socket.send_multipart(encode_message(ClientMessage([Call(number, "health", to_bytes({}))])))
                await until(lambda: bool(socket.poll(0)))
                (answer,) = decode_host_message(socket.recv_multipart()).replies
                if not answer.is_error:
                    break
            assert not answer.is_error
