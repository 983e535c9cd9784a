"""The three processes of `reroll demo --crash`, seen from outside: started, killed, started again, and listened to."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

from reroll.demo.lives import Place

STEPS: Final = 18
KILLS: Final = {5: "producer", 10: "trainer", 15: "buffer"}
"""After which step who is killed; checkpoints are of steps 4, 8, 12, 16 and the last."""
_PATIENCE_S: Final = 90.0


class Groups(NamedTuple):
    """The groups of a step."""

    uids: list[int]
    digest: int
    """Of their tokens, log-probabilities and advantages."""


class Processes:
    """The three of them, and what they tell."""

    def __init__(self, place: Place, mode: str, seed: int, note: Callable[[str], None]) -> None:
        """Run a mode in this place; `note` is told what happens."""
        self._note = note
        self._arguments = (str(place.directory), mode, str(seed), str(STEPS))
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        self._kills = dict(KILLS)
        self._begun = 0
        self.trained: dict[int, Groups] = {}
        """The groups of each step, by the last life of the trainer."""
        self.acknowledged: set[int] = set()
        """The groups whose put the producer knows to be done."""

    def __enter__(self) -> Self:
        for role in ("buffer", "trainer", "producer"):
            self._start(role)
        return self

    def __exit__(self, *_: object) -> None:
        for role in self._running:
            self._stop(role)

    def run(self) -> None:
        """Go through the run; return when the last step is in the trainer's checkpoint and the buffer is closed."""
        while True:
            try:
                told = self._told.get(timeout=_PATIENCE_S)
            except queue.Empty:
                raise TimeoutError(
                    f"nothing was told for {_PATIENCE_S:.0f} s; is the machine too busy?"
                ) from None
            match told:
                case {"event": "trained", "step": step, "uids": uids, "digest": digest}:
                    self.trained[step] = Groups(uids, digest)
                    if step in self._kills:
                        self._kill(self._kills.pop(step), step)
                case {"event": "begins", "step": step}:
                    self._begun += 1
                    if self._begun > 1 + len(KILLS):
                        raise RuntimeError("the trainer of the demo had to begin again without being killed")
                    self._note(f"the trainer begins with step {step}: its checkpoint is of step {step - 1}")
                case {"event": "put", "uid": int(uid)}:
                    self.acknowledged.add(uid)
                case {"event": "trained all"}:
                    break
                case {"event": "ended", "role": role, "code": code} if code not in (0, -9):
                    raise RuntimeError(f"the {role} of the demo ended with code {code}")
        self._stop("producer")
        self._running["buffer"].terminate()
        self._running["buffer"].wait(_PATIENCE_S)

    def _start(self, role: str) -> None:
        command = [sys.executable, "-m", "reroll.demo.lives", role, *self._arguments]
        process = subprocess.Popen(  # noqa: S603  (ourselves)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._running[role] = process
        threading.Thread(target=self._read, args=(role, process), daemon=True).start()

    def _read(self, role: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None  # noqa: S101
        with process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # else it was killed in the middle of it
                    self._told.put(json.loads(line))
        self._told.put({"event": "ended", "role": role, "code": process.wait()})

    def _stop(self, role: str) -> None:
        process = self._running[role]
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _kill(self, role: str, step: int) -> None:
        self._stop(role)
        self._note(f"the {role} is killed after step {step}, and started again")
        self._start(role)
