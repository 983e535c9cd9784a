"""`make demo ARGS="--crash"`: kills trainer, producer and buffer (-9) once each, restarts them, and checks the outcome.

The checks are about the steps that the trainer's checkpoints contain: for each step the groups of the trainer's last
life, since a killed trainer loses what it did after its checkpoint.
"""

import copy
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console

from demo.modes import MODES, TASK
from demo.policy import warmed_up
from demo.processes import Groups, save_checkpoint
from demo.report import Check, CrashRun
from demo.run import closes, training

CRASHING: Final = ("on-policy", "async")
"""The modes that are run with crashes."""
STEPS: Final = 18
KILLS: Final = {5: "producer", 10: "trainer", 15: "buffer"}
"""The process that is killed after a step; checkpoints are of steps 4, 8, 12, 16 and the last."""
_PATIENCE_S: Final = 90.0


class Processes:
    """Starts the three processes, kills them, and collects their events."""

    def __init__(self, directory: Path, mode: str, seed: int, note: Callable[[str], None]) -> None:
        self._arguments, self._note = (str(directory), mode, str(seed), str(STEPS)), note
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.trained: dict[int, Groups] = {}
        """The groups of each step, by the last life of the trainer."""
        self.acknowledged: set[int] = set()
        """The groups whose put was acknowledged."""

    def __enter__(self) -> Self:
        for role in ("buffer", "trainer", "producer"):
            self._start(role)
        return self

    def __exit__(self, *_: object) -> None:
        for role in self._running:
            self._kill(role)

    def run(self) -> None:
        """Return when the last step is in the trainer's checkpoint and the buffer is closed."""
        kills, begun = dict(KILLS), 0
        while True:
            match self._events.get(timeout=_PATIENCE_S):
                case {"event": "trained", "step": step, "uids": uids, "digest": digest}:
                    self.trained[step] = Groups(uids, digest)
                    if role := kills.pop(step, None):
                        self._kill(role)
                        self._note(f"the {role} is killed after step {step}, and started again")
                        self._start(role)
                case {"event": "begins", "step": step}:
                    begun += 1
                    if begun > 1 + len(KILLS):
                        raise RuntimeError("the trainer of the demo restarted without being killed")
                    self._note(f"the trainer begins with step {step}: its checkpoint is of step {step - 1}")
                case {"event": "put", "uid": int(uid)}:
                    self.acknowledged.add(uid)
                case {"event": "ended", "role": role, "code": code} if code not in (0, -9):
                    raise RuntimeError(f"the {role} of the demo ended with code {code}")
                case {"event": "trained all"}:
                    break
        self._kill("producer")
        self._running["buffer"].terminate()
        self._running["buffer"].wait(_PATIENCE_S)

    def _start(self, role: str) -> None:
        process = self._running[role] = subprocess.Popen(
            [sys.executable, "-m", "demo.processes", role, *self._arguments],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(role, process), daemon=True).start()

    def _read(self, role: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.startswith("{") and line.endswith("\n"):  # an event that no kill cut off
                    self._events.put(json.loads(line))
        self._events.put({"event": "ended", "role": role, "code": process.wait()})

    def _kill(self, role: str) -> None:
        process = self._running[role]
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def survive(mode: str, console: Console, seed: int = 0) -> CrashRun:
    """Run a mode in three processes, kill each once, and check the outcome."""
    found, warm = CrashRun(mode=mode), warmed_up(seed)

    def note(event: str) -> None:
        found.events.append(event)
        console.print(f"  {event}", highlight=False)

    console.print(f"{mode}, with crashes: {STEPS} steps in three processes", highlight=False)
    with tempfile.TemporaryDirectory(prefix="reroll-") as folder:
        config = MODES[mode].config(seed, Path(folder) / "store")
        (Path(folder) / "prepare.json").write_text(config.model_dump_json(exclude_unset=True))
        save_checkpoint(Path(folder), 0, warm, None, None)
        with Processes(Path(folder), mode, seed, note) as processes:
            processes.run()
        left: Any = config.replay_buffer.build_blocking()
        found.ledger = {name: amount._asdict() for name, amount in left.ledger()[TASK].items()}
        here = {row.uid for row in left.query({})}
        left.close()
    groups = {name: amount["groups"] for name, amount in found.ledger.items()}
    found.checks += [_ledger_closes(found), _trained_once(processes, groups)]
    if MODES[mode].is_ahead:
        found.checks.append(_none_lost(processes, here, groups))
    else:
        with training(MODES[mode], seed, copy.deepcopy(warm), STEPS) as (_, steps):
            undisturbed = {one.data.step: Groups.of(one.data).digest for one in steps}
        found.checks.append(_same_groups(processes, undisturbed))
    for check in found.checks:
        holds = "holds" if check.holds else "FAILS"
        console.print(f"  {holds}: {check.name} ({check.evidence})", highlight=False)
    return found


def _ledger_closes(run: CrashRun) -> Check:
    groups = {name: amount["groups"] for name, amount in run.ledger.items() if amount["groups"]}
    put = groups.pop("put")
    equation = " + ".join(f"{count} {name}" for name, count in groups.items())
    return Check("the ledger closes", closes(run.ledger), f"{put} groups put = {equation}")


def _trained_once(processes: Processes, groups: dict[str, int]) -> Check:
    steps, consumed = len(processes.trained), groups["consumed"]
    uses = Counter(uid for one in processes.trained.values() for uid in one.uids)
    twice = sum(count > 1 for count in uses.values())
    return Check(
        "every group in the checkpoints was trained once, and is consumed",
        steps == STEPS and not twice and consumed == len(uses) and not groups["uncommitted"],
        f"{len(uses)} groups in {steps} steps, {twice} of them twice; the buffer counts {consumed} as consumed",
    )


def _none_lost(processes: Processes, here: set[int], groups: dict[str, int]) -> Check:
    put, trained = processes.acknowledged, {uid for one in processes.trained.values() for uid in one.uids}
    missing, gone = len(put - trained - here), groups["expired"] + groups["filtered"]
    return Check(
        "no acknowledged group is lost",
        missing <= gone and not groups["lost"] and not groups["deleted"],
        f"{len(put)} puts were acknowledged: {len(put & trained)} groups are trained, {len(put & here)} are resident, "
        f"{missing} left otherwise; the ledger has {gone} expired or filtered, {groups['lost']} lost, {groups['deleted']} "
        "deleted",
    )


def _same_groups(processes: Processes, undisturbed: dict[int, int]) -> Check:
    same = sum(undisturbed.get(step) == groups.digest for step, groups in processes.trained.items())
    return Check(
        "the groups of every step are those of a run without crashes",
        same == STEPS == len(processes.trained) == len(undisturbed),
        f"{same} of {STEPS} steps had the same tokens, with the same log-probabilities and advantages",
    )
