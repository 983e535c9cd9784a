"""`reroll serve` as a process that tests start, kill and start again."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner

from reroll.cli.commands import app

COMMAND = [sys.executable, "-c", "from reroll.cli import main; main()"]


class Program:
    """A server that was started from the command line."""

    def __init__(self, *options: str, bind: str = "tcp://127.0.0.1:0", log: Path | None = None) -> None:
        self._options = options
        self._log = log
        self.address = bind
        self.start()

    def start(self) -> None:
        """Start it, at the place where it was before, and return when it is ready."""
        with open(os.devnull if self._log is None else self._log, "a") as log:  # noqa: PTH123  (devnull is no file)
            self.process = subprocess.Popen(
                [*COMMAND, "serve", "--bind", self.address, *self._options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready at "), line
        self.address = line.removeprefix("ready at ").strip()

    def kill(self) -> None:
        """Kill it, as the system does when memory runs out."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it as a scheduler does, and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        assert self.process.stdout is not None
        code = self.process.wait(30)
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def run(*arguments: str) -> Any:
    """Run a command of reroll to its end, in this process; starting another takes longer than all the rest."""
    return CliRunner().invoke(app, list(arguments))
