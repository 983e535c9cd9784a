"""stats() and metrics(): what a buffer tells about itself.

METRICS names every metric with its meaning: `gen/` is what was put, `train/` what was handed to a trainer, `buffer/` what is
there; the three are never mixed. Each exists over all tasks (`gen/groups`) and for each task (`gen/math/groups`); what is not
known yet is left out. Nothing here changes anything or reads a clock. Costs: O(resident groups), vectorised.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from reroll.buffer.flow import Histogram, Responses, TaskFlow, Wait
from reroll.buffer.groups import Groups
from reroll.engine.columns import NO_VERSION, RESIDENT, IntArray
from reroll.engine.ledger import PUT, Amount
from reroll.engine.task import COMPLETED, STATUSES, Task
from reroll.rollout import Status

LOSSES: Final = ("expired", "evicted", "filtered", "failed", "deleted", "lost")
"""Buckets of the ledger: tokens in them that were never trained are lost."""
VERBS: Final = ("put", "take", "sample")
"""What may have to wait."""

_ENOUGH: Final = 20  # puts or rollouts; fewer say nothing about a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How often each value occurred."""

    count: int = 0
    total: float = 0
    histogram: Histogram = field(default_factory=dict)
    """Lengths by powers of two: key 4 counts 4 to 7; keys 0 and 1 just those. All else by its exact value."""

    @property
    def mean(self) -> float | None:
        """The exact mean, None of nothing."""
        return self.total / self.count if self.count else None

    @property
    def max(self) -> int | None:
        """The largest key of the histogram, None of nothing."""
        return max(self.histogram, default=None)

    def length_quantile(self, share: float) -> float | None:
        """Return the length that this share of the rollouts does not exceed, estimated inside its power of two."""
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
    lengths: Distribution
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
    lengths: Distribution
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

    meaning: str
    value: Callable[[TaskStats], float | None]


def _response_metrics(prefix: str, side: str, what: str) -> dict[str, Metric]:
    responses: Callable[[TaskStats], ResponseStats] = attrgetter(side)

    def metric(meaning: str, value: Callable[[ResponseStats], float | None]) -> Metric:
        return Metric(f"{meaning} of {what}", lambda stats: value(responses(stats)))

    return {
        f"{prefix}/rollouts": metric("rollouts", lambda r: r.rollouts),
        f"{prefix}/response_tokens": metric("response tokens", lambda r: r.lengths.total),
        f"{prefix}/length_mean": metric("mean response tokens", lambda r: r.lengths.mean),
        f"{prefix}/length_p50": metric(
            "median response tokens, estimated,", lambda r: r.lengths.length_quantile(0.5)
        ),
        f"{prefix}/length_p90": metric(
            "90th percentile of response tokens, estimated,", lambda r: r.lengths.length_quantile(0.9)
        ),
        f"{prefix}/reward_mean": metric("mean reward", lambda r: r.reward_mean),
        f"{prefix}/solved_share": metric("share of rewards above 0", lambda r: r.solved_share),
        f"{prefix}/zero_variance_share": metric(
            "share of groups with equal rewards", lambda r: r.zero_variance_share
        ),
        f"{prefix}/groups_per_s": metric("groups a second, since the start,", lambda r: r.groups_per_s),
        f"{prefix}/response_tokens_per_s": metric(
            "response tokens a second, since the start,", lambda r: r.tokens_per_s
        ),
    }


def _staleness_metrics(key: str, what: str) -> dict[str, Metric]:
    return {
        f"train/staleness_{key}_mean": Metric(
            f"mean staleness of {what}", lambda s: s.trained_staleness[key].mean
        ),
        f"train/staleness_{key}_max": Metric(
            f"largest staleness of {what}", lambda s: s.trained_staleness[key].max
        ),
    }


def _wait_metrics(verb: str) -> dict[str, Metric]:
    def value(name: str, stats: TaskStats) -> float:
        result: float = getattr(stats.waits.get(verb, Wait()), name)
        return result

    return {
        f"buffer/waits/{verb}": Metric(f"calls of {verb} that had to wait", partial(value, "count")),
        f"buffer/wait_s/{verb}": Metric(f"seconds that calls of {verb} waited", partial(value, "total_s")),
        f"buffer/wait_max_s/{verb}": Metric(f"longest wait of a {verb}, in seconds", partial(value, "max_s")),
    }


METRICS: Final[dict[str, Metric]] = {
    "gen/groups": Metric("groups put; one that comes back counts once", lambda s: s.put.groups),
    "gen/tokens": Metric("tokens put, prompts included", lambda s: s.put.tokens),
    "gen/puts": Metric("puts; a group that comes back counts again", lambda s: sum(s.puts.values())),
    **{
        f"gen/puts/{status}": Metric(
            f"puts that came to {status.name}", lambda s, key=status.value: s.puts[key]
        )
        for status in STATUSES
    },
    "gen/finished": Metric("puts of groups with whole responses", lambda s: s.produced.groups),
    **_response_metrics("gen", "produced", "finished groups put"),
    "train/groups": Metric("groups handed to trainers; each use counts", lambda s: s.trained.groups),
    "train/tokens": Metric("tokens trained at least once, prompts included", lambda s: s.put.trained_tokens),
    **_response_metrics("train", "trained", "what was trained"),
    **_staleness_metrics("oldest", "trained groups, by their oldest token"),
    **_staleness_metrics("newest", "trained groups, by their newest token"),
    **_staleness_metrics("tokens", "trained tokens, each by its own version"),
    "train/uses_mean": Metric("mean of which use of its group each was", lambda s: s.trained_uses.mean),
    "buffer/groups": Metric("resident groups", lambda s: sum(s.statuses.values())),
    **{
        f"buffer/groups/{status}": Metric(
            f"resident {status.name} groups", lambda s, key=status.value: s.statuses[key]
        )
        for status in STATUSES
    },
    "buffer/out": Metric("groups taken by producers, to be rolled again", lambda s: s.out),
    "buffer/leased": Metric("groups handed to trainers, not acknowledged yet", lambda s: s.leased),
    "buffer/tokens": Metric("resident tokens, prompts included", lambda s: s.num_tokens),
    "buffer/bytes": Metric("bytes of resident groups but rejected ones", lambda s: s.num_bytes),
    "buffer/staleness_mean": Metric(
        "mean staleness of resident COMPLETED groups", lambda s: s.staleness.mean
    ),
    "buffer/staleness_max": Metric(
        "largest staleness of resident COMPLETED groups", lambda s: s.staleness.max
    ),
    "buffer/age_mean": Metric("their mean age in versions, by the newest token", lambda s: s.age.mean),
    "buffer/age_max": Metric("their largest age in versions", lambda s: s.age.max),
    "buffer/uses_mean": Metric("how often each of them was sampled, on average", lambda s: s.uses.mean),
    **{
        f"buffer/lost_tokens/{loss}": Metric(
            f"tokens never trained that left as {loss}", lambda s, key=loss: s.lost_tokens[key]
        )
        for loss in LOSSES
    },
    "buffer/lost_share": Metric("all lost tokens, as a share of those put", lambda s: s.lost_share),
    **{name: metric for verb in VERBS for name, metric in _wait_metrics(verb).items()},
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
    engine = groups.engine
    columns = engine.columns
    ready = np.flatnonzero(columns.uid)
    ready = ready[(columns.status[ready] == COMPLETED) & (columns.place[ready] == RESIDENT)]
    tasks = {
        name: _describe(groups, [task], ready[columns.task[ready] == task.code], now)
        for name, task in engine.tasks.items()
    }
    total = _describe(groups, list(engine.tasks.values()), ready, now)
    warnings = [warning for name, part in tasks.items() for warning in _warnings(name, part)]
    return Stats(tasks=tasks, total=total, num_bytes=total.num_bytes, out=total.out, warnings=warnings)


def _describe(groups: Groups, tasks: Sequence[Task], ready: IntArray, now: float) -> TaskStats:
    """Return the stats of some tasks together; `ready` are their resident COMPLETED rows."""
    columns, flow = groups.engine.columns, groups.flow
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
        staleness=_distribution(groups.engine.staleness(ready)),
        age=_ages(groups, ready),
        uses=_distribution(columns.uses[ready]),
        lengths=_resident_lengths(columns.num_tokens[ready] / columns.num_rollouts[ready]),
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

    bits = np.sum([part.bits for part in parts], axis=0).tolist() if parts else []
    histogram = {1 << b >> 1: count for b, count in enumerate(bits) if count}
    return ResponseStats(
        groups=total("groups"),
        rollouts=total("rollouts"),
        lengths=Distribution(count=total("rollouts"), total=total("tokens"), histogram=histogram),
        reward_mean=_share(total("score"), total("scored")),
        solved_share=_share(total("solved"), total("scored")),
        zero_variance_share=_share(total("uniform"), total("compared")),
        groups_per_s=rate("groups"),
        tokens_per_s=rate("tokens"),
    )


def _ages(groups: Groups, ready: IntArray) -> Distribution:
    """Return the staleness of the newest tokens, of rows that have versions and a task with a step."""
    columns = groups.engine.columns
    steps = [NO_VERSION if task.step is None else task.step for task in groups.engine.tasks.values()]
    step, newest = np.array(steps, np.int64)[columns.task[ready]], columns.newest[ready]
    known = (step != NO_VERSION) & (newest != NO_VERSION)
    return _distribution(step[known] - newest[known] - 1)


def _resident_lengths(lengths: npt.NDArray[np.float64]) -> Distribution:
    bits = np.frexp(np.floor(lengths))[1]  # as of Responses.bits
    counts = np.bincount(bits).tolist()
    return Distribution(
        count=len(lengths),
        total=float(lengths.sum()),
        histogram={1 << b >> 1: count for b, count in enumerate(counts) if count},
    )


def _distribution(values: npt.NDArray[np.integer[Any]]) -> Distribution:
    keys, counts = np.unique(values, return_counts=True)
    histogram = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    return Distribution(count=len(values), total=int(values.sum()), histogram=histogram)


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
