"""Peers that send or ask for far too much: the memory of the server stays within its limits, and others are answered."""

import asyncio
import os
import re
import resource
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import zmq

from reroll import InvalidArgument, ReplayBufferConfig, Server, connect
from reroll.codec.arrays import UINT8
from reroll.codec.frame import Code, join
from reroll.remote.protocol import HEAD, Call, ClientMessage, encode_message
from reroll.remote.values import to_bytes
from reroll.server import Limits
from reroll.testing.buffer.builders import group
from server.program import Program
from server.waiting import until

PENDING_BYTES = 32 << 20
ALLOWED = PENDING_BYTES + (100 << 20)
PATIENCE_S = 30.0
"""Answers take milliseconds; machines are busy."""


class Peer:
    """A peer that sends what it likes, and reads nothing."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 1)
        self.socket.setsockopt(zmq.SNDTIMEO, 60_000)
        self.socket.connect(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self._context.term()


def peak_bytes(pid: int) -> int:
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024


def many_references(num_bytes: int, times: int) -> bytes:
    """Return the arguments of a call in which a list has the same bytes many times."""
    table = msgspec.msgpack.encode([(UINT8, num_bytes)])
    same = msgspec.msgpack.Ext(Code.BYTES, (0).to_bytes(4, "little"))
    body = msgspec.msgpack.encode([0, {"where": [same] * times}])
    return join(table, body, [bytes(num_bytes)])


def long_lists(name: str) -> list[bytes]:
    body: list[Any] = [[], [], [], None]
    body[{"cancelled": 1, "received": 2, "waiting": 3}[name]] = list(range(1 << 32, (1 << 32) + 600_000))
    return [HEAD + msgspec.msgpack.encode(body)]


def allowed_lists(name: str) -> list[bytes]:
    return encode_message(ClientMessage(**{name: list(range(1 << 32, (1 << 32) + 16_000))}))


def calls(verb: str, arguments: Any, *, number: int = 1, times: int = 1) -> list[bytes]:
    body = arguments if isinstance(arguments, bytes) else to_bytes(arguments)
    return encode_message(ClientMessage([Call(number + n, verb, body) for n in range(times)]))


PATTERNS = {
    "millions of cancelled numbers": (long_lists("cancelled"), 4),
    "many cancelled numbers": (allowed_lists("cancelled"), 300),
    "millions of received numbers": (long_lists("received"), 4),
    "heartbeats with long lists": (allowed_lists("waiting"), 1500),
    "heartbeats with longer lists": (long_lists("waiting"), 20),
    "many references to the same bytes": (calls("query", many_references(1 << 20, 2000)), 2),
    "one call, again and again": (calls("query", {"where": {}}), 4000),
    "calls that are refused": (calls("nonsense", {}, times=4_000), 40),
}


@pytest.mark.parametrize(("frames", "times"), PATTERNS.values(), ids=PATTERNS)
async def test_memory_stays_within_the_limits_and_others_are_answered(frames, times):
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Program("--max-pending-bytes", str(PENDING_BYTES)))
        other = await stack.enter_async_context(connect(server.address))
        await asyncio.gather(*(other.put(group(n), "t", tags={"text": "x" * 8000}) for n in range(900)))
        before = peak_bytes(server.process.pid)
        peer = stack.enter_context(Peer(server.address))

        def send() -> None:
            for _ in range(times):
                peer.socket.send_multipart(frames)

        sending, longest = asyncio.ensure_future(asyncio.to_thread(send)), 0.0
        quiet = 0
        while quiet < 20:  # all is sent, and the server answers quickly again
            started = time.monotonic()
            assert await other.count("t", "completed") == 900
            took = time.monotonic() - started
            longest = max(longest, took)
            quiet = quiet + 1 if sending.done() and took < 0.05 else 0
        await sending
        grown = peak_bytes(server.process.pid) - before
        assert grown < ALLOWED
        assert longest < PATIENCE_S
        assert server.process.poll() is None


async def test_a_draw_with_replacement_is_limited():
    with Program() as server:
        async with connect(server.address) as client:
            await client.put(group("g"), "t")
            with pytest.raises(InvalidArgument, match="at most 65536 at once"):
                await client.sample(10_000_000, "t", replace=True)


async def test_a_client_with_more_calls_than_fit_into_a_message_is_served():
    with Program("--max-pending-calls", "100000") as server:
        async with connect(server.address, heartbeat_s=0.2) as client:
            waiting = [asyncio.ensure_future(client.is_ready({"t": n})) for n in range(1, 20_001)]
            assert not any(await asyncio.gather(*waiting))


FEW_FILES = 128


def processor_s(pid: int) -> float:
    """Return how long a process has run on processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_idle_connections_do_not_stop_other_clients_nor_take_a_processor():
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Program())
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))
        before = await stack.enter_async_context(connect(server.address, heartbeat_s=0.2))
        await before.put(group("g"), "t")
        context = stack.enter_context(zmq.Context())
        for _ in range(200):
            peer = stack.enter_context(context.socket(zmq.DEALER))
            peer.setsockopt(zmq.LINGER, 0)
            peer.setsockopt(zmq.RECONNECT_IVL, -1)
            peer.connect(server.address)
        used, started = processor_s(server.process.pid), time.monotonic()
        after = await stack.enter_async_context(connect(server.address))
        for client in (before, after):
            assert await asyncio.wait_for(client.count("t", "completed"), PATIENCE_S) == 1
        await asyncio.sleep(2.0)  # what it takes while nothing is asked
        took = time.monotonic() - started
        assert processor_s(server.process.pid) - used < 0.5 * took


async def test_a_peer_that_says_nothing_after_its_handshake_is_closed(monkeypatch):
    monkeypatch.setattr("reroll.server.server._SILENT_S", 0.5)
    limits = Limits(client_ttl_s=0.5)
    async with (
        Server(ReplayBufferConfig(sampler="fifo"), "tcp://127.0.0.1:0", limits=limits) as server,
        connect(server.address, heartbeat_s=0.1) as client,
    ):
        await client.count("t", "completed")
        with Peer(server.address) as peer:
            events = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            await until(lambda: bool(events.poll(0)))
            peer.socket.disable_monitor()
            events.close()
        assert await client.count("t", "completed") == 0
