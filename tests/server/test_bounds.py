"""Peers that send or ask for far too much: the memory of the server stays within its limits, and others are answered."""

import asyncio
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import zmq

from reroll import InvalidArgument, connect
from reroll.codec import codes
from reroll.codec.arrays import UINT8
from reroll.codec.framing import join
from reroll.remote.values import to_bytes
from reroll.server.wire import HEAD, Call, ToServer, frames_of
from reroll.testing.buffer.builders import group
from server.program import Program

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
    same = msgspec.msgpack.Ext(codes.BYTES, (0).to_bytes(4, "little"))
    body = msgspec.msgpack.encode([0, {"where": [same] * times}])
    return join(table, body, [bytes(num_bytes)])


def long_lists(name: str) -> list[bytes]:
    body: list[Any] = [[], [], [], None]
    body[{"cancelled": 1, "received": 2, "waiting": 3}[name]] = list(range(1 << 32, (1 << 32) + 600_000))
    return [HEAD + msgspec.msgpack.encode(body)]


def allowed_lists(name: str) -> list[bytes]:
    return frames_of(ToServer(**{name: list(range(1 << 32, (1 << 32) + 16_000))}))


def calls(verb: str, arguments: Any, *, number: int = 1, times: int = 1) -> list[bytes]:
    body = arguments if isinstance(arguments, bytes) else to_bytes(arguments)
    return frames_of(ToServer([Call(number + n, verb, body) for n in range(times)]))


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
        await asyncio.gather(*(other.put(group(n), "t") for n in range(900)))
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
