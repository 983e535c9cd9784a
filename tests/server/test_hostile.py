"""Messages that are no messages, too large, too many, or lies: nobody else notices, and the server lives."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from reroll import LimitReached, ProtocolMismatch, ReplayBufferConfig, Server, Status, connect
from reroll.codec import checksum_of
from reroll.engine.ledger import closes
from reroll.errors import CorruptData, InvalidArgument, RerollError, UnsupportedFormat
from reroll.group.layout import RECORD
from reroll.remote.groups import decode_group, encode_group
from reroll.remote.protocol import (
    HEAD,
    MAGIC,
    VERSION,
    Call,
    ClientMessage,
    Malformed,
    decode_client_message,
    encode_message,
)
from reroll.remote.values import to_bytes, to_error
from reroll.server import Limits
from reroll.testing.buffer.builders import group, names
from server.program import Program
from server.waiting import until

FIFO = ReplayBufferConfig(sampler="fifo", capacity=100)
BIND = "tcp://127.0.0.1:0"
LIMITS = Limits(max_message_bytes=1 << 20, max_pending_calls=20, max_pending_bytes=1 << 20, max_clients=20)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(FIFO, BIND, limits=LIMITS) as made:
        yield made


class Raw:
    """A peer that sends what it likes."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    async def answers(self) -> list[bytes]:
        await until(lambda: bool(self.socket.poll(0)))
        return self.socket.recv_multipart()

    async def answer(self) -> list[Any]:
        """Return the only answer of the next message."""
        (answer,) = msgspec.msgpack.decode((await self.answers())[0][len(HEAD) :])[1]
        return answer

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@pytest.fixture
async def raw(server: Server) -> AsyncIterator[Raw]:
    made = Raw(server.address)
    yield made
    made.close()


async def check_alive(server: Server) -> None:
    """Another client is served as ever."""
    async with connect(server.address, heartbeat_s=0.05, patience_s=10) as client:
        await client.put(group("mine"), "t")
        assert names(await client.get(1, "t", "completed")) == ["mine"]


def call(verb: str, arguments: Any, *blobs: bytes, number: int = 1, count: int | None = None) -> list[bytes]:
    body = arguments if isinstance(arguments, bytes) else to_bytes(arguments)
    return encode_message(
        ClientMessage([Call(number, verb, body, len(blobs) if count is None else count)]), blobs
    )


async def test_random_frames_are_dropped(server, raw):
    dice = random.Random(0)
    for _ in range(300):
        frames = [dice.randbytes(dice.choice((0, 1, 7, 30, 1000))) for _ in range(dice.randint(1, 5))]
        if dice.random() < 0.5:
            frames[0] = HEAD + frames[0]
        raw.send(*frames)
    whole = encode_message(ClientMessage([Call(1, "put", to_bytes({"task_name": "t"}), 1)]), [b"x" * 50])
    for cut in range(len(whole[0])):
        raw.send(whole[0][:cut], whole[1])
    raw.send(whole[0])  # without its blob
    await check_alive(server)
    await until(lambda: server.malformed > 300)


HOSTILE = {
    "an unknown verb": ("nonsense", {}),
    "a private verb": ("_carry_out", {}),
    "a method of the server": ("carry_out", {}),
    "close": ("close", {}),
    "no arguments": ("put", b""),
    "arguments that are no dict": ("put", to_bytes([1, 2])),
    "arguments by number": ("put", to_bytes({1: 2})),
    "unknown arguments": ("put", {"items": [], "task_name": "t", "evil": 1}),
    "wrong types": ("take_batch", {"task_batch_sizes": {"t": "many"}}),
    "a huge number": ("take_batch", {"task_batch_sizes": {"t": 1 << 70}}),
    "self": ("count", {"self": 1, "task_name": "t", "group_status": "completed"}),
    "a path": ("save", {"path": "/etc"}),
    "a lease of nobody": ("ack_lease", {"lease": 99}),
    "a lease that is none": ("ack_lease", {"lease": [1]}),
    "a reservation that is none": ("release", {"reservation": 5}),
    "a service that is not there": ("prepare.get_data", {}),
    "a deep query": ("query", {"where": {"$not": {"$not": {"$not": {"$nothing": 1}}}}}),
}


@pytest.mark.parametrize(("verb", "arguments"), HOSTILE.values(), ids=HOSTILE)
async def test_a_wrong_call_is_answered_by_an_error(server, raw, verb, arguments):
    raw.send(*call(verb, arguments))
    number, is_error, value, *_ = await raw.answer()
    assert (number, is_error) == (1, True)
    assert isinstance(to_error(value), RerollError | TypeError)
    await check_alive(server)


LIES = {
    "members": (0, 1, 3, 1 << 30),
    "num_tokens": (-5, 0, 1 << 50),
    "response_tokens": (-1, 1 << 50),
    "prompt_tokens": (-1, 1 << 41),
    "body_size": (-16, 0, 1 << 40),
    "status": (6, 200),
    "version": (5,),
    "reward_mean": (float("nan"), 2.5),
    "format": (9,),
    "flags": (0xFFFF,),
    "meta_size": (1, 1 << 31),
}


def with_lie(metadata, field, value):
    """Return the metadata of a group whose head lies, with the right checksum."""
    head, objects = msgspec.msgpack.decode(metadata)
    changed = bytearray(head)
    np.frombuffer(changed, RECORD, 1)[field] = value
    struct.pack_into("<I", changed, RECORD.fields["crc"][1], checksum_of(memoryview(changed)[8:]))
    return msgspec.msgpack.encode([bytes(changed), objects])


async def test_lies_about_a_group_are_found(server, raw):
    known, blob = encode_group(group(members=2, reward=1.0))
    lies = [with_lie(known, field, value) for field, values in LIES.items() for value in values]
    payloads = [(b"", blob), (known, b"x" * 80), (known, blob[:-64]), (known, blob[::-1])]
    for number, (told, payload) in enumerate([*payloads, *((lie, blob) for lie in lies)]):
        raw.send(*call("put", {"task_name": "t"}, told, payload, number=number))
        _, is_error, value, *_ = await raw.answer()
        assert is_error, number
        assert isinstance(to_error(value), InvalidArgument | CorruptData | UnsupportedFormat)
    assert len(server.buffer) == 0
    raw.send(*call("put", {"task_name": "true"}, known, blob, number=99))
    assert not (await raw.answer())[1]
    await check_alive(server)


@settings(max_examples=150, deadline=None)
@given_by(st.data())
def test_altered_descriptions_of_groups_hurt_that_group_only(data):
    known, blob = encode_group(group("g", members=2, versions=3, reward=1.0))
    position = data.draw(st.integers(0, len(known) - 1))
    altered = known[:position] + bytes([data.draw(st.integers(0, 255))]) + known[position + 1 :]

    async def put_and_take() -> None:
        buffer = FIFO.build()
        await buffer.put(group("other", versions=2), "t")
        with suppress(RerollError):
            await buffer.put(decode_group(altered, blob), "t", current_train_step=4)
        for status in Status:
            for taken_group in await buffer.get(2, "t", status):
                decode_group(*encode_group(taken_group))
        assert await buffer.query({}) == []
        assert closes((await buffer.ledger())["t"])
        assert (await buffer.metrics())["gen/groups"] >= 1

    asyncio.run(put_and_take())


@settings(max_examples=150, deadline=None)
@given_by(st.binary(max_size=200), st.integers(0, 3))
def test_bodies_are_messages_or_malformed(body, blobs):
    with suppress(Malformed):
        decode_client_message(HEAD + body, blobs)


async def test_another_version_is_told(server, raw):
    raw.send(MAGIC + bytes([VERSION + 1]) + b"whatever", b"comes")
    (told,) = await raw.answers()
    assert told.startswith(HEAD + b"refused")
    assert b"protocol" in told
    await check_alive(server)


async def test_the_log_is_not_flooded_by_another_version(tmp_path):
    log = tmp_path / "log"
    with Program(log=log) as program:
        peer = Raw(program.address)
        for _ in range(5000):
            peer.send(MAGIC + bytes([VERSION + 1]) + b"whatever")
        for _ in range(1000):  # those that wait longer may be dropped
            await peer.answers()
        peer.close()
        assert program.stop() == 0
    lines = [line for line in log.read_text().splitlines() if " refused " in line]
    assert 1 <= len(lines) < 100


async def test_a_client_of_another_version_raises(monkeypatch, server):
    monkeypatch.setattr("reroll.remote.protocol.HEAD", MAGIC + bytes([VERSION + 1]))
    async with connect(server.address) as client:
        with pytest.raises(ProtocolMismatch, match="install the same reroll"):
            await client.count("t", "completed")


async def test_too_large_a_message_ends_the_connection_and_nothing_else(server, raw):
    raw.send(*call("put", {"task_name": "t"}, b"", bytes(2 << 20)))
    await check_alive(server)
    assert not any(session.pending for session in server.host.sessions.values())


async def test_a_client_is_told_of_too_large_a_group(server):
    async with connect(server.address, heartbeat_s=0.05) as client:
        small, large = (client.put(group(size, response="x" * size), "t") for size in (1000, 2 << 20))
        done = await asyncio.wait_for(asyncio.gather(small, large, return_exceptions=True), 60)
        assert done[0] == 1
        assert isinstance(done[1], LimitReached)
        assert "max_message_bytes" in str(done[1])
        assert names(await client.get(9, "t", "completed")) == [1000]


def pending_calls(server: Server) -> int:
    return sum(len(session.pending) for session in server.host.sessions.values())


async def test_pending_calls_are_limited(server):
    async with connect(server.address) as client, connect(server.address) as other:
        waits = [asyncio.ensure_future(client.take_batch({"t": 1}, wait=True)) for _ in range(20)]
        await until(lambda: pending_calls(server) == 20)
        with pytest.raises(LimitReached, match="max_pending_calls"):
            await client.count("t", "completed")
        assert await other.count("t", "completed") == 0, "others are not hurt"
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def test_pending_bytes_are_limited():
    large = group("large", response="x" * 300_000)
    async with (
        Server(FIFO.model_copy(update={"capacity": 1}), BIND, limits=LIMITS) as server,
        connect(server.address) as client,
        connect(server.address) as other,
    ):
        await client.put(large, "t")
        puts = [asyncio.ensure_future(client.put(large, "t")) for _ in range(6)]  # all wait for room
        await until(lambda: sum(put.done() for put in puts) == 3 and pending_calls(server) == 3)
        for put in puts:
            if put.done():
                with pytest.raises(LimitReached, match="max_pending_bytes"):
                    await put
        assert await other.count("t", "completed") == 1, "others are not hurt"
        for _ in range(4):
            await other.take_batch({"t": 1}, wait=True)
        assert (
            len([put for put in await asyncio.gather(*puts, return_exceptions=True) if type(put) is int]) == 3
        )
        assert await client.put(large, "t"), "there is room again"


async def test_answers_that_nobody_says_to_have_received_are_limited(server, raw):
    asked, most = to_bytes({"task_name": "t", "group_status": "completed"}), 3000
    raw.send(*encode_message(ClientMessage([Call(number, "count", asked) for number in range(most)])))
    answers = msgspec.msgpack.decode((await raw.answers())[0][len(HEAD) :])[1]
    assert [number for number, *_ in answers] == list(range(most))
    kept = [number for number, is_error, *_ in answers if not is_error]
    assert 0 < len(kept) < most
    assert isinstance(to_error(answers[-1][2]), LimitReached)
    (session,) = server.host.sessions.values()
    assert len(session.replies) == len(kept), "of what was refused nothing is kept"
    raw.send(*encode_message(ClientMessage([Call(most - 1, "count", asked)], received=kept)))
    assert (await raw.answer())[:2] == [most - 1, False], "there is room again"
    await check_alive(server)


async def test_clients_are_limited(server):
    clients = [connect(server.address) for _ in range(21)]
    for client in clients[:20]:
        await client.health()
    with pytest.raises(LimitReached, match="max_clients"):
        await clients[20].health()
    await clients[0].close()
    await until(lambda: len(server.host.sessions) < 20)
    assert await clients[20].health()
    for client in clients[1:]:
        await client.close()


async def test_half_open_peers_and_garbage_on_the_wire(server):
    host, port = server.address.removeprefix("tcp://").split(":")
    peers = [socket.create_connection((host, int(port))) for _ in range(200)]
    dice = random.Random(0)
    greeting = b"\xff" + struct.pack(">Q", 1) + b"\x7f"
    for number, peer in enumerate(peers):
        match number % 4:
            case 1:
                peer.send(greeting)
            case 2:
                peer.send(dice.randbytes(200))
            case 3:
                peer.send(greeting + b"\x03" + bytes(53) + b"\x02" + struct.pack(">Q", (1 << 63) - 1))
    await check_alive(server)
    for peer in peers:
        peer.close()
    await check_alive(server)
