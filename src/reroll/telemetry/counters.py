"""Count groups that are put, groups that are trained, and calls that wait.

Every batch passes here on its way to the trainer, so counters are integers in dicts; `stats` derives the rest. Nothing here
reads a clock: callers pass the time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from reroll.rollout import GroupSummary, Status
from reroll.rollout.summary import Measure

Histogram = dict[int, int]
"""Number of occurrences by value."""

SUPERSEDED: Final = "superseded"
"""The key of refused puts in `TaskCounters.puts`, beside the statuses."""

FINISHED: Final = (Status.COMPLETED, Status.FILTERED)
"""Statuses at put whose responses are whole; only these are measured as produced."""


class TrainedGroup(Protocol):
    """The part of a stored group that is counted when it is trained."""

    @property
    def measure(self) -> Measure:
        """Lengths and rewards of its responses."""

    @property
    def version_tokens(self) -> dict[int, int]:
        """Number of tokens by the version that generated them."""


@dataclass(slots=True)
class ResponseCounters:
    """Number, lengths and rewards of responses."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    bits: list[int] = field(default_factory=lambda: [0] * 64)
    """Rollouts by the bit length of their token count: index 0 counts empty ones, b counts 2^(b-1) to 2^b - 1 tokens."""
    scored: int = 0
    """Rollouts with a reward."""
    score: float = 0.0
    """Sum of the rewards."""
    solved: int = 0
    """Rollouts with a reward above 0."""
    compared: int = 0
    """Groups with at least two rewards."""
    uniform: int = 0
    """Groups with at least two rewards, all equal."""

    def add(self, measures: Sequence[Measure]) -> None:
        """Count groups; column by column, since a batch has many."""
        if not measures:
            return
        tokens, bits, scored, score, solved, compared, uniform = zip(*measures, strict=True)
        joined = b"".join(bits)
        self.groups += len(measures)
        self.rollouts += len(joined)
        self.tokens += sum(tokens)
        if len(measures) < 2:
            for length in joined:
                self.bits[length] += 1
        else:
            for length, count in enumerate(np.bincount(np.frombuffer(joined, np.uint8)).tolist()):
                self.bits[length] += count
        self.scored += sum(scored)
        self.score += sum(score)
        self.solved += sum(solved)
        self.compared += sum(compared)
        self.uniform += sum(uniform)

    def subtract(self, other: "ResponseCounters") -> None:
        """Undo `add`."""
        for name in (one.name for one in fields(self) if one.name != "bits"):
            setattr(self, name, getattr(self, name) - getattr(other, name))
        self.bits = [mine - theirs for mine, theirs in zip(self.bits, other.bits, strict=True)]


@dataclass(slots=True)
class StalenessCounters:
    """Staleness of trained groups and tokens."""

    oldest: Histogram = field(default_factory=dict)
    """Groups by the staleness of their oldest token; groups without versions by the staleness declared at put."""
    newest: Histogram = field(default_factory=dict)
    """Groups by the staleness of their newest token."""
    tokens: Histogram = field(default_factory=dict)
    """Tokens by their own staleness."""

    def add(self, groups: Sequence[dict[int, int]], step: int) -> None:
        """Count groups that are trained at `step`; each group is its number of tokens by version.

        Counts by version first: a batch has few versions, and most groups have one.
        """
        versions = list(chain.from_iterable(groups))
        tokens: Histogram = {}
        for version, count in zip(versions, chain.from_iterable(map(dict.values, groups)), strict=True):
            tokens[version] = tokens.get(version, 0) + count
        one_each = len(versions) == len(groups)
        oldest = Counter(versions if one_each else map(min, groups))
        newest = oldest if one_each else Counter(map(max, groups))
        for mine, found in ((self.oldest, oldest), (self.newest, newest), (self.tokens, tokens)):
            for version, count in found.items():
                _count(mine, step - version - 1, count)


@dataclass(slots=True)
class WaitStats:
    """Finished waits of one verb."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Calls of one verb that wait now."""

    count: int = 0
    longest_s: float = 0.0
    busy_s: float = 0.0
    """Seconds, since the buffer was made or resumed, in which at least one call waited."""


@dataclass(slots=True)
class TaskCounters:
    """Counters of one task."""

    puts: dict[str, int] = field(default_factory=dict)
    """Puts by resulting status; a group that returns from a producer counts again."""
    produced: ResponseCounters = field(default_factory=ResponseCounters)
    """Responses of finished groups at put. If members expire one by one, the remaining members are put again."""
    trained: ResponseCounters = field(default_factory=ResponseCounters)
    """Responses delivered to a trainer; each use of a group counts."""
    staleness: StalenessCounters = field(default_factory=StalenessCounters)
    uses: Histogram = field(default_factory=dict)
    """Trained groups by the number of the use, from 1."""
    waits: dict[str, WaitStats] = field(default_factory=dict)
    """Finished waits by verb."""
    stale: int = 0
    """COMPLETED groups that exceeded `max_staleness`, at put or later."""
    retaken: int = 0
    """EXPIRED groups that producers took to regenerate them."""


@dataclass(slots=True)
class _WaitingCalls:
    """Calls of one verb that wait for one task."""

    calls: int = 0
    since: float = 0.0
    """Start of the current busy period."""
    busy_s: float = 0.0
    """Length of all earlier busy periods."""


class FlowCounters:
    """Counters of all tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskCounters] = {}
        self.started: float | None = None
        """Monotonic time at which the buffer was made or resumed; None disables rates."""
        self.earlier: dict[str, TaskCounters] = {}
        """Counters at that time."""
        self._calls: dict[object, tuple[str, Sequence[str], float]] = {}
        self._waiting: dict[tuple[str, str], _WaitingCalls] = {}

    def count_put(self, task_name: str, summary: GroupSummary, status: Status) -> None:
        """Count a put that succeeded with a resulting status."""
        task = self._task(task_name)
        task.puts[status.value] = task.puts.get(status.value, 0) + 1
        if summary.status in FINISHED:
            task.produced.add((summary.measure,))

    def count_superseded(self, task_name: str) -> None:
        """Count a put that was refused because another producer had put the group."""
        task = self._task(task_name)
        task.puts[SUPERSEDED] = task.puts.get(SUPERSEDED, 0) + 1

    def count_stale(self, task_name: str, groups: int) -> None:
        """Count COMPLETED groups that exceeded `max_staleness`."""
        self._task(task_name).stale += groups

    def count_retaken(self, task_name: str, groups: int) -> None:
        """Count EXPIRED groups that a producer takes; a negative number undoes the count."""
        self._task(task_name).retaken += groups

    def count_trained(
        self,
        task_name: str,
        groups: Sequence[TrainedGroup],
        step: int | None,
        uses: Iterable[int],
        declared: Sequence[int],
    ) -> None:
        """Count COMPLETED groups that a trainer gets in one batch.

        Args:
            task_name: their task.
            groups: the groups.
            step: the training step.
            uses: for each group, the number of this use, from 1.
            declared: for each group, the staleness declared at put; it counts where the group has no versions.

        """
        task = self._task(task_name)
        task.trained.add([group.measure for group in groups])
        for use, count in Counter(uses).items():
            _count(task.uses, use, count)
        versioned = [] if step is None else [g.version_tokens for g in groups if g.version_tokens]
        if step is not None and versioned:
            task.staleness.add(versioned, step)
        if len(versioned) < len(groups):
            for group, staleness in zip(groups, declared, strict=True):
                if step is None or not group.version_tokens:
                    _count(task.staleness.oldest, staleness)

    def uncount_trained(
        self,
        task_name: str,
        groups: Sequence[TrainedGroup],
        step: int | None,
        uses: Iterable[int],
        declared: Sequence[int],
    ) -> None:
        """Undo `count_trained` for groups that did not reach the trainer."""
        undone = FlowCounters()
        undone.count_trained(task_name, groups, step, uses, declared)
        task, wrong = self._task(task_name), undone.tasks[task_name]
        task.trained.subtract(wrong.trained)
        for mine, theirs in (
            (task.uses, wrong.uses),
            (task.staleness.oldest, wrong.staleness.oldest),
            (task.staleness.newest, wrong.staleness.newest),
            (task.staleness.tokens, wrong.staleness.tokens),
        ):
            for value, times in theirs.items():
                _count(mine, value, -times)
                if not mine[value]:
                    del mine[value]

    def count_wait(self, verb: str, task_name: str, seconds: float) -> None:
        """Count a finished wait."""
        wait = self._task(task_name).waits.setdefault(verb, WaitStats())
        wait.count += 1
        wait.total_s += seconds
        wait.max_s = max(wait.max_s, seconds)

    def begin_wait(self, verb: str, task_names: Sequence[str], now: float) -> object:
        """Register a call that may wait, and return a token for `end_wait`."""
        call = object()
        self._calls[call] = verb, task_names, now
        for task in task_names:
            waiting = self._waiting.get((verb, task))
            if waiting is None:
                waiting = self._waiting[verb, task] = _WaitingCalls()
            if not waiting.calls:
                waiting.since = now
            waiting.calls += 1
        return call

    def end_wait(self, call: object, now: float) -> None:
        """Remove a call that no longer waits."""
        verb, task_names, _ = self._calls.pop(call)
        for task in task_names:
            waiting = self._waiting[verb, task]
            waiting.calls -= 1
            if not waiting.calls:
                waiting.busy_s += now - waiting.since

    def waiting(self, task_name: str, now: float) -> dict[str, Waiting]:
        """Return the calls that wait for a task, by verb."""
        longest: dict[str, float] = {}
        for verb, names, since in self._calls.values():
            if task_name in names:
                longest[verb] = max(longest.get(verb, 0.0), now - since)
        return {
            verb: Waiting(
                count=waiting.calls,
                longest_s=longest.get(verb, 0.0),
                busy_s=waiting.busy_s + (now - waiting.since if waiting.calls else 0.0),
            )
            for (verb, task), waiting in self._waiting.items()
            if task == task_name
        }

    def state(self) -> dict[str, Any]:
        """Return all counters as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self.tasks, str_keys=True)
        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace all counters by those of `state`; rates count from here."""
        self.tasks = msgspec.convert(state, dict[str, TaskCounters], str_keys=True)
        self.earlier = deepcopy(self.tasks)
        for waiting in self._waiting.values():
            waiting.busy_s = 0.0

    def _task(self, name: str) -> TaskCounters:
        task = self.tasks.get(name)
        if task is None:
            task = self.tasks[name] = TaskCounters()
        return task


def _count(histogram: Histogram, value: int, times: int = 1) -> None:
    histogram[value] = histogram.get(value, 0) + times
