"""What commands look at: the same groups in a saved buffer, in a store, and in the process of a server."""

import asyncio
from pathlib import Path

from observe.groups import CONFIG, fill
from reroll import connect


async def _save(folder: Path) -> None:
    async with CONFIG.build() as buffer:
        await fill(buffer)
        await buffer.save(folder / "saved")
    async with CONFIG.model_copy(update={"store": folder / "store"}).build() as buffer:
        await fill(buffer)


def save(folder: Path) -> None:
    """Make a saved buffer and a durable one."""
    asyncio.run(_save(folder))


async def _fill_server(address: str) -> None:
    async with connect(address) as client:
        await fill(client)


def fill_server(address: str) -> None:
    """Put the same groups to a server."""
    asyncio.run(_fill_server(address))
