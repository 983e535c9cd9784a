"""Servers in another process, for tests."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reroll import ReplayBufferConfig
from reroll.testing.buffer.drops import DropLog

HOST = Path(__file__).with_name("host.py")


class Host:
    """The other process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HOST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, config: ReplayBufferConfig, bind: str, *, limits: Any = None, **options: Any) -> str:
        """Start a server and return its address."""
        order = {"config": config.model_dump_json(), "bind": bind, "limits": limits or {}, "options": options}
        if isinstance(config.on_drop, DropLog):
            order["on_drop"] = [config.on_drop.path, config.on_drop.fails]
        address: str = self._order(order)
        return address

    def stop(self, address: str) -> None:
        self._order({"stop": address})

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def _order(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the host died; see its stderr"
        return json.loads(line)


@contextmanager
def hosted() -> Iterator[Host]:
    host = Host()
    try:
        yield host
    finally:
        host.end()
