"""Many client processes and a server of its own, killed and started again in mid-traffic."""

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from reroll import Closed, Status, connect
from reroll.engine.ledger import closes
from reroll.testing.buffer.builders import group
from server.program import Program
from server.waiting import until

PATIENCE_S = 300.0
"""Many processes start at once, and machines are busy."""
TRAFFIC = Path(__file__).with_name("traffic.py")


def spawn(address: str, role: str, number: int, count: int, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(TRAFFIC), address, role, str(number), str(count), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )


def noted(folder: Path, roles: Iterable[str]) -> list[str]:
    return [
        line for role in roles for path in folder.glob(f"{role}-*") for line in path.read_text().splitlines()
    ]


async def run_traffic(folder: Path, makers: str, users: str, *, count: int, kills: int) -> None:
    """Let clients put and take while the server dies now and then; check that every group got through once."""
    making_roles, using_roles = makers.split(), users.split()
    log = folder / "log"
    with Program("--store", str(folder / "store"), "--client-ttl-s", "2", log=log) as server:
        making = [spawn(server.address, role, n, count, folder) for n, role in enumerate(making_roles)]
        using = [spawn(server.address, role, n, 0, folder) for n, role in enumerate(using_roles)]
        try:
            whole = len(making) * count
            for kill in range(kills):
                enough = whole * (kill + 1) // (kills + 2)
                await until(lambda enough=enough: len(noted(folder, set(making_roles))) > enough, PATIENCE_S)
                server.kill()
                server.start()
            for process in making:
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
            async with connect(server.address, heartbeat_s=0.1) as client:

                async def is_drained() -> bool:
                    books = (await client.ledger())["t"]
                    return not any(books[place].groups for place in ("resident", "out", "leased"))

                async with asyncio.timeout(PATIENCE_S):
                    while not await is_drained():  # noqa: ASYNC110  (others take)
                        await asyncio.sleep(0.05)
                (folder / "stop").touch()
                for process in using:
                    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
                books = (await client.ledger())["t"]
        finally:
            for process in (*making, *using):
                process.kill()
                process.wait()
                process.stdout.close()
    made, used = noted(folder, set(making_roles)), noted(folder, set(using_roles) - {"resume"})
    assert len(made) == whole
    assert closes(books)
    assert books["uncommitted"].groups + books["consumed"].groups == books["put"].groups
    assert sorted(used) == sorted(made), "lost or doubled"
    assert books["put"].groups == len(made)
    assert set(noted(folder, {"resume"})) <= set(made), "refused, since another producer's result is here"
    assert "Traceback" not in log.read_text()


async def test_a_server_that_is_killed_loses_and_doubles_nothing(tmp_path):
    await run_traffic(tmp_path, "produce produce", "consume lease", count=60, kills=1)


async def test_groups_that_are_rolled_again_meanwhile(tmp_path):
    await run_traffic(tmp_path, "abort", "consume resume resume", count=60, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_groups_that_are_rolled_again_meanwhile(tmp_path):
    await run_traffic(tmp_path, "abort " * 4, "consume resume " * 3, count=150, kills=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_sixteen_clients(tmp_path):
    await run_traffic(tmp_path, "produce " * 8, "consume lease " * 4, count=150, kills=4)


async def test_a_client_that_is_killed_gives_back_what_it_held(tmp_path):
    with Program("--client-ttl-s", "1") as server:
        async with connect(server.address) as client:
            await asyncio.gather(*(client.put(group(n), "t") for n in range(6)))
            holder = spawn(server.address, "hold", 0, 0, tmp_path)
            assert await asyncio.to_thread(holder.stdout.readline) == "{'t': 2} {'t': 1}\n"
            await until(lambda: len(client) <= 1)
            holder.kill()
            holder.wait()
            holder.stdout.close()
            await client.wait_ready({"t": 6}, timeout=30)
            assert (await client.ledger())["t"]["consumed"].groups == 0


async def test_a_server_is_stopped_gracefully(tmp_path):
    log = tmp_path / "log"
    with Program("--store", str(tmp_path / "store"), "--log-json", log=log) as server:
        client = connect(server.address, heartbeat_s=0.1)
        await client.put(group("a"), "t")
        await client.put(group("b"), "t")
        batch = await client.lease({"t": 1})
        waits = asyncio.ensure_future(client.take_batch({"t": 9}, wait=True))
        await client.health()
        assert server.stop() == 0
        with pytest.raises(Closed):
            await waits
        server.start()
        assert await client.count("t", Status.COMPLETED) == 2, (
            "the lease came back, and the client found its way"
        )
        await batch.ack()  # late, but nobody else has it
        assert await client.count("t", Status.COMPLETED) == 1
        await client.close()
