"""`stats()`: counts, distributions, rates and limits of a buffer, by task and over all tasks.

Records of tasks and shards merge (`merged`, `Stats.merge`), and the interval between two moments is their difference
(`Stats.since`). `task_stats` reads the records of an engine and its counters in one vectorised pass over the resident groups.
Nothing here changes the buffer or reads a clock.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from reroll.display import html_table
from reroll.engine.engine import Engine
from reroll.engine.ledger import PUT, Amount
from reroll.engine.rows import NO_VERSION, RESIDENT, IntArray
from reroll.engine.task import COMPLETED, STATUSES, Task
from reroll.telemetry.counters import (
    SUPERSEDED,
    FlowCounters,
    Histogram,
    ResponseCounters,
    TaskCounters,
    Waiting,
    WaitStats,
)

R = TypeVar("R")

LOSSES: Final = ("expired", "evicted", "filtered", "failed", "deleted", "lost")
"""Ledger buckets whose untrained tokens are lost."""
VERBS: Final = ("put", "reserve", "take", "sample")
"""Verbs that may wait."""

_UNBOUNDED: Final = 1 << 20  # this number of possible inserts, or more, is reported as None
_CHUNK: Final = 8192  # rows; arrays that fit a cache are several times faster


# --- merging


def merged(parts: Sequence[R]) -> R:
    """Return records of one class as one record: fields are added, except those in `_MERGES`."""
    kind: Any = type(parts[0])
    return kind(  # type: ignore[no-any-return]
        **{
            one.name: _MERGES.get((kind, one.name), _sum)([getattr(part, one.name) for part in parts])
            for one in fields(kind)
        }
    )


def _sum(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _sum([value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, Amount):
        return reduce(Amount.plus, values)
    return merged(values) if is_dataclass(first) else sum(values)


def _max(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _sum_of_known(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return _sum(known) if known else None


def _sum_unless_unbounded(values: Sequence[int | None]) -> int | None:
    return None if None in values else _sum(values)


def _sorted_sum(histograms: Sequence[Histogram]) -> Histogram:
    return dict(sorted(_sum(histograms).items()))


def _difference(now: Any, before: Any) -> Any:
    """Return what was added after `before`."""
    if isinstance(now, dict):
        return {
            key: _difference(value, before[key]) if key in before else value for key, value in now.items()
        }
    if isinstance(now, Amount):
        return now.minus(before)
    if isinstance(now, WaitStats):
        return WaitStats(now.count - before.count, now.total_s - before.total_s, now.max_s)
    return now.since(before) if isinstance(now, Distribution) else now - before


def share(part: float, whole: float | None) -> float | None:
    """Return a ratio, None if the whole is zero or unknown."""
    return part / whole if whole else None


# --- records


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Number of occurrences by value."""

    count: int = 0
    total: float = 0
    histogram: Histogram = field(default_factory=dict)

    @classmethod
    def of(cls, histogram: Histogram) -> Self:
        """Return the distribution of a histogram of exact values."""
        total = sum(value * count for value, count in histogram.items())
        return cls(count=sum(histogram.values()), total=total, histogram=dict(sorted(histogram.items())))

    @property
    def mean(self) -> float | None:
        """The exact mean; None without values."""
        return share(self.total, self.count)

    @property
    def max(self) -> int | None:
        """The largest key of the histogram; None without values."""
        return max(self.histogram, default=None)

    def since(self, before: "Distribution") -> "Distribution":
        """Return the values that were added after `before`."""
        more: Histogram = _difference(self.histogram, before.histogram)
        return Distribution.of({value: count for value, count in more.items() if count > 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Distribution):
    """Number of occurrences by power of two: key 4 counts the lengths 4 to 7; keys 0 and 1 only themselves."""

    @classmethod
    def of_bits(cls, bits: Sequence[int], total: float) -> Self:
        """Return lengths from counts by bit length."""
        histogram = {1 << b >> 1: count for b, count in enumerate(bits) if count}
        return cls(count=sum(bits), total=total, histogram=histogram)

    @property
    def p50(self) -> float | None:
        """The median, interpolated inside its power of two; None without values."""
        return self._quantile(0.5)

    @property
    def p90(self) -> float | None:
        """The 90th percentile, interpolated inside its power of two; None without values."""
        return self._quantile(0.9)

    def since(self, before: Distribution) -> "Lengths":
        """Return the lengths that were added after `before`."""
        more = {value: n for value, n in _difference(self.histogram, before.histogram).items() if n}
        return Lengths(count=self.count - before.count, total=self.total - before.total, histogram=more)

    def _quantile(self, share: float) -> float | None:
        rank = share * self.count
        for length, count in sorted(self.histogram.items()):
            if rank <= count:
                return length + rank / count * max(length - 1, 0)
            rank -= count
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes(Distribution):
    """Number of occurrences by power of two: key -1 counts 0.5 to below 1; zeros have no key."""

    zeros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Distance of a task from blocking its callers."""

    limiter: str = ""
    capacity: int | None = None
    """COMPLETED groups that fit; None: unbounded."""
    occupied: int = 0
    """COMPLETED groups that are resident or leased."""
    inserts: int = 0
    """Inserts that the limiter has counted."""
    samples: int = 0
    """Samples that the limiter has counted."""
    inserts_left: int | None = None
    """COMPLETED groups that can be put before a put waits; None: a million or more."""
    samples_left: int = 0
    """COMPLETED groups that can be delivered now; fewer than are resident where the limiter blocks samples."""
    starts_left: int | None = None
    """Groups that producers can start under the staleness window; None: the task has no window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLease:
    """A lease that is not yet acknowledged."""

    id: int
    tasks: list[str]
    groups: int
    held_s: float
    ends_in_s: float | None
    """None: it has no deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Disk space of a store."""

    file_bytes: int
    log_bytes: int
    commits: int
    """Commits since the store was opened."""

    @classmethod
    def of(cls, path: Path, commits: int = 0) -> Self:
        """Return the disk space of a database file and its log."""
        sizes = [file.stat().st_size if file.exists() else 0 for file in (path, Path(f"{path}-wal"))]
        return cls(file_bytes=sizes[0], log_bytes=sizes[1], commits=commits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStats:
    """Responses that were put or trained."""

    groups: int = 0
    rollouts: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    """Rollouts by their number of response tokens."""
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
    timed_groups: int = 0
    """Groups since the buffer was made or resumed; the rates are over these."""
    timed_tokens: float = 0
    """Response tokens since the buffer was made or resumed."""
    seconds: float | None = None
    """Seconds since the buffer was made or resumed; None: it is a file."""

    @property
    def reward_mean(self) -> float | None:
        """Mean reward; None without rewards."""
        return share(self.score, self.scored)

    @property
    def solved_share(self) -> float | None:
        """Share of the rewards that are above 0; None without rewards."""
        return share(self.solved, self.scored)

    @property
    def zero_variance_share(self) -> float | None:
        """Share of the groups with at least two rewards in which all rewards are equal; None without such groups."""
        return share(self.uniform, self.compared)

    @property
    def groups_per_s(self) -> float | None:
        """Groups per second; None before any time has passed."""
        return share(self.timed_groups, self.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Response tokens per second; None before any time has passed."""
        return share(self.timed_tokens, self.seconds)

    def since(self, before: "ResponseStats", seconds: float) -> "ResponseStats":
        """Return the responses that were added after `before`, in a number of seconds."""
        names = ("groups", "rollouts", "lengths", "scored", "score", "solved", "compared", "uniform")
        added = {name: _difference(getattr(self, name), getattr(before, name)) for name in names}
        timed = {"timed_groups": added["groups"], "timed_tokens": added["lengths"].total}
        return ResponseStats(**added, **timed, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """One task, or all tasks merged."""

    step: int | None = None
    """The largest reported training step."""
    statuses: dict[str, int] = field(default_factory=lambda: {s.value: 0 for s in STATUSES})
    """Resident groups by status."""
    out: int = 0
    """Groups that producers have checked out."""
    leased: int = 0
    num_tokens: int = 0
    """Resident tokens, prompts included."""
    num_bytes: int = 0
    """Bytes of resident groups, except FAILED and FILTERED ones."""
    staleness: Distribution = field(default_factory=Distribution)
    """Resident COMPLETED groups by the staleness of their oldest token."""
    age: Distribution = field(default_factory=Distribution)
    """Resident COMPLETED groups by the staleness of their newest token; groups without versions are left out."""
    uses: Distribution = field(default_factory=Distribution)
    """Resident COMPLETED groups by number of uses."""
    lengths: Lengths = field(default_factory=Lengths)
    """Resident COMPLETED groups by mean tokens per rollout, prompts included."""
    priorities: Magnitudes = field(default_factory=Magnitudes)
    """Resident COMPLETED groups by priority."""
    put: Amount = field(default_factory=Amount)
    """`put` of the ledger: a group that returns from a producer counts once, and adds its new tokens."""
    puts: dict[str, int] = field(default_factory=lambda: {s.value: 0 for s in STATUSES})
    """Puts by resulting status; a group that returns from a producer counts again."""
    superseded: int = 0
    """Puts that were refused because another producer had put the group."""
    stale: int = 0
    """COMPLETED groups that exceeded `max_staleness`, at put or later: emptied for regeneration, or dropped."""
    retaken: int = 0
    """EXPIRED groups that producers took to regenerate them."""
    produced: ResponseStats = field(default_factory=ResponseStats)
    """Finished groups at put: COMPLETED or FILTERED, also if they expired on arrival."""
    trained: ResponseStats = field(default_factory=ResponseStats)
    """Groups delivered to a trainer; each use counts."""
    trained_staleness: dict[str, Distribution] = field(
        default_factory=lambda: {key: Distribution() for key in ("oldest", "newest", "tokens")}
    )
    """`oldest` and `newest`: trained groups by the staleness of that token; `tokens`: trained tokens by their own."""
    trained_uses: Distribution = field(default_factory=Distribution)
    """Trained groups by the number of the use, from 1."""
    lost_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0))
    """Tokens that left untrained, by ledger bucket."""
    waits: dict[str, WaitStats] = field(default_factory=lambda: {verb: WaitStats() for verb in VERBS})
    """Finished waits by verb; a call that waited for several tasks counts for each."""
    waiting: dict[str, Waiting] = field(default_factory=lambda: {verb: Waiting() for verb in VERBS})
    """Calls that wait now, by verb."""
    limits: Limits = field(default_factory=Limits)

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
        """Lost tokens as a share of all tokens put; None before the first put."""
        return share(sum(self.lost_tokens.values()), self.put.tokens)

    def since(self, before: "TaskStats", seconds: float) -> "TaskStats":
        """Return the same gauges, with the counts that were added after `before`, in a number of seconds."""
        names = ("put", "puts", "superseded", "stale", "retaken", "trained_staleness", "trained_uses", "lost_tokens", "waits")  # fmt: skip
        return replace(
            self,
            **{name: _difference(getattr(self, name), getattr(before, name)) for name in names},
            produced=self.produced.since(before.produced, seconds),
            trained=self.trained.since(before.trained, seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsWarning:
    """A likely problem; `str()` gives the whole line."""

    kind: str
    """A key of `reroll.telemetry.health.RULES`."""
    task: str
    found: str
    """The problem."""
    change: str
    """The remedy."""

    def __str__(self) -> str:
        return f"task {self.task!r}: {self.found}; {self.change}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """State and history of a buffer."""

    tasks: dict[str, TaskStats]
    total: TaskStats
    """All tasks merged."""
    num_bytes: int
    out: int
    """Groups that producers have checked out."""
    leases: int
    """Open leases."""
    open_leases: list[OpenLease]
    """The oldest open leases."""
    reservations: int
    """Reservations with groups left."""
    max_bytes: int | None
    """Bytes of rollouts that fit; None: unbounded."""
    memory_bytes: int
    """Bytes of rollouts in memory; with a store, the rest is on disk only."""
    disk: DiskUse | None
    """None: the buffer has no store."""
    uptime_s: float | None
    """Seconds since the buffer was made or resumed; None: it is a file."""
    warnings: list[StatsWarning]
    """Likely problems with their remedies."""

    def __repr__(self) -> str:
        tasks = ", ".join(f"{name} {sum(task.statuses.values()):,}" for name, task in self.tasks.items())
        return (
            f"<Stats groups: {tasks or 'none'}; {self.leases:,} leases, {self.out:,} checked out, "
            f"{self.num_bytes:,} bytes, {len(self.warnings)} warnings>"
        )

    def _repr_html_(self) -> str:
        statuses = [status.value for status in STATUSES]
        rows = (
            (
                *(name, task.step, *(task.statuses[status] for status in statuses), task.leased, task.out),
                *(task.num_tokens, task.staleness.mean, sum(found.task == name for found in self.warnings)),
            )
            for name, task in self.tasks.items()
        )
        columns = ("task", "step", *statuses, "leased", "out", "tokens", "staleness", "warnings")
        return html_table(repr(self), columns, rows, len(self.tasks))

    @classmethod
    def of(cls, tasks: dict[str, TaskStats], **rest: Any) -> Self:
        """Return the stats of a buffer from those of its tasks, without warnings.

        Args:
            tasks: stats by task.
            **rest: fields that do not follow from the tasks.

        """
        total = merged(list(tasks.values())) if tasks else TaskStats()
        return cls(tasks=tasks, total=total, num_bytes=total.num_bytes, out=total.out, warnings=[], **rest)

    @classmethod
    def merge(cls, parts: Sequence["Stats"]) -> Self:
        """Return the stats of several shards as those of one buffer, without warnings.

        Args:
            parts: stats of each shard.

        """
        whole = merged(parts)
        names = ("leases", "open_leases", "reservations", "max_bytes", "memory_bytes", "disk", "uptime_s")
        return cls.of(whole.tasks, **{name: getattr(whole, name) for name in names})

    def since(self, before: "Stats") -> "Stats":
        """Return the same gauges, with the counts that were added after `before`.

        Args:
            before: earlier stats of the same buffer.

        """
        seconds = max(0.0, (self.uptime_s or 0.0) - (before.uptime_s or 0.0))
        nothing = TaskStats()
        tasks = {
            name: task.since(before.tasks.get(name, nothing), seconds) for name, task in self.tasks.items()
        }
        total = merged(list(tasks.values())) if tasks else nothing
        return replace(self, tasks=tasks, total=total, uptime_s=seconds)


_MERGES: Final[Mapping[tuple[type, str], Callable[[Sequence[Any]], Any]]] = {
    **{(kind, "histogram"): _sorted_sum for kind in (Distribution, Lengths, Magnitudes)},
    (WaitStats, "max_s"): _max,
    (Waiting, "longest_s"): _max,
    (Waiting, "busy_s"): _max,  # a lower bound: how waits of several tasks overlap is not known
    (Limits, "limiter"): lambda texts: "; ".join(dict.fromkeys(texts)),
    (Limits, "capacity"): _sum_unless_unbounded,
    (Limits, "inserts_left"): _sum_unless_unbounded,
    (Limits, "starts_left"): _sum_of_known,
    (ResponseStats, "seconds"): _max,
    (TaskStats, "step"): _max,
    (Stats, "open_leases"): lambda lists: sorted(chain(*lists), key=lambda lease: -lease.held_s),
    (Stats, "max_bytes"): _sum_unless_unbounded,
    (Stats, "disk"): _sum_of_known,
    (Stats, "uptime_s"): _max,
    (Stats, "warnings"): lambda lists: list(chain(*lists)),
}
"""Fields that are not added when records merge."""


# --- from an engine and its counters


def task_stats(engine: Engine, counters: FlowCounters, now: float) -> dict[str, TaskStats]:
    """Return the stats of each task at a monotonic time. O(resident groups), vectorised.

    A task without groups is among them if calls wait for it, or have waited for a second: its trainer starves.
    """
    ready = _ready_groups(engine)
    awaited = {
        task.name: task
        for task in engine.named_tasks()
        if any(w.count or w.busy_s >= 1 for w in counters.waiting(task.name, now).values())
    }
    return {
        name: _one_task(task, ready.get(name, _ReadyGroups()), counters, now)
        for name, task in {**engine.tasks, **awaited}.items()
    }


def _one_task(task: Task, ready: "_ReadyGroups", flow: FlowCounters, now: float) -> TaskStats:
    counted = flow.tasks.get(task.name, TaskCounters())
    earlier = flow.earlier.get(task.name, TaskCounters())
    seconds = None if flow.started is None else now - flow.started
    amounts = task.ledger.amounts()
    return TaskStats(
        step=task.step,
        statuses={status.value: len(pool) for status, pool in zip(STATUSES, task.pools, strict=True)},
        out=amounts["out"].groups,
        leased=amounts["leased"].groups,
        num_tokens=amounts["resident"].tokens,
        num_bytes=task.num_bytes,
        staleness=Distribution.of(ready.staleness),
        age=Distribution.of(ready.age),
        uses=Distribution.of(ready.uses),
        lengths=Lengths.of_bits(ready.bits, ready.tokens),
        priorities=Magnitudes(
            count=sum(ready.priorities.values()) + ready.zeros,
            total=ready.priority,
            histogram=dict(sorted(ready.priorities.items())),
            zeros=ready.zeros,
        ),
        put=amounts[PUT],
        puts={status.value: counted.puts.get(status.value, 0) for status in STATUSES},
        superseded=counted.puts.get(SUPERSEDED, 0),
        stale=counted.stale,
        retaken=counted.retaken,
        produced=_responses(counted.produced, earlier.produced, seconds),
        trained=_responses(counted.trained, earlier.trained, seconds),
        trained_staleness={
            "oldest": Distribution.of(counted.staleness.oldest),
            "newest": Distribution.of(counted.staleness.newest),
            "tokens": Distribution.of(counted.staleness.tokens),
        },
        trained_uses=Distribution.of(counted.uses),
        lost_tokens={loss: amounts[loss].tokens - amounts[loss].trained_tokens for loss in LOSSES},
        waits={verb: replace(counted.waits.get(verb, WaitStats())) for verb in VERBS},
        waiting={verb: Waiting() for verb in VERBS} | flow.waiting(task.name, now),
        limits=_limits(task),
    )


def _responses(counted: ResponseCounters, earlier: ResponseCounters, seconds: float | None) -> ResponseStats:
    names = ("groups", "rollouts", "scored", "score", "solved", "compared", "uniform")
    return ResponseStats(
        **{name: getattr(counted, name) for name in names},
        lengths=Lengths.of_bits(counted.bits, counted.tokens),
        timed_groups=counted.groups - earlier.groups,
        timed_tokens=counted.tokens - earlier.tokens,
        seconds=seconds,
    )


@dataclass(slots=True)
class _ReadyGroups:
    """The resident COMPLETED groups of a task."""

    staleness: Histogram = field(default_factory=dict)
    age: Histogram = field(default_factory=dict)
    uses: Histogram = field(default_factory=dict)
    bits: list[int] = field(default_factory=lambda: [0] * 64)  # of tokens per rollout
    tokens: float = 0.0
    priorities: Histogram = field(default_factory=dict)
    zeros: int = 0
    priority: float = 0.0

    def add(self, engine: Engine, task: Task, slots: IntArray) -> None:
        columns = engine.columns
        newest, lengths = columns.newest[slots], columns.num_tokens[slots] / columns.num_rollouts[slots]
        _count(self.staleness, engine.staleness(slots))
        _count(self.uses, columns.uses[slots])
        if task.step is not None:
            _count(self.age, task.step - 1 - newest[newest != NO_VERSION])
        for bits, count in enumerate(np.bincount(np.frexp(np.floor(lengths))[1]).tolist()):
            self.bits[bits] += count  # the exponent of an integer is its bit length
        self.tokens += float(lengths.sum())
        priorities = columns.priority[slots]
        positive = priorities[priorities > 0]
        _count(self.priorities, np.frexp(positive)[1].astype(np.int64) - 1)
        self.zeros += len(priorities) - len(positive)
        self.priority += float(positive.sum())


def _ready_groups(engine: Engine) -> dict[str, _ReadyGroups]:
    columns, found = engine.columns, {name: _ReadyGroups() for name in engine.tasks}
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
    if int(values.max()) - least < _CHUNK:  # nearly always; counting is faster than sorting
        counts = np.bincount(values - least)
        found = np.flatnonzero(counts)
        keys, counts = found + least, counts[found]
    else:
        keys, counts = np.unique(values, return_counts=True)
    for value, count in zip(keys.tolist(), counts.tolist(), strict=True):
        histogram[value] = histogram.get(value, 0) + count


def _limits(task: Task) -> Limits:
    settings, ready = task.settings, len(task.completed)
    inserts = _largest(_UNBOUNDED, task.can_insert)
    return Limits(
        limiter=str(settings.limiter),
        capacity=settings.capacity,
        occupied=ready + task.leased,
        inserts=task.counters.inserts,
        samples=task.counters.samples,
        inserts_left=None if inserts == _UNBOUNDED else inserts,
        samples_left=_largest(ready, task.can_sample),
        starts_left=None if settings.window is None else task.may_start(),
    )


def _largest(bound: int, can: Callable[[int], bool]) -> int:
    """Return the largest number up to a bound for which `can` holds; it holds for every smaller number."""
    return bisect_left(range(1, bound + 1), x=True, key=lambda k: not can(k))
