"""`reroll serve`: the buffer in a process of its own, reached over ZeroMQ."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients import acknowledged
from contenders.rollouts import TASK, BufferClient, version
from reroll import connect, connect_blocking
from reroll.server import keep_freed_memory
from worker import Measure

__all__ = ["CANNOT", "Client", "crash", "serve", "version"]
CANNOT: dict[str, str] = {}
SERVE = "from reroll.cli import main; main()"


@contextmanager
def _served(*options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, "-c", SERVE, "serve", "--bind", "tcp://127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # noqa: S101
        yield process.stdout.readline().strip().removeprefix("ready at "), process
    finally:
        process.kill()
        process.wait()


def serve() -> Iterator[str]:
    with _served() as (address, _):
        yield address


class Client(BufferClient):
    """Groups of `Rollout`s, 64 puts under way at once; one `take_batch(wait=True)`. Groups are checked and encoded by the client, kept as bytes by the server, checked and decoded by the client."""

    def __init__(self, address: str) -> None:
        keep_freed_memory()  # as docs/server.md advises
        super().__init__(connect(address))
        self.loop.run_until_complete(self.buffer.health())

    def close(self) -> None:
        self.loop.run_until_complete(self.buffer.close())
        self.loop.close()


def crash(groups: int) -> Iterator[Measure]:
    """A server with `--store` is killed when a client's last put has returned, and another one is started on the same store."""

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=".") as where:
            store = str(Path(where).absolute())
            with _served("--store", store) as (address, _):  # which ends by a kill
                given = acknowledged(sys.modules[__name__], address, groups)
            with _served("--store", store) as (address, _), connect_blocking(address) as client:
                found = client.count(TASK, "completed")
        return {"acknowledged": given, "lost": given - found}

    yield run
