"""Hours of traffic in minutes: producers, a trainer and the owner of a durable buffer, all of them killed again and again.

    python benchmarks/soak.py                   three minutes
    python benchmarks/soak.py --seconds 3600    as long as one likes
    python benchmarks/soak.py --steps 60        so many training steps, however long they take

Workload F: processes end by SIGKILL in mid-step and are started again, chosen by a seed. At the end producers stop, the trainer
trains what is left, and then it must be true that

    every group that a producer knows to be stored was trained once, in the history that the trainer's checkpoints keep
    the ledger closes, and holds as many groups and tokens as were put
    the owner's memory does not grow with what went through

Exits with 1, and says what is wrong, if one is not.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from reroll.engine.ledger import closes
from soak_processes import TASK, Cast
from soak_trainer import history

KINDS = ("producer", "trainer", "owner")
GROWTH = 0.05
"""Of the bytes that went through, how much may stay in the owner's memory."""
SLACK_BYTES = 30_000_000
"""What an allocator may keep besides."""


class Verdict(NamedTuple):
    """What a run showed."""

    steps: int
    groups: int
    kills: Counter[str]
    lost: list[str]
    """Names that a producer knows to be stored, and the trainer never saw."""
    doubled: list[str]
    """Names that were trained more than once."""
    unclosed: list[str]
    """What is wrong with the books."""
    grown_bytes: int
    """Memory of the owner, at the end of its longest life against the time when it had warmed up."""
    passed_bytes: int
    """What went through it meanwhile."""

    @property
    def is_flat(self) -> bool:
        return self.grown_bytes <= GROWTH * self.passed_bytes + SLACK_BYTES

    @property
    def holds(self) -> bool:
        return self.is_flat and not (self.lost or self.doubled or self.unclosed)

    def __str__(self) -> str:
        killed = ", ".join(f"{kind} {number}" for kind, number in sorted(self.kills.items()))
        memory = f"{self.grown_bytes / 1e6:+.1f} MB while {self.passed_bytes / 1e6:,.0f} MB went through"
        return "\n".join(
            [
                f"{self.steps} steps, {self.groups:,} groups, killed: {killed}",
                f"lost {len(self.lost)}, trained twice {len(self.doubled)}, {self.lost[:3] + self.doubled[:3]}",
                f"books: {'; '.join(self.unclosed) or 'closed'}",
                f"memory of the owner: {memory}: {'flat' if self.is_flat else 'GROWING'}",
            ]
        )


def soak(folder: Path, *, seed: int, seconds: float, steps: int | None, every: int) -> Verdict:
    """Run until the time is up, or so many steps are trained; kill somebody after each few steps."""
    dice = random.Random(seed)
    kills: Counter[str] = Counter()
    start = perf_counter()
    with Cast(folder, seed) as cast:
        done = next_kill = 0
        while (perf_counter() - start < seconds) if steps is None else (done < steps):
            done = cast.trained_steps(at_least=done + 1)
            cast.look_at_memory()
            if done >= next_kill:
                kind = KINDS[kills.total()] if kills.total() < len(KINDS) else dice.choice(KINDS)
                cast.kill(kind, dice)
                kills[kind] += 1
                next_kill = done + every
        cast.finish()
        return _judge(cast, kills, done)


def _judge(cast: Cast, kills: Counter[str], steps: int) -> Verdict:
    stored, trained = cast.stored(), Counter(name for _, name in history(cast.trainer_file))
    books = cast.client.ledger()
    unclosed = [task for task, amounts in books.items() if not closes(amounts)]
    consumed = books[TASK]["consumed"].groups
    if not consumed == books[TASK]["put"].groups == trained.total():
        unclosed.append(f"{books[TASK]['put'].groups} put, {consumed} consumed, {trained.total()} trained")
    grown, passed = cast.memory_growth()
    return Verdict(
        steps=steps,
        groups=len(stored),
        kills=kills,
        lost=sorted(stored - trained.keys()),
        doubled=sorted(name for name, times in trained.items() if times > 1),
        unclosed=unclosed,
        grown_bytes=grown,
        passed_bytes=passed,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak a durable buffer in traffic and kills.")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--steps", type=int, help="train so many steps instead")
    parser.add_argument("--every", type=int, default=40, help="training steps from one kill to the next")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        verdict = soak(
            Path(folder), seed=options.seed, seconds=options.seconds, steps=options.steps, every=options.every
        )
    print(verdict)
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
