"""One store that lives through many kills: the parent of the processes that are killed, and the judge."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crash.model import Worlds
from crash.numbered import LIMITS, RETRYABLE, config, task_of
from crash.worker import picture_of
from reroll import CorruptData
from reroll.observe.verify import verify
from reroll.store import FILE_NAME

TESTS = Path(__file__).parents[1]


def start(module: str) -> "subprocess.Popen[str]":
    """Start a process that can import what the tests import, and waits for its orders."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )


def order(process: "subprocess.Popen[str]", **orders: Any) -> Iterator[dict[str, Any]]:
    """Tell a process what to do, and yield the lines that it tells until its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(orders) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        yield json.loads(line)


def end(process: "subprocess.Popen[str]") -> int:
    """Wait for the end of a process, and return its code."""
    code = process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    return code


class Trainer:
    """What the trainer knows of itself: what it has learned from by each step, and its own checkpoint."""

    def __init__(self) -> None:
        self.checkpoint = 0
        self.trained: list[tuple[int, int, int, int]] = []
        """Step, uid, number and attempt."""

    def learn(self, step: int, groups: list[list[int]]) -> None:
        self.trained += [(step, uid, number, attempt) for uid, number, attempt, *_ in groups]
        self._check()

    def restart(self) -> None:
        """Go on from the last checkpoint: what was learned since is lost."""
        self.trained = [used for used in self.trained if used[0] <= self.checkpoint]

    def _check(self) -> None:
        """Raise AssertionError if something was trained too often."""
        for (uid, number, attempt), times in Counter(used[1:] for used in self.trained).items():
            limit = LIMITS[task_of(number)]
            assert times <= limit, f"attempt {attempt} of group {uid} was trained {times} times"


class Store:
    """The parent's view."""

    def __init__(self, directory: Path, seed: int, **options: Any) -> None:
        self._directory = directory
        self._seed = seed
        self._options = options
        self._chance = random.Random(seed)
        self._worlds = Worlds()
        self._trainer = Trainer()
        self._orphans: dict[int, list[int]] = {}  # groups that are out, by uid
        self._ops: dict[int, dict[str, Any]] = {}
        self._lent: dict[int, tuple[int, list[list[int]]]] = {}
        self._acked: dict[int, list[tuple[int, list[int]]]] = {}  # steps that used groups, by operation
        self._steps: dict[str, int] = {}  # the training step of each task
        self._put: dict[int, int] = {}  # number by uid, of puts that were acknowledged
        self._left: set[int] = set()  # uids that were told to go otherwise than by training
        self._process = start("crash.worker")
        self.lives = 0
        self.kills: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.ops: Counter[str] = Counter()

    def live_and_die(self) -> None:
        """Let one process work on the store until it is killed, or interrupted."""
        way = self._chance.choices(["working", "opening", "writing", "interrupted"], [6, 2, 2, 1])[0]
        patience = self._chance.randrange(1, 150)
        pauses = {self._chance.randrange(1, 150) for _ in range(self._chance.choice([0, 0, 2]))}
        for line in self._live(
            dies_opening_at=self._chance.randrange(1, 2500) if way == "opening" else None,
            dies_writing_at=self._chance.randrange(1, 3000) if way == "writing" else None,
            interrupted=way == "interrupted",
        ):
            patience -= "end" in line
            if patience in pauses:
                pauses.discard(patience)
                self._pause()
            if (way == "opening" and "opened" in line) or (way == "working" and not patience):
                self._process.kill()
            elif way == "interrupted" and not patience and "end" in line:
                self._process.send_signal(signal.SIGINT)
        self._die(is_interrupted=way == "interrupted")
        (self.events if way == "interrupted" else self.kills)[way] += 1
        chance = random.Random(
            f"{self._seed} {self.lives}"
        )  # its own: what follows must not depend on timing
        if chance.random() < 0.2:
            self._damage_a_copy(chance)
            self._check_checkpoint()

    def rest(self) -> None:
        """Let the last process open the store and close it, and check that nothing is lost."""
        seen = None
        for line in self._live(rests=True):
            seen = line.get("seen", seen)
        assert self._process.wait() == 0
        assert seen is not None
        trained = {uid for _, uid, _, _ in self._trainer.trained}
        may_be_gone = {uid for uid, number in self._put.items() if not RETRYABLE.get(task_of(number))}
        missing = self._put.keys() - set(map(int, seen["rows"])) - trained - self._left - may_be_gone
        assert not missing, f"put, never trained, and not there: {self._worlds.about(missing)}"

    def _live(self, **orders: Any) -> Iterator[dict[str, Any]]:
        nothing = {"dies_opening_at": None, "dies_writing_at": None, "interrupted": False, "rests": False}
        orders = {**nothing, **orders}
        self.lives += 1
        self._trainer.restart()
        for line in order(
            self._process,
            directory=str(self._directory),
            seed=self._seed,
            life=self.lives,
            checkpoint=self._trainer.checkpoint,
            orphans=list(self._orphans.values()),
            options={
                "max_resident_bytes": self._chance.choice([None, 0, 3000]),
                **self._options,
            },
            **orders,
        ):
            self._hear(line)
            yield line

    def _die(self, *, is_interrupted: bool) -> None:
        process, self._process = self._process, start("crash.worker")
        code, expected = end(process), 0 if is_interrupted else -signal.SIGKILL
        assert code == expected, f"life {self.lives} ended with code {code}, not {expected}"
        self._worlds.crash(is_interrupted=is_interrupted)
        self._ops, self._lent, self._acked = {}, {}, {}

    def _pause(self) -> None:
        """Stop the process, as a debugger or a full machine does, and let it go on."""
        self._process.send_signal(signal.SIGSTOP)
        # Until it has stopped; or it is dead, and stays to be waited for.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._process.send_signal(signal.SIGCONT)
        self.events["paused"] += 1

    def _check_checkpoint(self) -> None:
        """Check what saves have left that were cancelled, killed or done: the checkpoint before, or the new one."""
        saved = self._directory.with_name(f"{self._directory.name}-saved")
        if (saved / FILE_NAME).exists():
            assert verify(saved).problems == []

    def _damage_a_copy(self, chance: random.Random) -> None:
        """Cut, alter or remove the log in a copy of what is left: all is there then, or the loss is told."""
        copy = self._directory.with_name(f"{self._directory.name}-damaged")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._directory, copy)
        log = copy / f"{FILE_NAME}-wal"
        if not log.exists() or not (data := log.read_bytes()):
            return
        match chance.choice(["cut", "alter", "remove"]):
            case "cut":
                log.write_bytes(data[: chance.randrange(len(data))])
            case "alter":
                at = chance.randrange(len(data))
                log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            case "remove":
                log.unlink()
        is_whole = verify(copy).is_whole
        try:
            seen = asyncio.run(_picture_of(copy))
        except CorruptData:
            assert not is_whole, "verify says whole"
            self.events["loss told"] += 1
        else:
            assert self._worlds.could_be(seen), "groups are missing, and no error says so"
            self.events["nothing lost"] += 1

    def close(self) -> None:
        """End the process that waits for its turn."""
        self._process.kill()
        end(self._process)

    # --- what it is told

    def _hear(self, line: dict[str, Any]) -> None:
        match line:
            case {"begin": number}:
                self._worlds.begin(line)
                self._ops[number] = line
                self._note_begin(line)
            case {"end": number, "result": result}:
                self._worlds.end(number, result)
                self._note_end(self._ops[number], result)
                self.ops[self._ops[number]["op"]] += 1
            case {"seen": picture}:
                self._worlds.see(picture)
            case {"checkpoint": step}:
                self._trainer.checkpoint = step
            case {"restart": _}:
                self._trainer.restart()
            case {"saved": _} | {"cancelled": _} | {"forked": _}:
                self.events[next(iter(line))] += 1

    def _note_begin(self, op: dict[str, Any]) -> None:
        for task in op.get("sizes", op.get("thresholds", [op.get("task")])):
            if task is not None and isinstance(op.get("step"), int):
                self._steps[task] = max(op["step"], self._steps.get(task, 0))
        if op["op"] == "rewind":
            self._steps = {task: min(step, op["step"] + 1) for task, step in self._steps.items()}
        match op:
            case {"op": "put", "uid": uid}:
                self._orphans.pop(uid, None)
            case {"op": "forget" | "delete", "uids": uids}:
                for uid in uids:
                    self._orphans.pop(uid, None)
                self._left.update(uids)
            case {"op": "ack", "lease": lease, "begin": number}:
                step, groups = self._lent[lease]
                for (
                    group
                ) in groups:  # its step may have been rewound: then they are used by the step that is at work
                    used = min(step, self._steps[task_of(group[1])])
                    self._acked.setdefault(number, []).append((used, group))
                    if (
                        used <= self._trainer.checkpoint
                    ):  # final as soon as it is written, which may be told to nobody
                        self._left.add(group[0])

    def _note_end(self, op: dict[str, Any], result: Any) -> None:
        match op:
            case {"op": "put", "number": number}:
                self._put[result] = number
            case {"op": "take", "status": "completed", "step": int(step)}:
                self._trainer.learn(step, result)
            case {"op": "take", "status": "aborted" | "expired"}:
                self._orphans.update((given[0], given) for given in result)
            case {"op": "sample", "step": step}:
                self._trainer.learn(step, result)
            case {"op": "lease", "step": step}:
                self._lent[result[0]] = (step, result[1])
            case {"op": "ack", "begin": number}:
                for used, group in self._acked.get(number, ()):
                    self._trainer.learn(used, [group])


async def _picture_of(directory: Path) -> dict[str, Any]:
    async with config(directory).build() as buffer:
        return await picture_of(buffer)
