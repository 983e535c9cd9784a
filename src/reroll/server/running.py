"""A server as a program: it says where it is, and stops gracefully on SIGTERM or SIGINT."""

import asyncio
import signal
from collections.abc import Callable

from reroll.server.memory import keep_freed_memory
from reroll.server.server import Server


async def run_until_stopped(server: Server, is_ready: Callable[[str], None]) -> None:
    """Serve until a signal says to stop; `is_ready` is told the address."""
    keep_freed_memory()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with server:
        is_ready(server.address)
        await stopping.wait()
