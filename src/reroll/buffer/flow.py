"""What was put and what was trained, counted as it passes; the two are never mixed.

Every batch passes here on its way to the trainer, so it is integers in dicts, and `report` makes sense of them. Nothing
here reads a clock: the start and all waits are told.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from reroll.buffer.group import Group
from reroll.rollout import GroupSummary, Status
from reroll.rollout.foreign import read_seq_staleness
from reroll.rollout.measure import Measure

K = TypeVar("K")
Histogram = dict[int, int]
"""How often each value occurred."""

SUPERSEDED: Final = "superseded"
"""What a put came to that was refused, beside the statuses."""

FINISHED: Final = (Status.COMPLETED, Status.FILTERED)
"""Groups put as these have whole responses; others would make what was produced look shorter than it is."""


@dataclass(slots=True)
class Responses:
    """The responses of groups that passed: how many, how long, how good."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    bits: list[int] = field(default_factory=lambda: [0] * 64)
    """Rollouts by the bits of their length: at 0 those without tokens, at b those of 2^(b-1) to 2^b - 1."""
    scored: int = 0
    """Rollouts that had a reward as they passed."""
    score: float = 0.0
    solved: int = 0
    """Rollouts with a reward above 0."""
    compared: int = 0
    """Groups in which at least two had a reward."""
    uniform: int = 0
    """Those of them in which all rewards were the same."""

    def add(self, measure: Measure) -> None:
        self.groups += 1
        self.rollouts += len(measure.bits)
        self.tokens += measure.tokens
        for bits in measure.bits:
            self.bits[bits] += 1
        self.scored += measure.scored
        self.score += measure.score
        self.solved += measure.solved
        self.compared += measure.is_compared
        self.uniform += measure.is_uniform

    def subtract(self, other: "Responses") -> None:
        """Take back what was added."""
        for name in ("groups", "rollouts", "tokens", "scored", "score", "solved", "compared", "uniform"):
            setattr(self, name, getattr(self, name) - getattr(other, name))
        self.bits = [mine - theirs for mine, theirs in zip(self.bits, other.bits, strict=True)]

    def add_all(self, measures: Sequence[Measure]) -> None:
        """Do what `add` does to each, column by column: a batch is many groups."""
        if len(measures) < 2:
            for measure in measures:
                self.add(measure)
            return
        tokens, bits, scored, score, solved, compared, uniform = zip(*measures, strict=True)
        joined = b"".join(bits)
        self.groups += len(measures)
        self.rollouts += len(joined)
        self.tokens += sum(tokens)
        for length, count in enumerate(np.bincount(np.frombuffer(joined, np.uint8)).tolist()):
            self.bits[length] += count
        self.scored += sum(scored)
        self.score += sum(score)
        self.solved += sum(solved)
        self.compared += sum(compared)
        self.uniform += sum(uniform)


@dataclass(slots=True)
class Staleness:
    """Staleness of what was trained, by groups and by tokens."""

    oldest: Histogram = field(default_factory=dict)
    """Groups by the staleness of their oldest token; without versions, by what their rollouts state."""
    newest: Histogram = field(default_factory=dict)
    tokens: Histogram = field(default_factory=dict)
    """Tokens by their own staleness."""

    def add_all(self, groups: Sequence[dict[int, int]], step: int) -> None:
        """Count groups that are trained at a step; of each is told how many tokens each version made.

        Counted by version first, for a batch has few of them, and mostly one a group.
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
class Wait:
    """How long a verb had to wait."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0


@dataclass(slots=True)
class TaskFlow:
    """What passed of one task."""

    puts: dict[str, int] = field(default_factory=dict)
    """By the status that each came to; a group that comes back is put once more."""
    produced: Responses = field(default_factory=Responses)
    """Of the puts of finished groups. Where members expire one by one, those that stay are put again."""
    trained: Responses = field(default_factory=Responses)
    """Each use of a group counts."""
    staleness: Staleness = field(default_factory=Staleness)
    uses: Histogram = field(default_factory=dict)
    """What was trained, by which use of the group it was."""
    waits: dict[str, Wait] = field(default_factory=dict)
    """By verb."""
    stale: int = 0
    """COMPLETED groups that passed `max_staleness`, at put or later."""
    retaken: int = 0
    """EXPIRED groups that producers took, to roll them again."""

    def since(self, start: "TaskFlow") -> "TaskFlow":
        """Return what passed after `start`, an earlier copy of this. Longest waits are those of the whole time."""
        produced, trained = deepcopy(self.produced), deepcopy(self.trained)
        produced.subtract(start.produced)
        trained.subtract(start.trained)
        return TaskFlow(
            puts=_less(self.puts, start.puts),
            produced=produced,
            trained=trained,
            staleness=Staleness(
                _less(self.staleness.oldest, start.staleness.oldest),
                _less(self.staleness.newest, start.staleness.newest),
                _less(self.staleness.tokens, start.staleness.tokens),
            ),
            uses=_less(self.uses, start.uses),
            waits={
                verb: Wait(wait.count - before.count, wait.total_s - before.total_s, wait.max_s)
                for verb, wait in self.waits.items()
                for before in [start.waits.get(verb, Wait())]
            },
            stale=self.stale - start.stale,
            retaken=self.retaken - start.retaken,
        )


@dataclass(slots=True)
class _Line:
    """Calls of one verb that wait for one task."""

    calls: int = 0
    since: float = 0.0
    """When the first of them came."""
    busy_s: float = 0.0
    """Seconds in which somebody waited, until then."""


class Flow:
    """What passed of all tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskFlow] = {}
        self.started: float | None = None
        """When the buffer was made or resumed, in monotonic seconds; rates need it."""
        self.earlier: dict[str, TaskFlow] = {}
        """What had passed by then."""
        self._calls: dict[object, tuple[str, Sequence[str], float]] = {}
        self._lines: dict[tuple[str, str], _Line] = {}

    def put(self, task_name: str, summary: GroupSummary, status: Status) -> None:
        """Count a put that succeeded; `status` is what the group came to."""
        flow = self._task(task_name)
        flow.puts[status.value] = flow.puts.get(status.value, 0) + 1
        if summary.status in FINISHED:
            flow.produced.add(summary.measure)

    def stale(self, task_name: str, groups: int) -> None:
        """Count COMPLETED groups that passed `max_staleness`."""
        self._task(task_name).stale += groups

    def retaken(self, task_name: str, groups: int) -> None:
        """Count EXPIRED groups that a producer takes; negative: that it did not get."""
        self._task(task_name).retaken += groups

    def superseded(self, task_name: str) -> None:
        """Count a put that was refused, because another producer had put the group."""
        flow = self._task(task_name)
        flow.puts[SUPERSEDED] = flow.puts.get(SUPERSEDED, 0) + 1

    def trained(self, task_name: str, group: Group, step: int | None, use: int = 1) -> None:
        """Count a COMPLETED group that is handed to a trainer for a training step; `use` counts from 1."""
        self.trained_all(task_name, [group], step, [use], [max(map(read_seq_staleness, group.items))])

    def trained_all(
        self,
        task_name: str,
        groups: Sequence[Group],
        step: int | None,
        uses: Iterable[int],
        told: Sequence[int],
    ) -> None:
        """Count COMPLETED groups that are handed to a trainer together, which use of each it is, and its told staleness."""
        flow = self._task(task_name)
        flow.trained.add_all([group.measure for group in groups])
        for use, count in Counter(uses).items():
            _count(flow.uses, use, count)
        versioned = [] if step is None else [g.version_tokens for g in groups if g.version_tokens]
        if step is not None and versioned:
            flow.staleness.add_all(versioned, step)
        if len(versioned) < len(groups):
            for group, staleness in zip(groups, told, strict=True):
                if step is None or not group.version_tokens:
                    _count(flow.staleness.oldest, staleness)

    def untrained_all(
        self,
        task_name: str,
        groups: Sequence[Group],
        step: int | None,
        uses: Iterable[int],
        told: Sequence[int],
    ) -> None:
        """Take back what `trained_all` counted: it did not reach the trainer."""
        mistaken = Flow()
        mistaken.trained_all(task_name, groups, step, uses, told)
        flow, wrong = self._task(task_name), mistaken.tasks[task_name]
        flow.trained.subtract(wrong.trained)
        for mine, theirs in (
            (flow.uses, wrong.uses),
            (flow.staleness.oldest, wrong.staleness.oldest),
            (flow.staleness.newest, wrong.staleness.newest),
            (flow.staleness.tokens, wrong.staleness.tokens),
        ):
            for value, times in theirs.items():
                _count(mine, value, -times)
                if not mine[value]:
                    del mine[value]

    def waited(self, verb: str, task_name: str, seconds: float) -> None:
        """Count that a verb had to wait."""
        wait = self._task(task_name).waits.setdefault(verb, Wait())
        wait.count += 1
        wait.total_s += seconds
        wait.max_s = max(wait.max_s, seconds)

    def begin_wait(self, verb: str, task_names: Sequence[str], now: float) -> object:
        """Note that a call may have to wait; return what to end it by."""
        call = object()
        self._calls[call] = verb, task_names, now
        for task in task_names:
            line = self._lines.get((verb, task))
            if line is None:
                line = self._lines[verb, task] = _Line()
            if not line.calls:
                line.since = now
            line.calls += 1
        return call

    def end_wait(self, call: object, now: float) -> None:
        """Note that it waits no more."""
        verb, task_names, _ = self._calls.pop(call)
        for task in task_names:
            line = self._lines[verb, task]
            line.calls -= 1
            if not line.calls:
                line.busy_s += now - line.since

    def lines(self, task_name: str, now: float) -> dict[str, tuple[int, float, float]]:
        """Return, by verb, how many calls wait at a time, how long the longest has, and in how many seconds any did."""
        told: dict[str, tuple[int, float, float]] = {}
        for (verb, task), line in self._lines.items():
            if task == task_name:
                busy = line.busy_s + (now - line.since if line.calls else 0.0)
                told[verb] = line.calls, 0.0, busy
        for verb, names, since in self._calls.values():
            if task_name in names:
                count, longest, busy = told[verb]
                told[verb] = count, max(longest, now - since), busy
        return told

    def state(self) -> dict[str, Any]:
        """Return all counts as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self.tasks, str_keys=True)
        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what `state` told; rates count from here on."""
        self.tasks = msgspec.convert(state, dict[str, TaskFlow], str_keys=True)
        self.earlier = deepcopy(self.tasks)
        for line in self._lines.values():
            line.busy_s = 0.0

    def _task(self, name: str) -> TaskFlow:
        flow = self.tasks.get(name)
        if flow is None:
            flow = self.tasks[name] = TaskFlow()
        return flow


def _less(now: Mapping[K, int], start: Mapping[K, int]) -> dict[K, int]:
    """Return the counts that were added since `start`."""
    more = {key: count - start.get(key, 0) for key, count in now.items()}
    return {key: count for key, count in more.items() if count > 0}


def _count(histogram: Histogram, value: int, times: int = 1) -> None:
    histogram[value] = histogram.get(value, 0) + times
