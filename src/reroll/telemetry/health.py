"""Warnings: likely problems in the stats of a buffer, each with a remedy.

Shares are over the recent past as far as earlier stats reach, else over everything since the start. Nothing is counted here and
no clock is read: only a caller of `stats()` or `metrics()` pays.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Self

from reroll.rollout import Status
from reroll.telemetry.stats import Limits, Stats, StatsWarning, TaskStats

log: Final = logging.getLogger("reroll")

WINDOW_S: Final = 300.0
"""Longest reach of the recent past."""
STEP_S: Final = 5.0
"""Shortest time between two remembered moments."""
LEAST_S: Final = 30.0
"""Waits over a shorter time are not judged."""
ENOUGH: Final = 20
"""Fewer puts or rollouts are not judged."""

WAITING_SHARE: Final = 0.5
FAILED_SHARE: Final = 0.1
EXPIRED_SHARE: Final = 0.3
LENGTH_RATIO: Final = 0.5
REPLAYED: Final = (10, 5.0)
"""Uses of one group: at least this number, and at least this multiple of the mean."""


class TaskTotals(NamedTuple):
    """Counts of one task since the start, or between two moments."""

    puts: float
    failed: float
    tokens: float
    expired: float
    """Tokens that expired untrained."""
    produced: float
    """Rollouts."""
    produced_tokens: float
    trained: float
    trained_tokens: float
    put_wait_s: float
    """Seconds in which at least one producer waited."""
    take_wait_s: float
    """Seconds in which at least one trainer waited."""
    retaken: float
    """EXPIRED groups that producers took."""

    @classmethod
    def of(cls, stats: TaskStats) -> Self:
        waiting = stats.waiting
        return cls(
            stats.num_puts,
            stats.puts[Status.FAILED.value],
            stats.put.tokens,
            stats.lost_tokens["expired"],
            stats.produced.rollouts,
            stats.produced.lengths.total,
            stats.trained.rollouts,
            stats.trained.lengths.total,
            max(waiting["put"].busy_s, waiting["reserve"].busy_s),
            max(waiting["take"].busy_s, waiting["sample"].busy_s),
            stats.retaken,
        )

    def since(self, earlier: "TaskTotals | None") -> "TaskTotals":
        if earlier is None:
            return self
        return TaskTotals(*(now - then for now, then in zip(self, earlier, strict=True)))


class RecentPast(NamedTuple):
    """The input of a rule."""

    stats: TaskStats
    totals: TaskTotals
    """Of the recent past if it has enough puts, else since the start."""
    put_wait_s: float
    take_wait_s: float
    seconds: float | None
    """Length of the recent past, over which the waits are; None: the buffer is a file."""


Finding = tuple[str, str]
"""A problem and its remedy."""


def _starving(recent: RecentPast) -> Finding | None:
    share = _waiting_share(recent.take_wait_s, recent.seconds)
    if share is None:
        return None
    return (
        f"the trainer waited for groups in {share:.0%} of the last {recent.seconds:.0f} s",
        "add engines, let producers run further ahead (capacity, max_staleness, samples per insert), or take smaller batches",
    )


def _blocked(recent: RecentPast) -> Finding | None:
    share = _waiting_share(recent.put_wait_s, recent.seconds)
    if share is None:
        return None
    return (
        f"producers waited in {share:.0%} of the last {recent.seconds:.0f} s",
        _blocked_by(recent.stats.limits) + ", or take larger batches",
    )


def _blocked_by(limits: Limits) -> str:
    if limits.starts_left == 0:
        return "its staleness window is used up: call advance() after each step, raise max_staleness"
    if limits.capacity is not None and limits.occupied >= limits.capacity:
        return f"it is full ({limits.occupied} of {limits.capacity}): raise its capacity, set a remover"
    if limits.inserts_left == 0:
        return f"its rate limiter blocks all puts ({limits.limiter}): widen its error_buffer"
    return "check its limiter, capacity and max_bytes"


def _waiting_share(waited: float, seconds: float | None) -> float | None:
    """Return the share of the time in which calls waited; None if it is small or the time is short."""
    if seconds is None or seconds < LEAST_S or waited < WAITING_SHARE * seconds:
        return None
    return min(1.0, waited / seconds)


def _failing(recent: RecentPast) -> Finding | None:
    totals = recent.totals
    if totals.puts < ENOUGH or totals.failed <= FAILED_SHARE * totals.puts:
        return None
    return (
        f"{totals.failed / totals.puts:.0%} of its puts failed",
        "read the error_msg of its FAILED groups, and keep the other members of such groups with on_failed='drop_member'",
    )


def _expiring(recent: RecentPast) -> Finding | None:
    totals = recent.totals
    if totals.puts < ENOUGH or totals.expired <= EXPIRED_SHARE * totals.tokens:
        return None
    share = (
        "more tokens than were put"
        if totals.expired > totals.tokens
        else f"{totals.expired / totals.tokens:.0%} of its tokens"
    )
    return (
        f"{share} expired untrained",
        "raise its stale threshold, generate less ahead of the trainer, or take the stalest first",
    )


def _unclaimed(recent: RecentPast) -> Finding | None:
    expired = recent.stats.statuses[Status.EXPIRED.value]
    if expired < ENOUGH or recent.totals.retaken:
        return None
    return (
        f"{expired} EXPIRED groups wait for regeneration, and no producer takes them",
        "let producers take them with get(n, task, 'expired') and put them again, or drop them with on_stale='drop'",
    )


def _length_bias(recent: RecentPast) -> Finding | None:
    totals = recent.totals
    if min(totals.puts, totals.trained, totals.produced) < ENOUGH:
        return None
    mean, usual = totals.trained_tokens / totals.trained, totals.produced_tokens / totals.produced
    if mean >= LENGTH_RATIO * usual:
        return None
    return (
        f"trained responses have {mean:.0f} tokens on average, produced ones {usual:.0f}: long ones do not reach the trainer",
        "raise its stale threshold, or let producers continue aborted groups",
    )


def _replayed(recent: RecentPast) -> Finding | None:
    stats, (least, times) = recent.stats, REPLAYED
    most, first = stats.uses.max or 0, stats.trained_uses.histogram.get(1, 0)
    if not first or most < least or most < times * stats.trained_uses.count / first:
        return None
    return (
        f"one group was trained {most} times, while the mean is {stats.trained_uses.count / first:.1f}",
        "set max_times_sampled, or give Prioritized a smaller alpha or a reuse_decay",
    )


RULES: Final[Mapping[str, Callable[[RecentPast], Finding | None]]] = {
    "starving": _starving,
    "blocked": _blocked,
    "failing": _failing,
    "expiring": _expiring,
    "unclaimed": _unclaimed,
    "length_bias": _length_bias,
    "replayed": _replayed,
}
"""The rules by the kind of their warning."""


class _Moment(NamedTuple):
    at_s: float
    tasks: dict[str, TaskTotals]


_START: Final = _Moment(0.0, {})


class HealthMonitor:
    """Derives warnings from stats and logs each once when it appears and once when it ends."""

    def __init__(self, *, logs: bool = True) -> None:
        self._moments = deque([_START])
        self._current: dict[tuple[str, str], StatsWarning] = {}
        self._logs = logs

    def evaluate(self, stats: Stats) -> list[StatsWarning]:
        """Return the warnings about these stats."""
        moment = _Moment(
            stats.uptime_s or 0.0, {name: TaskTotals.of(task) for name, task in stats.tasks.items()}
        )
        if moment.at_s < self._moments[-1].at_s:  # the buffer was made anew
            self._moments = deque([_START])
        while len(self._moments) > 1 and self._moments[1].at_s <= moment.at_s - WINDOW_S:
            self._moments.popleft()
        found = list(self._warnings(stats, moment))
        if moment.at_s - self._moments[-1].at_s >= STEP_S:
            self._moments.append(moment)
        self._log({(warning.kind, warning.task): warning for warning in found})
        return found

    def _warnings(self, stats: Stats, now: _Moment) -> Iterator[StatsWarning]:
        then = self._moments[0]
        seconds = None if stats.uptime_s is None else now.at_s - then.at_s
        for name, task in stats.tasks.items():
            passed = now.tasks[name].since(then.tasks.get(name))
            waited = passed.put_wait_s, passed.take_wait_s
            recent = RecentPast(task, passed if passed.puts >= ENOUGH else now.tasks[name], *waited, seconds)
            for kind, rule in RULES.items():
                finding = rule(recent)
                if finding is not None:
                    yield StatsWarning(kind=kind, task=name, found=finding[0], change=finding[1])

    def _log(self, current: dict[tuple[str, str], StatsWarning]) -> None:
        before, self._current = self._current, current
        if not self._logs:
            return
        for key in current.keys() - before.keys():
            log.warning("%s", current[key], extra={"kind": key[0]})
        for kind, task in before.keys() - current.keys():
            log.info("task %r: no longer %s", task, kind, extra={"kind": kind})
