"""stats(): what a buffer tells about itself. Nothing here changes anything or reads a clock. O(resident groups), vectorised."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reroll.buffer.flow import SUPERSEDED, Histogram, Responses, TaskFlow, Wait
from reroll.buffer.groups import Groups
from reroll.buffer.stats import Distribution, Lengths, ResponseStats, Stats, TaskStats, share
from reroll.engine.columns import NO_VERSION, RESIDENT, IntArray
from reroll.engine.engine import Engine
from reroll.engine.ledger import PUT, Amount
from reroll.engine.task import COMPLETED, STATUSES, Task
from reroll.rollout import Status

LOSSES: Final = ("expired", "evicted", "filtered", "failed", "deleted", "lost")
"""Buckets of the ledger: tokens in them that were never trained are lost."""
VERBS: Final = ("put", "reserve", "take", "sample")
"""What may have to wait."""

_ENOUGH: Final = 20  # puts or rollouts; fewer say nothing about a share
_CHUNK: Final = 8192  # rows


@dataclass(slots=True)
class Ready:
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


def parts_of(groups: Groups, now: float) -> dict[str, Part]:
    """Return what is known of each task at a time, in monotonic seconds."""
    flow, ready = groups.flow, _ready(groups.engine)
    seconds = None if flow.started is None else now - flow.started
    return {
        name: Part(
            step=task.step,
            statuses=list(map(len, task.pools)),
            amounts=task.ledger.amounts(),
            num_bytes=task.num_bytes,
            ready=ready[name],
            flow=flow.tasks.get(name, TaskFlow()),
            earlier=flow.earlier.get(name),
            seconds=seconds,
        )
        for name, task in groups.engine.tasks.items()
    }


def stats_of(groups: Groups, now: float) -> Stats:
    """Return what a buffer tells about itself at a time, in monotonic seconds."""
    return stats_from([parts_of(groups, now)])


def stats_from(buffers: Sequence[Mapping[str, Part]]) -> Stats:
    """Return what several buffers tell about themselves as if they were one."""
    names = dict.fromkeys(name for parts in buffers for name in parts)
    tasks = {name: _describe([parts[name] for parts in buffers if name in parts]) for name in names}
    total = _describe([part for parts in buffers for part in parts.values()])
    warnings = [warning for name, stats in tasks.items() for warning in _warnings(name, stats)]
    return Stats(tasks=tasks, total=total, num_bytes=total.num_bytes, out=total.out, warnings=warnings)


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
        put=_sum(amount[PUT] for amount in amounts),
        puts={s.value: sum(f.puts.get(s.value, 0) for f in flows) for s in STATUSES},
        superseded=sum(f.puts.get(SUPERSEDED, 0) for f in flows),
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
    expired = share(stats.lost_tokens["expired"], stats.put.tokens)
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


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.plus, amounts, Amount())


def _untrained(amount: Amount) -> int:
    return amount.tokens - amount.trained_tokens
