"""stats() and metrics(): what a buffer tells about itself.

METRICS names every metric with its meaning: `gen/` is what was put, `train/` what was handed to a trainer, `buffer/` what is
there; the three are never mixed. Each exists over all tasks (`gen/groups`) and for each task (`gen/math/groups`); what is not
known yet is left out. Nothing here changes anything or reads a clock. Costs: O(resident groups), vectorised.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.buffer.flow import Flow, Histogram, Responses, TaskFlow, Wait
from reroll.buffer.groups import Groups
from reroll.engine.columns import NO_VERSION, RESIDENT, IntArray
from reroll.engine.engine import Engine
from reroll.engine.ledger import PUT, Amount
from reroll.engine.task import COMPLETED, STATUSES, Task
from reroll.rollout import Status

LOSSES: Final = ("expired", "evicted", "filtered", "failed", "deleted", "lost")
"""Buckets of the ledger: tokens in them that were never trained are lost."""
VERBS: Final = ("put", "take", "sample")
"""What may have to wait."""

_ENOUGH: Final = 20  # puts or rollouts; fewer say nothing about a share
_CHUNK: Final = 8192  # rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How often each value occurred."""

    count: int = 0
    total: float = 0
    histogram: Histogram = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The exact mean, None of nothing."""
        return _share(self.total, self.count)

    @property
    def max(self) -> int | None:
        """The largest key of the histogram, None of nothing."""
        return max(self.histogram, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Distribution):
    """How often lengths occurred, by powers of two: key 4 of the histogram counts 4 to 7; keys 0 and 1 just those."""

    @property
    def p50(self) -> float | None:
        """The median, estimated inside its power of two; None of nothing."""
        return self._quantile(0.5)

    @property
    def p90(self) -> float | None:
        """The length that nine of ten do not exceed, estimated like the median."""
        return self._quantile(0.9)

    def _quantile(self, share: float) -> float | None:
        rank = share * self.count
        for length, count in sorted(self.histogram.items()):
            if rank <= count:
                return length + rank / count * max(length - 1, 0)
            rank -= count
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStats:
    """Responses that passed since the start."""

    groups: int
    rollouts: int
    lengths: Lengths
    """Response tokens of each rollout."""
    reward_mean: float | None
    solved_share: float | None
    """Of the rollouts with a reward: those with one above 0."""
    zero_variance_share: float | None
    """Of the groups with at least two rewards: those in which all are the same."""
    groups_per_s: float | None
    """On average since the buffer was made or resumed."""
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """One task, or all of them together."""

    step: int | None
    """The training step, the largest that was told."""
    statuses: dict[str, int]
    """Resident groups."""
    out: int
    leased: int
    num_tokens: int
    """Resident, prompts included."""
    num_bytes: int
    """Of resident groups but FAILED and FILTERED ones."""
    staleness: Distribution
    """Resident COMPLETED groups, by the staleness of their oldest token."""
    age: Distribution
    """The same by age in versions: the staleness of their newest token. Groups without versions have none."""
    uses: Distribution
    """The same by how often they were sampled."""
    lengths: Lengths
    """The same by tokens a rollout: the mean of each group, prompts included."""
    put: Amount
    """As in the ledger: a group that comes back counts once, and adds the tokens that are new."""
    puts: dict[str, int]
    """Puts by the status that each came to; a group that comes back counts again."""
    produced: ResponseStats
    """Puts of finished groups: COMPLETED or FILTERED, also when they expired on arrival."""
    trained: ResponseStats
    """What was handed to a trainer; each use counts."""
    trained_staleness: dict[str, Distribution]
    """`oldest` and `newest`: groups by the staleness of that token; `tokens`: tokens by their own."""
    trained_uses: Distribution
    """Which use of its group each was, from 1."""
    lost_tokens: dict[str, int]
    """Tokens that left and were never trained, by reason."""
    waits: dict[str, Wait]
    """By verb; a call that waited for several tasks counts for each."""

    @property
    def num_groups(self) -> int:
        """Resident groups of any status."""
        return sum(self.statuses.values())

    @property
    def num_puts(self) -> int:
        """All puts."""
        return sum(self.puts.values())

    @property
    def lost_share(self) -> float | None:
        """Lost tokens of all that were put, None before the first."""
        return _share(sum(self.lost_tokens.values()), self.put.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a buffer tells about itself."""

    tasks: dict[str, TaskStats]
    total: TaskStats
    """All tasks together."""
    num_bytes: int
    out: int
    """Groups that producers took to roll them again."""
    warnings: list[str]
    """What looks wrong, and what to change."""


class Metric(NamedTuple):
    """One number of `metrics()`."""

    path: str
    """Where it is in TaskStats."""
    meaning: str

    def value(self, stats: TaskStats) -> float | None:
        """Return the number, None if it is not known yet."""
        found: Any = stats
        for key in self.path.split("."):
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        number: float | None = found
        return number


def _response_metrics(prefix: str, side: str, what: str) -> dict[str, Metric]:
    return {
        f"{prefix}/rollouts": Metric(f"{side}.rollouts", f"rollouts {what}"),
        f"{prefix}/response_tokens": Metric(f"{side}.lengths.total", f"response tokens {what}"),
        f"{prefix}/length_mean": Metric(f"{side}.lengths.mean", f"response tokens a rollout {what}, mean"),
        f"{prefix}/length_p50": Metric(f"{side}.lengths.p50", "the same, median, estimated"),
        f"{prefix}/length_p90": Metric(f"{side}.lengths.p90", "the same, 90th percentile, estimated"),
        f"{prefix}/reward_mean": Metric(f"{side}.reward_mean", f"mean reward of rollouts {what}"),
        f"{prefix}/solved_share": Metric(f"{side}.solved_share", "share of these rewards above 0"),
        f"{prefix}/zero_variance_share": Metric(
            f"{side}.zero_variance_share", f"share of groups {what} whose rewards are all the same"
        ),
        f"{prefix}/groups_per_s": Metric(f"{side}.groups_per_s", f"groups {what} a second, since the start"),
        f"{prefix}/response_tokens_per_s": Metric(
            f"{side}.tokens_per_s", f"response tokens {what} a second, since the start"
        ),
    }


METRICS: Final[dict[str, Metric]] = {
    "gen/groups": Metric("put.groups", "groups put; one that comes back counts once"),
    "gen/tokens": Metric("put.tokens", "tokens put, prompts included"),
    "gen/puts": Metric("num_puts", "puts; a group that comes back counts again"),
    **{f"gen/puts/{s.value}": Metric(f"puts.{s.value}", f"puts that came to {s.name}") for s in STATUSES},
    "gen/finished": Metric("produced.groups", "puts of groups with whole responses"),
    **_response_metrics("gen", "produced", "put with whole responses"),
    "train/groups": Metric("trained.groups", "groups handed to a trainer; each use counts"),
    "train/tokens": Metric("put.trained_tokens", "tokens trained at least once, prompts included"),
    **_response_metrics("train", "trained", "handed to a trainer"),
    **{
        f"train/staleness_{key}_{name}": Metric(
            f"trained_staleness.{key}.{name}", f"{name} staleness of {what}"
        )
        for key, what in (
            ("oldest", "groups handed to a trainer, by their oldest token"),
            ("newest", "groups handed to a trainer, by their newest token"),
            ("tokens", "tokens handed to a trainer, each by its own version"),
        )
        for name in ("mean", "max")
    },
    "train/uses_mean": Metric("trained_uses.mean", "which use of its group each was, mean"),
    "buffer/groups": Metric("num_groups", "resident groups"),
    **{
        f"buffer/groups/{s.value}": Metric(f"statuses.{s.value}", f"resident {s.name} groups")
        for s in STATUSES
    },
    "buffer/out": Metric("out", "groups that producers took to roll them again"),
    "buffer/leased": Metric("leased", "groups handed to a trainer that has not acknowledged them"),
    "buffer/tokens": Metric("num_tokens", "resident tokens, prompts included"),
    "buffer/bytes": Metric("num_bytes", "bytes of resident groups but FAILED and FILTERED ones"),
    "buffer/staleness_mean": Metric("staleness.mean", "mean staleness of resident COMPLETED groups"),
    "buffer/staleness_max": Metric("staleness.max", "the same, largest"),
    "buffer/age_mean": Metric("age.mean", "mean age of them in versions, by their newest token"),
    "buffer/age_max": Metric("age.max", "the same, largest"),
    "buffer/uses_mean": Metric("uses.mean", "how often each of them was sampled, mean"),
    **{f"buffer/lost_tokens/{x}": Metric(f"lost_tokens.{x}", f"never trained tokens: {x}") for x in LOSSES},
    "buffer/lost_share": Metric("lost_share", "all of these, as a share of the tokens put"),
    **{f"buffer/waits/{v}": Metric(f"waits.{v}.count", f"calls of {v} that had to wait") for v in VERBS},
    **{f"buffer/wait_s/{v}": Metric(f"waits.{v}.total_s", f"seconds that {v} waited") for v in VERBS},
    **{f"buffer/wait_max_s/{v}": Metric(f"waits.{v}.max_s", f"longest wait of {v}") for v in VERBS},
}


def metrics_of(groups: Groups, now: float) -> dict[str, float]:
    """Return every metric that is known at a time, in monotonic seconds."""
    stats = stats_of(groups, now)
    numbers: dict[str, float] = {}
    for name, metric in METRICS.items():
        prefix, _, rest = name.partition("/")
        values = {name: metric.value(stats.total)}
        values |= {f"{prefix}/{task}/{rest}": metric.value(part) for task, part in stats.tasks.items()}
        numbers |= {key: value for key, value in values.items() if value is not None}
    return numbers


def stats_of(groups: Groups, now: float) -> Stats:
    """Return what a buffer tells about itself at a time, in monotonic seconds."""
    tasks, ready = groups.engine.tasks, _ready(groups.engine)
    parts = {name: _describe([task], [ready[name]], groups.flow, now) for name, task in tasks.items()}
    total = _describe(list(tasks.values()), list(ready.values()), groups.flow, now)
    warnings = [warning for name, part in parts.items() for warning in _warnings(name, part)]
    return Stats(tasks=parts, total=total, num_bytes=total.num_bytes, out=total.out, warnings=warnings)


def _describe(tasks: Sequence[Task], ready: Sequence["_Ready"], flow: Flow, now: float) -> TaskStats:
    """Return the stats of some tasks together."""
    flows = [flow.tasks.get(task.name, TaskFlow()) for task in tasks]
    amounts = [task.ledger.amounts() for task in tasks]
    steps = [task.step for task in tasks if task.step is not None]
    seconds = None if flow.started is None else now - flow.started
    earlier = [flow.earlier[task.name] for task in tasks if task.name in flow.earlier]
    return TaskStats(
        step=max(steps, default=None),
        statuses={s.value: sum(len(t.pools[code]) for t in tasks) for code, s in enumerate(STATUSES)},
        out=sum(amount["out"].groups for amount in amounts),
        leased=sum(amount["leased"].groups for amount in amounts),
        num_tokens=sum(amount["resident"].tokens for amount in amounts),
        num_bytes=sum(task.num_bytes for task in tasks),
        staleness=_joined(part.staleness for part in ready),
        age=_joined(part.age for part in ready),
        uses=_joined(part.uses for part in ready),
        lengths=_lengths([part.bits for part in ready], sum(part.tokens for part in ready)),
        put=_sum(amount[PUT] for amount in amounts),
        puts={s.value: sum(f.puts.get(s.value, 0) for f in flows) for s in STATUSES},
        produced=_responses([f.produced for f in flows], [e.produced for e in earlier], seconds),
        trained=_responses([f.trained for f in flows], [e.trained for e in earlier], seconds),
        trained_staleness={
            "oldest": _joined(f.staleness.oldest for f in flows),
            "newest": _joined(f.staleness.newest for f in flows),
            "tokens": _joined(f.staleness.tokens for f in flows),
        },
        trained_uses=_joined(f.uses for f in flows),
        lost_tokens={loss: _untrained(_sum(amount[loss] for amount in amounts)) for loss in LOSSES},
        waits={verb: _wait([f.waits[verb] for f in flows if verb in f.waits]) for verb in VERBS},
    )


def _warnings(name: str, stats: TaskStats) -> Iterator[str]:
    puts, trained, produced = sum(stats.puts.values()), stats.trained, stats.produced
    if puts < _ENOUGH:
        return
    failed = stats.puts[Status.FAILED.value] / puts
    if failed > 0.1:
        yield (
            f"task {name!r}: {failed:.0%} of its puts failed; read the error_msg of its FAILED groups, and keep the rest "
            f"of such groups with on_failed='drop_member'"
        )
    expired = _share(stats.lost_tokens["expired"], stats.put.tokens)
    if expired is not None and expired > 0.3:
        yield (
            f"task {name!r}: {expired:.0%} of its tokens expired untrained; raise its stale threshold, generate less "
            f"ahead of the trainer, or take the stalest first"
        )
    mean, usual = trained.lengths.mean, produced.lengths.mean
    if trained.rollouts >= _ENOUGH and mean is not None and usual is not None and mean < usual / 2:
        yield (
            f"task {name!r}: trained responses have {mean:.0f} tokens on average, produced ones {usual:.0f}: long ones "
            f"do not reach the trainer; raise its stale threshold, or let aborted groups be continued"
        )


def _responses(
    parts: Sequence[Responses], earlier: Sequence[Responses], seconds: float | None
) -> ResponseStats:
    def total(name: str, of: Iterable[Responses] = parts) -> Any:
        return sum(getattr(part, name) for part in of)

    def rate(name: str) -> float | None:
        return _share(total(name) - total(name, earlier), seconds) if seconds else None

    return ResponseStats(
        groups=total("groups"),
        rollouts=total("rollouts"),
        lengths=_lengths([part.bits for part in parts], total("tokens")),
        reward_mean=_share(total("score"), total("scored")),
        solved_share=_share(total("solved"), total("scored")),
        zero_variance_share=_share(total("uniform"), total("compared")),
        groups_per_s=rate("groups"),
        tokens_per_s=rate("tokens"),
    )


@dataclass(slots=True)
class _Ready:
    """The resident COMPLETED groups of a task."""

    staleness: Histogram = field(default_factory=dict)
    age: Histogram = field(default_factory=dict)
    uses: Histogram = field(default_factory=dict)
    bits: list[int] = field(default_factory=lambda: [0] * 64)  # of tokens a rollout, as in Responses
    tokens: float = 0.0

    def add(self, engine: Engine, task: Task, slots: IntArray) -> None:
        columns = engine.columns
        newest, lengths = columns.newest[slots], columns.num_tokens[slots] / columns.num_rollouts[slots]
        _count(self.staleness, engine.staleness(slots))
        _count(self.uses, columns.uses[slots])
        if task.step is not None:
            _count(self.age, task.step - 1 - newest[newest != NO_VERSION])
        for bits, count in enumerate(np.bincount(np.frexp(np.floor(lengths))[1]).tolist()):
            self.bits[bits] += count  # the exponent of a whole number is its bits
        self.tokens += float(lengths.sum())


def _ready(engine: Engine) -> dict[str, _Ready]:
    """Return what is ready, by task. In chunks: arrays that fit a cache are several times quicker."""
    columns, found = engine.columns, {name: _Ready() for name in engine.tasks}
    for start in range(0, len(columns.uid), _CHUNK):
        slots = start + np.flatnonzero(columns.uid[start : start + _CHUNK])
        slots = slots[(columns.status[slots] == COMPLETED) & (columns.place[slots] == RESIDENT)]
        codes = columns.task[slots]
        for name, task in engine.tasks.items():
            mine = slots[codes == task.code]
            if len(mine):
                found[name].add(engine, task, mine)
    return found


def _count(histogram: Histogram, values: npt.NDArray[np.integer[Any]]) -> None:
    if not len(values):
        return
    least = int(values.min())
    if int(values.max()) - least < _CHUNK:  # nearly always; counting is quicker than sorting
        counts = np.bincount(values - least)
        found = np.flatnonzero(counts)
        keys, counts = found + least, counts[found]
    else:
        keys, counts = np.unique(values, return_counts=True)
    for value, count in zip(keys.tolist(), counts.tolist(), strict=True):
        histogram[value] = histogram.get(value, 0) + count


def _lengths(bits: Sequence[Sequence[int]], total: float) -> Lengths:
    """Return lengths from counts by number of bits, of several parts."""
    counts = [sum(part) for part in zip(*bits, strict=True)]
    histogram = {1 << b >> 1: count for b, count in enumerate(counts) if count}
    return Lengths(count=sum(counts), total=total, histogram=histogram)


def _joined(histograms: Iterable[Histogram]) -> Distribution:
    joined: Histogram = {}
    for histogram in histograms:
        for value, count in histogram.items():
            joined[value] = joined.get(value, 0) + count
    total = sum(value * count for value, count in joined.items())
    return Distribution(count=sum(joined.values()), total=total, histogram=dict(sorted(joined.items())))


def _wait(waits: Sequence[Wait]) -> Wait:
    return Wait(
        count=sum(wait.count for wait in waits),
        total_s=sum(wait.total_s for wait in waits),
        max_s=max((wait.max_s for wait in waits), default=0.0),
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.plus, amounts, Amount())


def _untrained(amount: Amount) -> int:
    return amount.tokens - amount.trained_tokens


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
