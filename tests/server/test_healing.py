"""Connections that are cut, answers that get lost, clients and servers that stop: nothing is lost, nothing is doubled."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from reroll import Closed, ReplayBufferConfig, Server, Status, Unreachable, WaitTimeout, connect
from reroll.engine.ledger import Amount
from reroll.server import Limits
from reroll.testing.buffer.builders import bucket, group, names
from reroll.testing.probe import probe
from server.proxy import Proxy
from server.waiting import until

COMPLETED = Status.COMPLETED
FIFO = ReplayBufferConfig(sampler="fifo")
QUICK = {"heartbeat_s": 0.05}
BIND = "tcp://127.0.0.1:0"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(FIFO, BIND) as made:
        yield made


@contextmanager
def in_a_thread(made: Server) -> Iterator[Server]:
    """Let a server have an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(made.start(), loop).result()
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(made.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def test_a_cut_connection_heals(server):
    async with Proxy(server.address) as proxy, connect(proxy.address, **QUICK) as client:
        for number in range(20):
            if number % 5 == 2:
                proxy.cut()
            await client.put(group(number), "t")
        taken = []
        while len(taken) < 20:
            if len(taken) % 5 == 2:
                proxy.cut()
            groups, _ = await client.take_batch({"t": 1}, wait=True)
            taken += names(groups["t"])
        assert taken == list(range(20))
        assert (await bucket(client, "put")) == (await bucket(client, "consumed"))


async def test_a_call_whose_answer_got_lost_is_carried_out_once(server):
    async with Proxy(server.address) as proxy, connect(proxy.address, **QUICK) as client:
        await client.put(group("a"), "t")
        proxy.swallows_answers = True
        calls = [
            asyncio.ensure_future(call)
            for call in (client.put(group("b"), "t"), client.get(1, "t", COMPLETED), client.delete({}))
        ]
        await until(lambda: not len(server.buffer) and len(probe(server.buffer).leases) == 1)
        proxy.swallows_answers = False
        proxy.cut()
        assert await calls[0] == 2
        assert names(await calls[1]) == ["a"]
        assert await calls[2] == 1
        assert await bucket(client, "consumed") == Amount(1, 5, 1, 5)
        assert (await bucket(client, "put")).groups == 2


async def test_a_wait_outlives_a_cut(server):
    async with Proxy(server.address) as proxy, connect(proxy.address, **QUICK) as client:
        waiting = asyncio.ensure_future(client.take_batch({"t": 1}, wait=True))
        await until(lambda: probe(server.buffer).waits.waiting((0, "t")) or _pending(server) == 1)
        proxy.is_cut = True
        proxy.cut()
        refused = proxy.refused
        await until(lambda: proxy.refused > refused)
        await server.buffer.put(group("late"), "t")
        proxy.is_cut = False
        groups, _ = await waiting
        assert names(groups["t"]) == ["late"]


async def test_a_cancelled_take_whose_answer_is_under_way_gives_its_groups_back(server):
    async with Proxy(server.address) as proxy, connect(proxy.address, **QUICK) as client:
        await client.put(group("a"), "t")
        proxy.swallows_answers = True
        taker = asyncio.ensure_future(client.get(1, "t", COMPLETED))
        await until(lambda: len(probe(server.buffer).leases) == 1)
        taker.cancel()
        await until(lambda: len(server.buffer) == 1)
        assert (await server.buffer.ledger())["t"]["consumed"].groups == 0


async def test_a_reservation_that_arrives_too_late_is_given_back():
    async with (
        Server(FIFO, BIND, limits=Limits(client_ttl_s=1000.0)) as server,
        Proxy(server.address) as proxy,
        connect(proxy.address, **QUICK) as client,
    ):
        await client.health()
        proxy.swallows_answers = True
        asking = asyncio.ensure_future(client.reserve(3, "t"))
        await until(lambda: len(probe(server.buffer).reservations) == 1)
        asking.cancel()
        await until(lambda: len(probe(server.buffer).reservations) == 0, timeout_s=30)


async def test_a_client_that_goes_gives_back_what_it_held(server):
    async with connect(server.address, **QUICK) as stays:
        await asyncio.gather(*(stays.put(group(number), "t") for number in range(6)))
        goes = connect(server.address, **QUICK)
        lease = await goes.lease({"t": 2})
        assert names(lease.groups["t"]) == [0, 1]
        reservation = await goes.reserve(3, "t")
        assert reservation.groups == 3
        batches = goes.batches({"t": 1}, prefetch=2)
        assert names((await anext(batches)).groups["t"]) == [2]
        waits = asyncio.ensure_future(goes.take_batch({"u": 1}, wait=True))
        await until(lambda: len(probe(server.buffer).leases) == 4)
        assert len(server.buffer) == 1
        await goes.close()
        with pytest.raises(Closed):
            await waits
        await until(lambda: len(server.buffer) == 6)
        assert (await stays.stats()).reservations == 0
        assert names(await stays.get(9, "t", COMPLETED)) == list(range(6)), "at their old places"
        assert (await bucket(stays, "consumed")).groups == 6


async def test_a_server_forgets_what_a_client_holds_no_longer():
    limits = Limits(client_ttl_s=4.0)  # it looks four times within that
    async with Server(FIFO, BIND, limits=limits) as server, connect(server.address, **QUICK) as client:
        for _ in range(5):
            reservation = await client.reserve(2, "t")
            for _ in range(2):
                await client.put(group(), "t", reservation=reservation)
        await client.reserve(1, "t", ttl_s=0.001)
        await client.lease({"t": 1}, ttl_s=0.001)
        kept, lease = await client.reserve(1, "t"), await client.lease({"t": 1})
        (session,) = server.host.sessions.values()
        await until(lambda: len(session.reservations) == len(session.leases) == 1)
        assert [*session.reservations.values()] == [kept]
        assert [*session.leases.values()] == [lease.id]


async def test_prefetched_groups_that_pass_the_bound_are_not_given():
    bounded = FIFO.model_copy(update={"max_staleness": 2})
    async with Server(bounded, BIND) as server, connect(server.address, **QUICK) as client:
        for number, version in enumerate((0, 0, 7, 8)):
            await client.put(group(number, versions=version), "t")
        batches = client.batches({"t": 1}, prefetch=2)
        first = await anext(batches)
        assert names(first.groups["t"]) == [0]
        await first.ack()
        await until(lambda: len(probe(server.buffer).leases) == 2)  # groups 1 and 2 wait here
        await client.advance(9)
        second, third = await anext(batches), await anext(batches)
        assert sorted(names([*second.groups["t"], *third.groups["t"]])) == [2, 3]
        await batches.aclose()
        assert await client.count("t", "expired") == 1


async def test_prefetched_groups_count_when_they_are_acknowledged(server):
    async with connect(server.address, **QUICK) as client:
        await asyncio.gather(*(client.put(group(number), "t") for number in range(4)))
        batches = client.batches({"t": 1}, prefetch=2)
        first = await anext(batches)
        assert (await bucket(client, "consumed")).groups == 0
        await first.ack()
        second = await anext(batches)
        await second.nack()
        assert (await bucket(client, "consumed")).groups == 1
        third = await anext(batches)
        assert names([*first.groups["t"], *second.groups["t"], *third.groups["t"]])[0] == 0
        await batches.aclose()
        await third.ack()
        assert (await bucket(client, "leased")).groups == 0
        assert (await bucket(client, "consumed")).groups == 2
        assert await client.count("t", COMPLETED) == 2


async def test_a_silent_client_is_gone_after_its_time():
    async with (
        Server(FIFO, BIND, limits=Limits(client_ttl_s=1.0)) as server,
        Proxy(server.address) as proxy,
    ):
        client = connect(proxy.address, **QUICK)
        await client.put(group("a"), "t")
        await client.lease({"t": 1})
        proxy.is_cut = True
        proxy.cut()
        await until(lambda: len(server.buffer) == 1 and not server.host.sessions)
        proxy.is_cut = False
        assert names(await client.get(1, "t", COMPLETED)) == ["a"], "it is welcome again"
        await client.close()


async def test_a_client_whose_loop_is_busy_is_heard():
    with in_a_thread(Server(FIFO, BIND)) as server:
        async with connect(server.address, **QUICK) as client:
            await client.put(group("a"), "t")
            batch = await client.lease({"t": 1})
            (session,) = server.host.sessions.values()
            for _ in range(3):
                heard_at = session.heard_at
                while session.heard_at == heard_at:  # a training step that never looks at the loop
                    time.sleep(0.001)  # noqa: ASYNC251
            await batch.ack()
            assert (await bucket(client, "consumed")).groups == 1


async def test_nobody_answers():
    async with connect("tcp://127.0.0.1:9", heartbeat_s=0.05, patience_s=0.2) as client:
        with pytest.raises(Unreachable, match="has not answered"):
            await client.put(group(), "t")
        with pytest.raises(ConnectionError):
            await client.count("t", COMPLETED)


async def test_a_deadline_holds_for_every_call(server):
    async with connect(server.address, deadline_s=0.1) as hurried, connect(server.address) as client:
        with pytest.raises(WaitTimeout, match="deadline_s"):
            await hurried.take_batch({"t": 1}, wait=True)
        await until(lambda: not _pending(server))
        assert await client.put(group("a"), "t") == 1
        assert names(await client.get(1, "t", COMPLETED)) == ["a"], "nobody waits for it any more"


async def test_a_server_that_stops_tells_whoever_waits(server):
    async with connect(server.address, **QUICK) as client:
        await client.put(group("a"), "t")
        batch = await client.lease({"t": 1})
        waits = [
            asyncio.ensure_future(call)
            for call in (client.take_batch({"u": 1}, wait=True), client.wait_ready({"u": 1}))
        ]
        await client.health()
        assert batch.counts == {"t": 1}
        await server.stop()
        for call in waits:
            with pytest.raises(Closed):
                await call
        assert len(server.buffer) == 1


def _pending(server: Server) -> int:
    return sum(len(session.pending) for session in server.host.sessions.values())
