"""One training: a mode and a seed, from the warm-up to the target, and its measurements."""

import copy
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from demo.engine import Response, generate
from demo.grpo import Trained, new_optimizer, train
from demo.modes import BATCH, GROUP_SIZE, TASK, Mode
from demo.policy import Policy, publish
from demo.producer import OnGenerated, Producer
from demo.sorting_task import is_right, make_prompt
from reroll import Closed
from reroll.prepare import BlockingPreparer

TARGET = 0.8
MAX_STEPS = 400
WINDOW = 2 * BATCH * GROUP_SIZE
"""The reward of a run is the mean over this many responses: the newest that were generated, trained or not."""
HELD_OUT = 256

Span = tuple[float, float]
Ledger = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Point:
    """The state of a run after a training step."""

    step: int
    seconds: float
    generated_tokens: int
    trained_tokens: int
    """Response tokens in the loss; a token that is trained twice counts twice."""
    reward: float


@dataclass(slots=True, kw_only=True)
class Run:
    """The measurements of one training, as plain values."""

    mode: str
    seed: int
    reward_before: float
    """On held-out prompts, before the first step."""
    reward_after: float | None = None
    target: float = TARGET
    curve: list[Point] = field(default_factory=list)
    generating: list[Span] = field(default_factory=list)
    training: list[Span] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    """Trained groups by the staleness of their oldest token."""
    uses: dict[int, int] = field(default_factory=dict)
    """Trained groups by how often they had been used, this use included."""
    mixed_responses: int = 0
    """Trained responses with tokens of several versions."""
    puts: dict[str, int] = field(default_factory=dict)
    """Puts by status; an aborted and continued group counts for each."""
    ledger: Ledger = field(default_factory=dict)
    is_whole: bool = False
    """Whether the run was not interrupted."""

    @property
    def reached(self) -> Point | None:
        """The first point at or above the target, if any."""
        return next((point for point in self.curve if point.reward >= self.target), None)

    @property
    def overlap(self) -> float:
        """The share of the training time during which the producer generated."""
        return shared_seconds(self.generating, self.training) / (_length(self.training) or 1.0)

    @property
    def seconds_per_generated_token(self) -> float:
        return _length(self.generating) / self.curve[-1].generated_tokens if self.curve else 0.0

    @property
    def seconds_per_trained_token(self) -> float:
        return _length(self.training) / self.curve[-1].trained_tokens if self.curve else 0.0


def closes(ledger: Ledger) -> bool:
    """Return whether every group and token that was put is in exactly one bucket."""
    return bool(ledger) and all(
        ledger["put"][unit] == sum(amount[unit] for name, amount in ledger.items() if name != "put")
        for unit in ("groups", "tokens")
    )


def shared_seconds(first: Sequence[Span], second: Sequence[Span]) -> float:
    """Return for how long a span of each lasted at the same time."""
    return sum(max(0.0, min(end, b) - max(start, a)) for start, end in first for a, b in second)


def _length(spans: Sequence[Span]) -> float:
    return sum(end - start for start, end in spans)


class Meter:
    """Records a run. The producer and the trainer call it from two threads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._generated = self._trained = 0

    def generated(self, began: float, tokens: int, rewards: Sequence[float]) -> None:
        """Record new tokens, and the rewards of complete groups."""
        with self._lock:
            self._run.generating.append((began - self._started, time.monotonic() - self._started))
            self._generated += tokens
            self._rewards.extend(rewards)

    def trained(self, data: Any, began: float, ended: float) -> None:
        """Record a finished step."""
        with self._lock:
            now, run = ended - self._started, self._run
            run.training.append((began - self._started, now))
            self._trained += data.batch.counts.trainable_tokens
            for batch in data:
                versions = np.concatenate(([0], np.cumsum(batch.run_versions >= 0)))[batch.cu_runs]
                run.mixed_responses += int(np.count_nonzero(np.diff(versions) > 1))
            run.curve.append(Point(data.step, now, self._generated, self._trained, fmean(self._rewards)))

    def read(self, buffer: Any) -> None:
        """Record the buffer's stats and ledger, if any group was put."""
        stats, run = buffer.stats().tasks.get(TASK), self._run
        if stats is not None:
            run.staleness = dict(sorted(stats.trained_staleness["oldest"].histogram.items()))
            run.uses = dict(sorted(stats.trained_uses.histogram.items()))
            run.puts = stats.puts
            run.ledger = {name: amount._asdict() for name, amount in buffer.ledger()[TASK].items()}


def measure(mode: Mode, run: Run, warm: Policy, on_step: Callable[[Run, Any], None]) -> None:
    """Train a copy of a policy until the target is reached. An interrupt leaves the measurements so far."""
    policy, meter = copy.deepcopy(warm), Meter(run)
    with training(mode, run.seed, policy, MAX_STEPS, meter.generated) as (preparer, steps):
        try:
            for trained in steps:
                meter.trained(*trained)
                on_step(run, preparer.buffer)
                if run.reached:
                    break
        finally:
            meter.read(preparer.buffer)
    run.reward_after = held_out_reward(policy, run.seed)
    run.is_whole = True


@contextmanager
def training(
    mode: Mode, seed: int, policy: Policy, last_step: int, on_generated: OnGenerated | None = None
) -> Iterator[tuple[BlockingPreparer, Iterator[Trained]]]:
    """Start a producer thread; yield the preparer, and the steps, which are trained one by one as they are asked for.

    An error of the producer ends the trainer's wait, and is raised here.
    """
    errors: list[Exception] = []

    def work() -> None:
        try:
            Producer(preparer, preparer.buffer, weights, seed, on_generated).produce(mode)
        except Closed:
            pass  # the training is over
        except Exception as error:  # noqa: BLE001  (raised in the thread of the trainer)
            errors.append(error)
            preparer.shutdown()

    with (
        tempfile.TemporaryDirectory(prefix="reroll-") as folder,
        BlockingPreparer(mode.config(seed)) as preparer,
    ):
        weights = Path(folder)
        publish(weights, 0, policy)
        preparer.buffer.advance(0)  # version 0 generates
        thread = threading.Thread(target=work, name="producer", daemon=True)
        thread.start()
        try:
            yield preparer, train(policy, new_optimizer(policy), preparer, weights, range(1, last_step + 1))
        except Closed:
            if not errors:
                raise
        finally:
            preparer.shutdown()
            thread.join()
    if errors:
        raise errors[0]


def held_out_reward(policy: Policy, seed: int) -> float:
    """Return the share of held-out prompts that a policy solves with one response each."""
    prompts = [make_prompt(seed, f"held-out-{number}", 1) for number in range(HELD_OUT)]
    responses = [Response(prompt.tokens, prompt.draws[0]) for prompt in prompts]
    generate(policy, responses)
    return fmean(is_right(response.prompt, response.tokens) for response in responses)
