"""`reroll demo --crash`: kills trainer, producer and buffer (-9) once each in mid-run, and shows that nothing went wrong.

A killed process is started again, and goes on by itself. What is compared at the end is what the trainer's checkpoints
contain: for each step the groups of its last life, since what a killed trainer did after its checkpoint is not in there.
"""

import copy
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from reroll.demo.lives import Place, digest_of, save_checkpoint
from reroll.demo.measuring import closes
from reroll.demo.modes import MODES, TASK
from reroll.demo.policy import Policy
from reroll.demo.processes import STEPS, Groups, Processes
from reroll.demo.producing import Unheard
from reroll.demo.running import training
from reroll.demo.warmup import warmed_up

CRASHING: Final = ("on-policy", "async")
"""The modes that are shown to survive."""


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

    def note(event: str) -> None:
        survived.events.append(event)
        console.print(f"  {event}", highlight=False)

    console.print(f"{mode}, with crashes: {STEPS} steps in three processes", highlight=False)
    warm = warmed_up(seed)
    with tempfile.TemporaryDirectory(prefix="reroll-") as directory:
        place = Place(Path(directory))
        save_checkpoint(place, 0, warm, None, None)
        with Processes(place, mode, seed, note) as processes:
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


def _undisturbed(mode: str, seed: int, warm: Policy) -> dict[int, Groups]:
    """Return the groups of each step of the same run in this process, without a crash."""
    with training(MODES[mode], seed, copy.deepcopy(warm), Unheard(), STEPS) as (_, steps):
        return {one.data.step: Groups(one.data.uids, digest_of(one.data)) for one in steps}


def _check_same_groups(found: dict[int, Groups], wanted: dict[int, Groups]) -> Check:
    same = sum(step in found and found[step].digest == groups.digest for step, groups in wanted.items())
    told = (
        f"{same} of {len(wanted)} steps had the same tokens, with the same log-probabilities and advantages"
    )
    holds = same == len(wanted) == len(found)
    return Check("the groups of every step are those of a run without crashes", holds, told)


def _check_consumed(trained: dict[int, Groups], ledger: dict[str, dict[str, int]]) -> Check:
    uses = Counter(uid for groups in trained.values() for uid in groups.uids)
    twice = sum(count > 1 for count in uses.values())
    consumed = ledger["consumed"]["groups"]
    told = f"{len(uses)} groups in {len(trained)} steps, {twice} of them twice; the buffer counts {consumed} as consumed"
    holds = (
        len(trained) == STEPS and not twice and consumed == len(uses) and not ledger["uncommitted"]["groups"]
    )
    return Check("what the checkpoints contain was trained once, and is consumed", holds, told)


def _check_nothing_lost(
    processes: Processes, here: set[int], ledger: dict[str, dict[str, int]]
) -> list[Check]:
    trained = {uid for groups in processes.trained.values() for uid in groups.uids}
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
