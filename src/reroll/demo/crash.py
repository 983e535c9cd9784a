"""`reroll demo --crash`: kills trainer, producer and buffer (-9) once each in mid-run, and shows that nothing went wrong.

A killed process is started again, and goes on by itself. What is compared at the end is what the trainer's checkpoints
contain: for each step the groups of its last life, since what a killed trainer did after its checkpoint is not in there.
"""

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console

from reroll.demo.board import Board
from reroll.demo.grpo import new_optimizer, train
from reroll.demo.lives import Place, digest_of, save_checkpoint
from reroll.demo.measuring import closes
from reroll.demo.modes import MODES, TASK
from reroll.demo.policy import Policy, load_weights, weights_of
from reroll.demo.remote import Remote
from reroll.demo.running import producing
from reroll.demo.warmup import warmed_up
from reroll.prepare import Preparer

CRASHING: Final = ("on-policy", "async")
"""The modes that are shown to survive."""
STEPS: Final = 18
KILLS: Final = {5: "producer", 10: "trainer", 15: "buffer"}
"""After which step who is killed; checkpoints are of steps 4, 8, 12, 16 and the last."""
_PATIENCE_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Check:
    """Something that has to hold."""

    name: str
    holds: bool
    told: str


@dataclass(slots=True, kw_only=True)
class Survived:
    """What a run with crashes came to."""

    mode: str
    events: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def survive(mode: str, console: Console, seed: int = 0) -> Survived:
    """Run a mode in three processes, kill each once, and check what is left."""
    survived = Survived(mode=mode)
    console.print(f"{mode}, with crashes: {STEPS} steps in three processes", highlight=False)
    warm = warmed_up(seed)
    with tempfile.TemporaryDirectory(prefix="reroll-") as directory:
        place = Place(Path(directory))
        save_checkpoint(place, 0, warm, None, None)
        with _Processes(place, mode, seed, survived, console) as processes:
            processes.run()
        # Opened again: what the last producer had taken to continue it is back.
        left: Any = MODES[mode].config(seed, place.store).replay_buffer.build_blocking()
        survived.ledger = {name: amount._asdict() for name, amount in left.ledger()[TASK].items()}
        here = {row.uid for row in left.query({})}
        left.close()
    survived.checks.append(Check("the ledger closes", closes(survived.ledger), _equation(survived.ledger)))
    survived.checks.append(_check_consumed(processes.trained, survived.ledger))
    if MODES[mode].is_ahead:
        survived.checks += _check_nothing_lost(processes, here, survived.ledger)
    else:
        survived.checks.append(_check_same_groups(processes.trained, _undisturbed(mode, seed, warm)))
    for check in survived.checks:
        console.print(
            f"  {'holds' if check.holds else 'FAILS'}: {check.name} ({check.told})", highlight=False
        )
    return survived


class _Processes:
    """The three of them, and what they tell."""

    def __init__(self, place: Place, mode: str, seed: int, survived: Survived, console: Console) -> None:
        self._place, self._console, self._survived = place, console, survived
        self._arguments = (str(place.directory), mode, str(seed), str(STEPS))
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        self._kills = dict(KILLS)
        self.trained: dict[int, tuple[list[int], int]] = {}
        """The groups of each step, and a digest of their tokens, by the last life of the trainer."""
        self.acknowledged: set[int] = set()
        """The groups whose put the producer knows to be done."""

    def __enter__(self) -> Self:
        for role in ("buffer", "trainer", "producer"):
            self._start(role)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def run(self) -> None:
        """Go through the run; return when the last step is in the trainer's checkpoint and the buffer is closed."""
        while True:
            told = self._told.get(timeout=_PATIENCE_S)
            match told:
                case {"event": "trained", "step": step, "uids": uids, "digest": digest}:
                    self.trained[step] = (uids, digest)
                    if step in self._kills:
                        self._kill(self._kills.pop(step), step)
                case {"event": "begins", "step": step}:
                    self._note(f"the trainer begins with step {step}: its checkpoint is of step {step - 1}")
                case {"event": "put", "uid": int(uid)}:
                    self.acknowledged.add(uid)
                case {"event": "trained all"}:
                    break
                case {"event": "ended", "role": role, "code": code} if code not in (0, -9):
                    raise RuntimeError(f"the {role} of the demo ended with code {code}")
        self._stop("producer")
        Remote(self._place.socket).service.end()
        self._running["buffer"].wait(_PATIENCE_S)

    def _start(self, role: str) -> None:
        command = [sys.executable, "-m", "reroll.demo.lives", role, *self._arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  (ourselves)
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
        self._running[role].kill()
        self._running[role].wait()

    def _kill(self, role: str, step: int) -> None:
        self._stop(role)
        self._note(f"the {role} is killed after step {step}, and started again")
        self._start(role)

    def _note(self, event: str) -> None:
        self._survived.events.append(event)
        self._console.print(f"  {event}", highlight=False)


def _undisturbed(mode: str, seed: int, warm: Policy) -> dict[int, tuple[list[int], int]]:
    """Return the groups of each step of the same run in this process, without a crash."""
    policy, board = Policy(), Board()
    load_weights(policy, weights_of(warm))
    board.publish(0, weights_of(policy))
    preparer = Preparer(MODES[mode].config(seed)).start()
    with producing(preparer, board, MODES[mode], seed, _Deaf()):
        steps = train(policy, new_optimizer(policy), preparer, board, range(1, STEPS + 1))
        return {trained.data.step: (trained.data.uids, digest_of(trained.data)) for trained in steps}


class _Deaf:
    def generated(self, began: float, tokens: int, rewards: Any) -> None:
        pass


def _check_same_groups(found: dict[int, Any], wanted: dict[int, Any]) -> Check:
    same = sum(found.get(step) == groups for step, groups in wanted.items())
    told = f"{same} of {len(wanted)} steps had the same groups, with the same tokens"
    return Check("the groups of every step are those of a run without crashes", found == wanted, told)


def _check_consumed(trained: dict[int, Any], ledger: dict[str, dict[str, int]]) -> Check:
    uses = Counter(uid for uids, _ in trained.values() for uid in uids)
    twice = sum(count > 1 for count in uses.values())
    consumed = ledger["consumed"]["groups"]
    told = f"{len(uses)} groups in {len(trained)} steps, {twice} of them twice; the buffer counts {consumed} as consumed"
    holds = (
        len(trained) == STEPS and not twice and consumed == len(uses) and not ledger["uncommitted"]["groups"]
    )
    return Check("what the checkpoints contain was trained once, and is consumed", holds, told)


def _check_nothing_lost(
    processes: _Processes, here: set[int], ledger: dict[str, dict[str, int]]
) -> list[Check]:
    trained = {uid for uids, _ in processes.trained.values() for uid in uids}
    missing = processes.acknowledged - trained - here
    left = sum(ledger[name]["groups"] for name in ("expired", "filtered"))
    told = (
        f"{len(processes.acknowledged)} puts were acknowledged: {len(processes.acknowledged & trained)} groups are trained, "
        f"{len(processes.acknowledged & here)} are here, {len(missing)} left otherwise; the ledger has {left} expired or "
        f"filtered, {ledger['lost']['groups']} lost, {ledger['deleted']['groups']} deleted"
    )
    holds = len(missing) <= left and not ledger["lost"]["groups"] and not ledger["deleted"]["groups"]
    return [Check("nothing that was put is lost", holds, told)]


def _equation(ledger: dict[str, dict[str, int]]) -> str:
    parts = [
        f"{amount['groups']} {name}" for name, amount in ledger.items() if name != "put" and amount["groups"]
    ]
    return f"{ledger['put']['groups']} groups put = {' + '.join(parts)}"
