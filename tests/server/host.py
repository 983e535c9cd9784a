"""A process that runs servers for tests: each line of its input starts one, or ends one, and is answered by a line.

Run as a script. One process serves a whole test module, since starting Python takes longer than most tests.
"""

import asyncio
import json
import sys
from typing import Any

from reroll import ReplayBufferConfig, Server
from reroll.server import Limits
from reroll.testing.buffer.drops import DropLog


async def serve(lines: asyncio.StreamReader) -> None:
    servers: dict[str, Server] = {}
    while line := await lines.readline():
        order = json.loads(line)
        if "stop" in order:
            await servers.pop(order["stop"]).stop()
            answer: Any = None
        else:
            limits = Limits(**order["limits"])
            config = ReplayBufferConfig.model_validate_json(order["config"])
            if "on_drop" in order:
                path, fails = order["on_drop"]
                config = config.model_copy(update={"on_drop": DropLog(path, fails=fails)})
            server = await Server(config, order["bind"], limits=limits, **order["options"]).start()
            servers[server.address] = server
            answer = server.address
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await serve(lines)


if __name__ == "__main__":
    asyncio.run(main())
