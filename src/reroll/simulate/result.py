"""What a simulated run measured."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from reroll.group import RolloutGroup
from reroll.rollout import Status
from reroll.simulate.engines import Fleet
from reroll.simulate.scenario import Scenario

LEAVING: Final = ("expired", "evicted", "filtered", "failed", "deleted", "lost")
"""Buckets of the ledger for groups that left; what was not trained of them is waste."""
_WHOLE: Final = {Status.COMPLETED, Status.FILTERED}
_LONG_SAMPLES: Final = 2000
_MAX_POINTS: Final = 2000


class Generating(NamedTuple):
    """Tokens that are with producers now."""

    running: int
    """Of responses that are being generated."""
    pending: int
    """Of responses that have ended, in groups that are not in the buffer yet."""


class Point(NamedTuple):
    """The run at the end of a training step."""

    step: int
    time_s: float
    step_s: float
    wait_s: float
    ready: int
    """COMPLETED groups in the buffer."""
    running: int
    """Responses with engines."""
    aborted: int
    generated: int
    """Tokens since the beginning."""
    trained: int
    busy_s: float
    """Seconds of all engines with at least one response."""
    full_s: float
    """Seconds of all engines, as if each had run at full load."""


@dataclass(frozen=True)
class Result:
    """Times, rates, staleness and waste of a simulated run; means leave the warm-up out."""

    step_s: float
    wait_s: float
    """Of a step: until the batch was there."""
    generated_tokens_per_s: float
    trained_tokens_per_s: float
    trainer_idle: float
    """Share of the time in which the trainer waited for a batch."""
    engine_idle: float
    """Share of the time in which an engine had no response, or stood still."""
    engine_load: float
    """Generated tokens, as a share of what engines give at full load."""
    staleness: dict[int, int]
    """Trained groups by staleness."""
    wasted: dict[str, int]
    """Tokens of the whole run that were generated and never trained, by cause."""
    recomputed: int
    """Tokens that engines read again, since responses were aborted."""
    long_generated: float
    """Share of long groups among generated ones: those whose longest member is in the top tenth."""
    long_trained: float
    generated: int
    """Tokens of the whole run."""
    trained: int
    in_flight: int
    """Tokens with engines or in the buffer at the end."""
    late: int
    """Trained tokens of the whole run whose staleness was above that of the window."""
    points: list[Point] = field(repr=False)

    @property
    def mean_staleness(self) -> float:
        """The mean over trained groups."""
        groups = sum(self.staleness.values())
        return sum(value * number for value, number in self.staleness.items()) / groups if groups else 0.0

    @property
    def max_staleness(self) -> int:
        """The largest of a trained group."""
        return max(self.staleness, default=0)

    @property
    def waste(self) -> float:
        """Wasted tokens, as a share of those that were generated and are not in flight."""
        ended = self.generated - self.in_flight
        return sum(self.wasted.values()) / ended if ended else 0.0

    @property
    def imbalance(self) -> int:
        """Generated minus trained, wasted and in-flight tokens: 0, since nothing gets lost."""
        return self.generated - self.trained - sum(self.wasted.values()) - self.in_flight

    def row(self) -> dict[str, float]:
        """Return the figures of one line of a table."""
        return {
            "step_s": self.step_s,
            "wait_s": self.wait_s,
            "trained_tokens_per_s": self.trained_tokens_per_s,
            "trainer_idle": self.trainer_idle,
            "engine_idle": self.engine_idle,
            "mean_staleness": self.mean_staleness,
            "max_staleness": self.max_staleness,
            "waste": self.waste,
            "late": self.late / self.trained if self.trained else 0.0,
            "read_again": self.recomputed / self.generated if self.generated else 0.0,
            "long_generated": self.long_generated,
            "long_trained": self.long_trained,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        plain = asdict(self)
        plain["points"] = [point._asdict() for point in self.points]
        plain["staleness"] = {str(value): number for value, number in sorted(self.staleness.items())}
        return {**plain, **self.row(), "imbalance": self.imbalance}


class Meter:
    """Counts while a run goes on. Its memory does not grow with the number of rollouts."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._long = _long_length(scenario)
        self.generated = 0
        """Tokens that have left engines."""
        self.recomputed = 0
        self.lost: Counter[str] = Counter()
        """Tokens that never reached the buffer, by cause."""
        self._staleness: Counter[int] = Counter()
        self._put = [0, 0]  # groups, and long ones of them
        self._trained = [0, 0]
        window = scenario.buffer_config().for_task(scenario.task).window()
        self._bound = None if window is None else window.bound
        self._late = 0
        self._points: list[Point] = []  # at most `_MAX_POINTS`, evenly spaced
        self._spacing = 1
        self._first, self._last = _START, _START
        self._steps, self._wait_s = 0, 0.0  # after the warm-up
        self._is_warm = not scenario.warm_up

    def put(self, lengths: Sequence[int], statuses: set[Status]) -> None:
        """Count a group that went to the buffer with all its members."""
        if statuses <= _WHOLE:
            self._put[0] += 1
            self._put[1] += max(lengths) >= self._long

    def trained(self, samples: Iterable[Any], step: int) -> None:
        """Count the groups of a batch that was trained."""
        for sample in samples:
            if self._bound is not None and sample.info.staleness > self._bound:
                self._late += _late_tokens(sample.group, step, self._bound)
            self._trained[0] += 1
            self._trained[1] += max(sample.group.summary().member_tokens) >= self._long
            if self._is_warm:
                self._staleness[sample.info.staleness] += 1

    async def step(
        self, step: int, now: float, wait_s: float, *, buffer: Any, fleet: Fleet, generating: Generating
    ) -> None:
        """Note the end of a training step."""
        task = self._scenario.task
        for engine in fleet.engines:
            engine.move()
        self._last = Point(
            step=step,
            time_s=now,
            step_s=now - self._last.time_s,
            wait_s=wait_s,
            ready=await buffer.count(task, "completed"),
            running=fleet.load,
            aborted=await buffer.count(task, "aborted"),
            generated=self.generated + generating.running,
            trained=_trained((await buffer.ledger())[task]),
            busy_s=sum(engine.busy_s for engine in fleet.engines),
            full_s=sum(engine.work / engine.most() for engine in fleet.engines),
        )
        if step % self._spacing == 0:
            self._points.append(self._last)
            if len(self._points) > _MAX_POINTS:
                self._spacing *= 2
                self._points = self._points[1::2]
        if self._is_warm:
            self._steps += 1
            self._wait_s += wait_s
        elif step >= self._scenario.warm_up:
            self._is_warm, self._first = True, self._last

    async def result(self, buffer: Any, fleet: Fleet, generating: Generating) -> Result:
        """Sum up."""
        books = (await buffer.ledger())[self._scenario.task]
        wasted = {name: books[name].tokens - books[name].trained_tokens for name in LEAVING}
        wasted |= self.lost
        held = sum(books[name].tokens - books[name].trained_tokens for name in ("resident", "out", "leased"))
        first, last = self._first, self._last
        seconds = last.time_s - first.time_s
        engine_seconds = seconds * len(fleet.engines)
        return Result(
            step_s=seconds / self._steps,
            wait_s=self._wait_s / self._steps,
            generated_tokens_per_s=(last.generated - first.generated) / seconds,
            trained_tokens_per_s=(last.trained - first.trained) / seconds,
            trainer_idle=self._wait_s / seconds,
            engine_idle=1 - (last.busy_s - first.busy_s) / engine_seconds,
            engine_load=(last.full_s - first.full_s) / engine_seconds,
            staleness=dict(sorted(self._staleness.items())),
            wasted={name: tokens for name, tokens in sorted(wasted.items()) if tokens},
            recomputed=self.recomputed,
            long_generated=self._put[1] / self._put[0] if self._put[0] else 0.0,
            long_trained=self._trained[1] / self._trained[0] if self._trained[0] else 0.0,
            generated=self.generated + generating.running,
            trained=_trained(books),
            in_flight=sum(generating) + held,
            late=self._late,
            points=self._points,
        )


_START: Final = Point(0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0)


def _trained(books: Mapping[str, Any]) -> int:
    """Return the tokens that were trained at least once."""
    return sum(amount.trained_tokens for name, amount in books.items() if name != "put")


def _late_tokens(group: RolloutGroup, step: int, bound: int) -> int:
    """Return the tokens of a group whose staleness is above a bound; one version stands for each run."""
    late = 0
    for versions, extra in zip(*group.values(("response_model_steps", "extra_fields")), strict=True):
        runs = extra.get("runs", [extra["length"]])
        late += sum(n for version, n in zip(versions, runs, strict=True) if step - 1 - version > bound)
    return late


def _long_length(scenario: Scenario) -> int:
    """Return the length that the longest member of a group reaches in a tenth of all groups."""
    rng = random.Random(scenario.seed)
    longest = sorted(
        max(scenario.lengths.draw(rng) for _ in range(scenario.group.members)) for _ in range(_LONG_SAMPLES)
    )
    return longest[_LONG_SAMPLES * 9 // 10]
