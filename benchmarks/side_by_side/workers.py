"""The parent's side of a contender: its process, what is asked of it, and how long one waits for the answer."""

import json
import os
import queue
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from environments import ROOT, Environment

FOLDER = ROOT / "benchmarks" / "results" / "side_by_side"
"""Where results, logs and what contenders write go; its disk is what is measured."""


class NoFigureError(Exception):
    """Why a contender has no figure in a cell."""


class CannotError(NoFigureError):
    """What a contender is not made for."""


class HangsError(NoFigureError):
    """How long a contender was waited for."""


class Worker:
    """A contender that is alive. Its process and all that it starts are a group, which ends as one."""

    alive: ClassVar[set["Worker"]] = set()

    def __init__(self, module: str, environment: Environment, timeout_s: float) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.timeout_s = timeout_s
        self._answers: queue.Queue[str] = queue.Queue()
        with (FOLDER / f"{module}.log").open("a") as log:
            self._process = subprocess.Popen(
                [str(environment.python), str(Path(__file__).with_name("worker.py")), module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=FOLDER,
                env={**os.environ, "PYTHONPATH": ""},
            )
        self.alive.add(self)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.version: str = self._answer()["version"]
        except NoFigureError:
            self.kill()
            raise

    def open(self, cell: str, setting: dict[str, Any]) -> str:
        """Prepare a cell, and return how it measures; raises CannotError and NoFigureError."""
        answer = self._ask(open=cell, setting=setting)
        if "cannot" in answer:
            raise CannotError(answer["cannot"])
        return str(answer["how"])

    def run(self) -> dict[str, float]:
        """Measure once."""
        measured: dict[str, float] = self._ask(run=True)["measured"]
        return measured

    def close(self) -> None:
        """Let go what a cell has prepared."""
        self._ask(close=True)

    def end(self) -> None:
        """End the process, in peace if it can."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.alive.discard(self)

    @classmethod
    def kill_all(cls) -> None:
        """Leave nothing behind."""
        for worker in list(cls.alive):
            worker.kill()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None  # noqa: S101
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError as error:
            raise NoFigureError("its process has ended") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=self.timeout_s)
        except queue.Empty:
            raise HangsError(f"no answer within {self.timeout_s:g} s") from None
        if not line:
            raise NoFigureError(f"its process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise NoFigureError(answer["failed"])
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")
