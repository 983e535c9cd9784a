"""What was put and what was trained, counted as it passes; the two are never mixed.

Every batch passes here on its way to the trainer, so it is integers in dicts, and `report` makes sense of them. Nothing
here reads a clock: the start and all waits are told.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from reroll.buffer.group import Group
from reroll.rollout import GroupSummary, Status
from reroll.rollout.foreign import read_seq_staleness
from reroll.rollout.measure import Measure

Histogram = dict[int, int]
"""How often each value occurred."""

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


@dataclass(slots=True)
class Staleness:
    """Staleness of what was trained, by groups and by tokens."""

    oldest: Histogram = field(default_factory=dict)
    """Groups by the staleness of their oldest token; without versions, by what their rollouts state."""
    newest: Histogram = field(default_factory=dict)
    tokens: Histogram = field(default_factory=dict)
    """Tokens by their own staleness."""

    def add(self, version_tokens: Mapping[int, int], step: int) -> None:
        tokens = self.tokens
        for version, count in version_tokens.items():
            stale = step - version - 1
            tokens[stale] = tokens.get(stale, 0) + count
        several = len(version_tokens) > 1
        _count(self.oldest, step - min(version_tokens) - 1 if several else stale)
        _count(self.newest, step - max(version_tokens) - 1 if several else stale)


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


class Flow:
    """What passed of all tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskFlow] = {}
        self.started: float | None = None
        """When the buffer was made or resumed, in monotonic seconds; rates need it."""
        self.earlier: dict[str, TaskFlow] = {}
        """What had passed by then."""

    def put(self, task_name: str, summary: GroupSummary, status: Status) -> None:
        """Count a put that succeeded; `status` is what the group came to."""
        flow = self._task(task_name)
        flow.puts[status.value] = flow.puts.get(status.value, 0) + 1
        if summary.status in FINISHED:
            flow.produced.add(summary.measure)

    def trained(self, task_name: str, group: Group, step: int | None, use: int = 1) -> None:
        """Count a COMPLETED group that is handed to a trainer for a training step; `use` counts from 1."""
        flow = self._task(task_name)
        flow.trained.add(group.measure)
        _count(flow.uses, use)
        if group.version_tokens and step is not None:
            flow.staleness.add(group.version_tokens, step)
        else:
            _count(flow.staleness.oldest, max(map(read_seq_staleness, group.items)))

    def waited(self, verb: str, task_name: str, seconds: float) -> None:
        """Count that a verb had to wait."""
        wait = self._task(task_name).waits.setdefault(verb, Wait())
        wait.count += 1
        wait.total_s += seconds
        wait.max_s = max(wait.max_s, seconds)

    def state(self) -> dict[str, Any]:
        """Return all counts as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self.tasks, str_keys=True)
        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what `state` told; rates count from here on."""
        self.tasks = msgspec.convert(state, dict[str, TaskFlow], str_keys=True)
        self.earlier = deepcopy(self.tasks)

    def _task(self, name: str) -> TaskFlow:
        flow = self.tasks.get(name)
        if flow is None:
            flow = self.tasks[name] = TaskFlow()
        return flow


def _count(histogram: Histogram, value: int) -> None:
    histogram[value] = histogram.get(value, 0) + 1
