"""What is measured in a run, while it runs; and what is left of it as plain values, for the report and as JSON."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from reroll.demo.modes import BATCH, GROUP_SIZE, TASK
from reroll.prepare import StepData

WINDOW = 2 * BATCH * GROUP_SIZE
"""The reward is that of so many responses, the newest: those that were generated, trained or not."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run is after a training step."""

    step: int
    seconds: float
    generated_tokens: int
    trained_tokens: int
    """Response tokens in the loss; a token that is trained twice counts twice."""
    reward: float


@dataclass(slots=True, kw_only=True)
class Measured:
    """One run."""

    mode: str
    seed: int
    reward_before: float
    """On prompts that are not trained on, before the first step."""
    reward_after: float | None = None
    """On the same prompts, after the last."""
    target: float
    curve: list[Point] = field(default_factory=list)
    generating: list[Span] = field(default_factory=list)
    training: list[Span] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    """Trained groups by the staleness of their oldest token."""
    uses: dict[int, int] = field(default_factory=dict)
    """Trained groups by which use of theirs it was."""
    mixed_responses: int = 0
    """Trained responses with tokens of several versions: aborted, and continued by newer weights."""
    puts: dict[str, int] = field(default_factory=dict)
    """By status; a group that was aborted and continued counts for each."""
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)
    is_whole: bool = False
    """Whether it ended by itself."""

    @property
    def reached(self) -> Point | None:
        """The first point at which the reward was that of the target; None if it never was."""
        return next((point for point in self.curve if point.reward >= self.target), None)

    @property
    def overlap(self) -> float:
        """The share of the training time during which something was generated, too."""
        trained = sum(end - start for start, end in self.training)
        return shared_seconds(self.generating, self.training) / trained if trained else 0.0

    @property
    def seconds_per_generated_token(self) -> float:
        return _per_token(self.generating, self.curve[-1].generated_tokens if self.curve else 0)

    @property
    def seconds_per_trained_token(self) -> float:
        return _per_token(self.training, self.curve[-1].trained_tokens if self.curve else 0)


def closes(ledger: dict[str, dict[str, int]]) -> bool:
    """Return whether every group and token that was put is in exactly one bucket."""
    return bool(ledger) and all(
        ledger["put"][unit] == sum(amount[unit] for name, amount in ledger.items() if name != "put")
        for unit in ("groups", "tokens")
    )


def shared_seconds(first: Sequence[Span], second: Sequence[Span]) -> float:
    """Return how long both had a span at the same time; the spans of each are in order and apart."""
    shared, others = 0.0, deque(second)
    for start, end in first:
        while others and others[0][1] <= start:
            others.popleft()
        shared += sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in _until(others, end))
    return shared


def _until(spans: deque[Span], end: float) -> list[Span]:
    found = []
    for span in spans:
        if span[0] >= end:
            break
        found.append(span)
    return found


def _per_token(spans: Sequence[Span], tokens: int) -> float:
    return sum(end - start for start, end in spans) / tokens if tokens else 0.0


class Meter:
    """Measures a run. Told by the producer and by the trainer, which may be two threads."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._generated = self._trained = 0

    def generated(self, began: float, tokens: int, rewards: Sequence[float]) -> None:
        """Learn of tokens that were made since a moment, and of the rewards of groups that are complete."""
        with self._lock:
            self.measured.generating.append((began - self._started, time.monotonic() - self._started))
            self._generated += tokens
            self._rewards.extend(rewards)

    def trained(self, data: StepData, began: float, ended: float) -> Point:
        """Learn that a step is done, and how long it was trained."""
        with self._lock:
            now = ended - self._started
            self.measured.training.append((began - self._started, now))
            self._trained += data.batch.counts.trainable_tokens
            self.measured.mixed_responses += sum(map(_mixed, data))
            point = Point(data.step, now, self._generated, self._trained, self.reward)
            self.measured.curve.append(point)
            return point

    @property
    def reward(self) -> float:
        """Of the newest responses."""
        return fmean(self._rewards)

    @property
    def is_there(self) -> bool:
        """Whether the target is reached."""
        return self.measured.reached is not None

    def look(self, buffer: Any) -> None:
        """Read the books of a buffer, if anything was put."""
        stats = buffer.stats().tasks.get(TASK)
        if stats is None:
            return
        self.measured.staleness = dict(sorted(stats.trained_staleness["oldest"].histogram.items()))
        self.measured.uses = dict(sorted(stats.trained_uses.histogram.items()))
        self.measured.puts = stats.puts
        self.measured.ledger = {name: amount._asdict() for name, amount in buffer.ledger()[TASK].items()}


def _mixed(batch: Any) -> int:
    """Return how many sequences of a micro-batch have response tokens of several versions."""
    runs = np.concatenate(([0], np.cumsum(batch.run_versions >= 0)))[batch.cu_runs]
    return int(np.count_nonzero(np.diff(runs) > 1))
