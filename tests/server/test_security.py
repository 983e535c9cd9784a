"""Keys, lists and captures: who may connect, what the log says of others, what goes over the wire."""

import logging
import stat
from pathlib import Path

import pytest

from reroll import (
    InvalidArgument,
    InvalidConfig,
    ReplayBufferConfig,
    Rollout,
    Server,
    Status,
    Unreachable,
    connect,
)
from reroll.server import keygen
from reroll.server.auth import DenialLog, is_local, read_key_pair
from reroll.testing.buffer.builders import group, names
from server.proxy import Proxy
from server.waiting import until

FIFO = ReplayBufferConfig(sampler="fifo")
BIND = "tcp://127.0.0.1:0"
IMPATIENT = {"heartbeat_s": 0.05, "patience_s": 0.5}
MARK = "a sentence that a listener would recognise"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("server", "trainer", "stranger"):
        keygen(name, tmp_path)
    (tmp_path / "allowed").write_text("# who may connect\n\n" + (tmp_path / "trainer.public").read_text())
    return tmp_path


def locked(keys: Path) -> Server:
    return Server(FIFO, BIND, key=keys / "server.secret", allow=keys / "allowed")


@pytest.mark.parametrize(
    "bind", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://10.0.0.7:5555", "tcp://eth0:1"]
)
def test_what_others_can_reach_is_not_served_without_keys(bind):
    with pytest.raises(InvalidConfig, match="reroll keygen"):
        Server(FIFO, bind)


@pytest.mark.parametrize(
    "bind", ["tcp://127.0.0.1:0", "tcp://127.8.0.1:5", "tcp://localhost:0", "tcp://[::1]:0", "ipc:///x"]
)
def test_what_only_this_host_can_reach_is_open(bind):
    assert is_local(bind)


async def test_with_keys_every_address_is_served(keys):
    async with Server(FIFO, "tcp://0.0.0.0:0", key=keys / "server.secret", allow=keys / "allowed") as server:
        port = server.address.rpartition(":")[2]
        options = {"key": keys / "trainer.secret", "server_key": keys / "server.public"}
        async with connect(f"tcp://127.0.0.1:{port}", **options) as client:
            assert await client.put(group("a"), "t") == 1
            assert names(await client.get(1, "t", Status.COMPLETED)) == ["a"]


async def test_who_is_not_on_the_list_gets_nothing_and_the_log_says_so(keys, caplog):
    caplog.set_level(logging.INFO, logger="reroll.server")

    def denied(name: str, value: str) -> bool:
        """Return whether the log has a word of it."""
        told = [record for record in caplog.records if record.message == "denied"]
        return any(value in getattr(record, name, "") for record in told)

    stranger = read_key_pair(keys / "stranger.secret").public
    async with locked(keys) as server:
        await server.buffer.put(group("secret"), "t")
        for options, said in (
            ({}, ("reason", "handshake")),  # none with keys, or it broke off: whichever side is quicker
            ({"key": keys / "stranger.secret", "server_key": keys / "server.public"}, ("key", stranger)),
            ({"key": keys / "trainer.secret", "server_key": keys / "stranger.public"}, None),
        ):
            async with connect(server.address, **options, **IMPATIENT) as client:
                is_told = False
                while (
                    not is_told
                ):  # a client that is in a hurry may give up before it was judged, and tries again
                    with pytest.raises(Unreachable, match="does not deny this client"):
                        await client.get(1, "t", "completed")
                    is_told = said is None or denied(*said)
        assert len(server.buffer) == 1
        assert not server.host.sessions


async def test_who_tries_again_and_again_does_not_fill_the_log(keys, caplog):
    caplog.set_level(logging.INFO, logger="reroll.server")
    async with locked(keys) as server:
        options = {"key": keys / "trainer.secret", "server_key": keys / "stranger.public"}
        async with connect(server.address, **options, **IMPATIENT) as client:
            with pytest.raises(Unreachable):
                await client.count("t", "completed")
            await until(lambda: any(more > 2 for _, more in server.denials._kinds.values()))
        told = [(r.reason, r.at) for r in caplog.records if r.message == "denied"]
        assert len(told) == len(set(told)), "each once, for a while"


def test_denials_are_counted_until_the_next_line(caplog):
    now = 0.0
    denials = DenialLog(clock=lambda: now)
    for _ in range(5):
        denials.add(reason="no handshake", at="here")
    denials.add(reason="no handshake", at="there")
    assert [(r.at, hasattr(r, "times")) for r in caplog.records] == [("here", False), ("there", False)]
    now = 11.0
    denials.add(reason="no handshake", at="here")
    assert caplog.records[-1].times == 5


async def capture(server: Server, **options) -> bytes:
    async with Proxy(server.address) as proxy, connect(proxy.address, **options) as client:
        rollout = Rollout(response=MARK, response_ids=[1], status=Status.COMPLETED)
        await client.put([rollout], "t")
        ((back,),) = await client.get(1, "t", "completed")
        assert back.response == MARK
        return bytes(proxy.seen)


async def test_a_capture_shows_no_payload(keys):
    async with Server(FIFO, BIND) as server:
        assert MARK.encode() in await capture(server), "the capture works"
    async with locked(keys) as server:
        options = {"key": keys / "trainer.secret", "server_key": keys / "server.public"}
        seen = await capture(server, **options)
    assert len(seen) > 500
    assert MARK.encode() not in seen
    assert b"response" not in seen


def test_secrets_are_for_their_owner_and_never_overwritten(keys):
    assert stat.S_IMODE((keys / "server.secret").stat().st_mode) == 0o600
    assert read_key_pair(keys / "server.secret").secret not in (keys / "server.public").read_text()
    with pytest.raises(InvalidArgument, match="exists already"):
        keygen("server", keys)


@pytest.mark.parametrize("text", ["", "# nobody\n", "short\n", "x" * 39 + "\n"])
def test_a_list_that_lets_nobody_in_is_refused(keys, text):
    (keys / "allowed").write_text(text)
    with pytest.raises(InvalidArgument, match="allowed"):
        locked(keys)


@pytest.mark.parametrize("bind", ["5555", "127.0.0.1:5555", "*:5555", "udp://127.0.0.1:5555", ""])
def test_what_is_no_address_is_told_how_one_looks(bind):
    with pytest.raises(InvalidConfig, match=r"invalid bind address .*; use tcp://127\.0\.0\.1:5555"):
        Server(FIFO, bind)


def test_half_of_the_keys_is_refused(keys):
    with pytest.raises(InvalidConfig, match="allow"):
        Server(FIFO, BIND, key=keys / "server.secret")
    with pytest.raises(InvalidArgument, match="server_key"):
        connect("tcp://127.0.0.1:5", key=keys / "trainer.secret")
    with pytest.raises(InvalidArgument, match="no key pair"):
        connect("tcp://127.0.0.1:5", key=keys / "trainer.public", server_key=keys / "server.public")
