"""Who takes part in the soak: the owner of the buffer (`reroll serve`), producers, one who rolls again, and a trainer."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any, NamedTuple, Self

from reroll import connect_blocking

HERE = Path(__file__).parent
TASK, STALE = "math", 6
PRODUCERS, CAPACITY = 2, 192
TOKEN_BYTES = 8
PATIENCE_S = 120.0
SERVE = "from reroll.cli import main; main()"


class Look(NamedTuple):
    """The owner's memory, when so many tokens had been put."""

    put_tokens: int
    resident_bytes: int


class Cast:
    """All processes of a run, on one folder; those that are killed are started again at once."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._lives: list[list[Look]] = []
        self.address = "tcp://127.0.0.1:0"
        self.trainer_file = folder / "trained"
        (folder / "buffer.json").write_text(f'{{"capacity": {CAPACITY}, "sampler": "stalest"}}')
        self._owner = self._served()
        self.client = connect_blocking(self.address)
        self._producers = [self._producer(number) for number in range(PRODUCERS)]
        self._again = self._started("soak_producer.py", "again")
        self._trainer = self._trainer_started()
        self._steps = 0

    def trained_steps(self, *, at_least: int) -> int:
        """Wait until the trainers have told of so many steps, and return how many there were."""
        while self._steps < at_least:
            line = self._trainer.stdout.readline()
            if not line:
                raise RuntimeError(
                    f"the trainer ended with code {self._trainer.wait()}; see {self._folder}/errors"
                )
            self._steps += 1
        return self._steps

    def kill(self, kind: str, dice: random.Random) -> None:
        """Kill somebody with SIGKILL, in the midst of whatever it does, and start it again."""
        if kind == "owner":
            _kill(self._owner)
            self._owner = self._served()
        elif kind == "trainer":
            _kill(self._trainer)
            self._trainer = self._trainer_started()
        else:
            number = dice.randrange(PRODUCERS)
            _kill(self._producers[number])
            self._producers[number] = self._producer(number)

    def look_at_memory(self) -> None:
        """Note how much memory the owner has."""
        amounts = self.client.ledger().get(TASK)
        pages = int(Path(f"/proc/{self._owner.pid}/statm").read_text().split()[1])
        tokens = amounts["put"].tokens if amounts else 0
        self._lives[-1].append(Look(tokens, pages * os.sysconf("SC_PAGE_SIZE")))

    def memory_growth(self) -> tuple[int, int]:
        """Return how much the owner grew in its longest life once it was warm, and the bytes that went through meanwhile."""
        life = max(self._lives, key=lambda looks: looks[-1].put_tokens - looks[0].put_tokens if looks else 0)
        warm = life[len(life) // 3 :]
        part = max(1, len(warm) // 3)
        first, last = warm[:part], warm[-part:]
        grown = median(look.resident_bytes for look in last) - median(look.resident_bytes for look in first)
        passed = median(look.put_tokens for look in last) - median(look.put_tokens for look in first)
        return int(grown), int(passed * TOKEN_BYTES)

    def finish(self) -> None:
        """Stop the producers, wait until all that there is was trained, and stop the rest."""
        for producer in self._producers:
            _stop(producer)
        deadline = monotonic() + PATIENCE_S
        while any(self.client.ledger()[TASK][place].groups for place in ("resident", "out", "leased")):
            if monotonic() > deadline:
                raise RuntimeError(
                    f"after {PATIENCE_S:.0f} s not all was trained: {self.client.ledger()[TASK]}"
                )
            sleep(0.05)
        for process in (self._again, self._trainer):
            _stop(process)

    def stored(self) -> set[str]:
        """Return the names of all groups that a producer knows to be stored."""
        return {name for path in self._folder.glob("stored-*") for name in path.read_text().splitlines()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        for process in (*self._producers, self._again, self._trainer, self._owner):
            _kill(process)

    def _served(self) -> "subprocess.Popen[str]":
        self._lives.append([])
        options = ("--config", str(self._folder / "buffer.json"), "--store", str(self._folder / "store"))
        process = self._run("-c", SERVE, "serve", "--bind", self.address, *options, "--client-ttl-s", "1")
        self.address = process.stdout.readline().removeprefix("ready at ").strip()
        return process

    def _producer(self, number: int) -> "subprocess.Popen[str]":
        file = self._folder / f"stored-{number}"
        return self._started("soak_producer.py", f"producer {number}", str(file), str(self._seed))

    def _trainer_started(self) -> "subprocess.Popen[str]":
        return self._started("soak_trainer.py", str(self.trainer_file))

    def _started(self, script: str, *arguments: str) -> "subprocess.Popen[str]":
        return self._run(str(HERE / script), self.address, *arguments)

    def _run(self, *arguments: str) -> Any:
        with (self._folder / "errors").open("a") as errors:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )


def told_by_a_line() -> threading.Event:
    """Return what is set when a line comes in, or nobody is there to write one."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    return over


def _kill(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    _close(process)


def _stop(process: Any) -> None:
    """Tell a process that it is over, and wait for its end."""
    print(file=process.stdin, flush=True)
    process.stdout.read()
    if code := process.wait(PATIENCE_S):
        raise RuntimeError(f"a process ended with code {code}")


def _close(process: Any) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        pipe.close()
