"""stats(): what a buffer tells about itself. Nothing here changes anything or reads a clock. O(resident groups), vectorised."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.buffer.flow import SUPERSEDED, Histogram, Responses, TaskFlow, Wait
from reroll.buffer.groups import Groups
from reroll.buffer.stats import (
    DiskUse,
    Distribution,
    Lengths,
    Limits,
    Magnitudes,
    OpenLease,
    ResponseStats,
    Stats,
    TaskStats,
    Waiting,
    share,
)
from reroll.engine.columns import NO_VERSION, RESIDENT, IntArray
from reroll.engine.engine import Engine
from reroll.engine.ledger import PUT, Amount
from reroll.engine.task import COMPLETED, STATUSES, Task

LOSSES: Final = ("expired", "evicted", "filtered", "failed", "deleted", "lost")
"""Buckets of the ledger: tokens in them that were never trained are lost."""
VERBS: Final = ("put", "reserve", "take", "sample")
"""What may have to wait."""

_MANY: Final = 1 << 20  # more groups that may be put than this are any number
_CHUNK: Final = 8192  # rows


@dataclass(slots=True)
class Ready:
    """The resident COMPLETED groups of a task."""

    staleness: Histogram = field(default_factory=dict)
    age: Histogram = field(default_factory=dict)
    uses: Histogram = field(default_factory=dict)
    bits: list[int] = field(default_factory=lambda: [0] * 64)  # of tokens a rollout, as in Responses
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
            self.bits[bits] += count  # the exponent of a whole number is its bits
        self.tokens += float(lengths.sum())
        priorities = columns.priority[slots]
        above = priorities[priorities > 0]
        _count(self.priorities, np.frexp(above)[1].astype(np.int64) - 1)
        self.zeros += len(priorities) - len(above)
        self.priority += float(above.sum())


@dataclass(slots=True)
class Part:
    """What one buffer knows of one task; parts of several buffers can be told together."""

    step: int | None
    statuses: list[int]
    """Resident groups by the code of their status."""
    amounts: dict[str, Amount]
    num_bytes: int
    ready: Ready
    flow: TaskFlow
    earlier: TaskFlow | None
    """What had passed when the buffer was made or resumed."""
    seconds: float | None
    """Since then."""
    waiting: dict[str, Waiting]
    limits: Limits


@dataclass(slots=True)
class Report:
    """What one buffer knows of itself; reports of several buffers can be told together."""

    parts: dict[str, Part]
    leases: int
    open_leases: list[OpenLease]
    reservations: int
    max_bytes: int | None
    memory_bytes: int
    disk: DiskUse | None
    seconds: float | None
    """Since it was made or resumed."""


def parts_of(groups: Groups, now: float) -> dict[str, Part]:
    """Return what is known of each task at a time, in monotonic seconds.

    A task without groups is among them if calls wait for it, or did for a second: its trainer starves.
    """
    flow, ready = groups.flow, _ready(groups.engine)
    awaited = {
        task.name: task
        for task in groups.engine.named_tasks()
        if any(count or busy_s >= 1 for count, _, busy_s in flow.lines(task.name, now).values())
    }
    seconds = None if flow.started is None else now - flow.started
    return {
        name: Part(
            step=task.step,
            statuses=list(map(len, task.pools)),
            amounts=task.ledger.amounts(),
            num_bytes=task.num_bytes,
            ready=ready.get(name, Ready()),
            flow=flow.tasks.get(name, TaskFlow()),
            earlier=flow.earlier.get(name),
            seconds=seconds,
            waiting={
                verb: Waiting(count=count, longest_s=longest, busy_s=busy)
                for verb, (count, longest, busy) in flow.lines(name, now).items()
            },
            limits=_limits(task),
        )
        for name, task in {**groups.engine.tasks, **awaited}.items()
    }


def stats_from(reports: Sequence[Report]) -> Stats:
    """Return what several buffers tell about themselves as if they were one. Nothing is warned of yet."""
    names = dict.fromkeys(name for report in reports for name in report.parts)
    tasks = {
        name: _describe([report.parts[name] for report in reports if name in report.parts]) for name in names
    }
    parts = [part for report in reports for part in report.parts.values()]
    total = _describe(parts)
    sizes = [report.max_bytes for report in reports]
    leases = sorted(
        (lease for report in reports for lease in report.open_leases), key=lambda lease: -lease.held_s
    )
    return Stats(
        tasks=tasks,
        total=total,
        num_bytes=total.num_bytes,
        out=total.out,
        leases=sum(report.leases for report in reports),
        open_leases=leases,
        reservations=sum(report.reservations for report in reports),
        max_bytes=_sum_unless_none(sizes),
        memory_bytes=sum(report.memory_bytes for report in reports),
        disk=_disk([report.disk for report in reports if report.disk is not None]),
        uptime_s=max((report.seconds for report in reports if report.seconds is not None), default=None),
        warnings=[],
    )


def _describe(parts: Sequence[Part]) -> TaskStats:
    """Return the stats of some tasks together."""
    flows, ready = [part.flow for part in parts], [part.ready for part in parts]
    amounts = [part.amounts for part in parts]
    steps = [part.step for part in parts if part.step is not None]
    seconds = max((part.seconds for part in parts if part.seconds is not None), default=None)
    earlier = [part.earlier for part in parts if part.earlier is not None]
    return TaskStats(
        step=max(steps, default=None),
        statuses={s.value: sum(part.statuses[code] for part in parts) for code, s in enumerate(STATUSES)},
        out=sum(amount["out"].groups for amount in amounts),
        leased=sum(amount["leased"].groups for amount in amounts),
        num_tokens=sum(amount["resident"].tokens for amount in amounts),
        num_bytes=sum(part.num_bytes for part in parts),
        staleness=_joined(part.staleness for part in ready),
        age=_joined(part.age for part in ready),
        uses=_joined(part.uses for part in ready),
        lengths=_lengths([part.bits for part in ready], sum(part.tokens for part in ready)),
        priorities=Magnitudes(
            count=sum(sum(part.priorities.values()) + part.zeros for part in ready),
            total=sum(part.priority for part in ready),
            histogram=_joined(part.priorities for part in ready).histogram,
            zeros=sum(part.zeros for part in ready),
        ),
        put=_sum(amount[PUT] for amount in amounts),
        puts={s.value: sum(f.puts.get(s.value, 0) for f in flows) for s in STATUSES},
        superseded=sum(f.puts.get(SUPERSEDED, 0) for f in flows),
        stale=sum(f.stale for f in flows),
        retaken=sum(f.retaken for f in flows),
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
        waiting={verb: _waiting([p.waiting[verb] for p in parts if verb in p.waiting]) for verb in VERBS},
        limits=_joined_limits([part.limits for part in parts]),
    )


def _responses(
    parts: Sequence[Responses], earlier: Sequence[Responses], seconds: float | None
) -> ResponseStats:
    def total(name: str, of: Iterable[Responses] = parts) -> Any:
        return sum(getattr(part, name) for part in of)

    def rate(name: str) -> float | None:
        return share(total(name) - total(name, earlier), seconds) if seconds else None

    return ResponseStats(
        groups=total("groups"),
        rollouts=total("rollouts"),
        lengths=_lengths([part.bits for part in parts], total("tokens")),
        reward_mean=share(total("score"), total("scored")),
        solved_share=share(total("solved"), total("scored")),
        zero_variance_share=share(total("uniform"), total("compared")),
        groups_per_s=rate("groups"),
        tokens_per_s=rate("tokens"),
    )


def _ready(engine: Engine) -> dict[str, Ready]:
    """Return what is ready, by task. In chunks: arrays that fit a cache are several times quicker."""
    columns, found = engine.columns, {name: Ready() for name in engine.tasks}
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


def _waiting(found: Sequence[Waiting]) -> Waiting:
    return Waiting(
        count=sum(one.count for one in found),
        longest_s=max((one.longest_s for one in found), default=0.0),
        busy_s=max((one.busy_s for one in found), default=0.0),  # at least; who knows how they overlap
    )


def _limits(task: Task) -> Limits:
    settings, ready = task.settings, len(task.completed)
    inserts = _most(_MANY, task.can_insert)
    return Limits(
        limiter=str(settings.limiter),
        capacity=settings.capacity,
        occupied=ready + task.leased,
        inserts=task.counters.inserts,
        samples=task.counters.samples,
        inserts_left=None if inserts == _MANY else inserts,
        samples_left=_most(ready, task.can_sample),
        starts_left=None if settings.window is None else task.may_start(),
    )


def _most(limit: int, can: Callable[[int], bool]) -> int:
    """Return the largest number up to a limit that can be: what is too much for a few is too much for more."""
    return bisect_left(range(1, limit + 1), x=True, key=lambda k: not can(k))


def _joined_limits(limits: Sequence[Limits]) -> Limits:
    starts = [one.starts_left for one in limits if one.starts_left is not None]
    return Limits(
        limiter="; ".join(dict.fromkeys(one.limiter for one in limits)),
        capacity=_sum_unless_none([one.capacity for one in limits]),
        occupied=sum(one.occupied for one in limits),
        inserts=sum(one.inserts for one in limits),
        samples=sum(one.samples for one in limits),
        inserts_left=_sum_unless_none([one.inserts_left for one in limits]),
        samples_left=sum(one.samples_left for one in limits),
        starts_left=sum(starts) if starts else None,
    )


def _disk(parts: Sequence[DiskUse]) -> DiskUse | None:
    if not parts:
        return None
    return DiskUse(
        file_bytes=sum(part.file_bytes for part in parts),
        log_bytes=sum(part.log_bytes for part in parts),
        commits=sum(part.commits for part in parts),
    )


def _sum_unless_none(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of limits; where one is unlimited, all together are."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.plus, amounts, Amount())


def _untrained(amount: Amount) -> int:
    return amount.tokens - amount.trained_tokens
