"""A client process for tests: produces, consumes, resumes or leases, and notes what it knows for certain.

    python traffic.py ADDRESS ROLE NUMBER COUNT FOLDER

Run as a script. A name is written down after the call that settled it has returned; consumers end when a file says so.
"""

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from reroll import Closed, LeaseExpired, Status, Superseded, WaitTimeout, connect
from reroll.testing.buffer.builders import group


async def produce(
    client: Any, number: int, count: int, note: Any, dice: random.Random, *, aborted: float
) -> None:
    for index in range(count):
        name = f"{number}-{index}"
        status = Status.ABORTED if dice.random() < aborted else Status.COMPLETED
        await client.put(group(name, members=2, tokens=200, status=status), "t", model_step=index)
        note(name)


async def consume(client: Any, note: Any, dice: random.Random) -> None:
    groups, _ = await client.take_batch({"t": dice.randint(1, 3)}, wait=True, timeout=0.3)
    for taken in groups["t"]:
        note(taken[0].group_id)


async def resume(client: Any, note: Any, _dice: random.Random) -> None:
    groups, _ = await client.take_batch({"t": 1}, group_status=Status.ABORTED, wait=True, timeout=0.3)
    for member in groups["t"][0]:
        member.status = Status.COMPLETED
    try:
        await client.put(groups["t"][0], "t", model_step=9)
    except Superseded:
        note(groups["t"][0][0].group_id)


async def lease(client: Any, note: Any, dice: random.Random) -> None:
    batch = await client.lease({"t": 2}, wait=True, timeout=0.3)
    if dice.random() < 0.3:
        await batch.nack()
        return
    gone: set[int] = set()
    try:
        await batch.ack()
    except LeaseExpired as error:
        gone = set(error.uids)
    for taken, info in batch.samples["t"]:
        if info.uid not in gone:
            note(taken[0].group_id)


async def hold(client: Any) -> None:
    batch = await client.lease({"t": 2})
    batches = client.batches({"t": 1}, prefetch=2)
    first = await anext(batches)
    await client.count("t", Status.COMPLETED)
    print(batch.counts, first.counts, flush=True)  # noqa: T201
    await asyncio.sleep(3600)


async def main() -> None:
    address, role, number, count, folder = sys.argv[1:]
    dice = random.Random(int(number))
    loops = {"consume": consume, "resume": resume, "lease": lease}
    with (Path(folder) / f"{role}-{number}").open("a", buffering=1) as notes:

        def note(name: str) -> None:
            notes.write(f"{name}\n")

        async with connect(address, heartbeat_s=0.1, patience_s=60) as client:
            if role == "produce":
                await produce(client, int(number), int(count), note, dice, aborted=0.0)
            elif role == "abort":
                await produce(client, int(number), int(count), note, dice, aborted=0.3)
            elif role == "hold":
                await hold(client)
            else:
                while not (Path(folder) / "stop").exists():
                    try:
                        await loops[role](client, note, dice)
                    except (WaitTimeout, Closed):
                        continue


if __name__ == "__main__":
    asyncio.run(main())
