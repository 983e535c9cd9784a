"""Warnings: what looks wrong in the stats of a buffer, and what to change.

Shares are of what came lately, as far as stats were asked for before, else of all since the start. Nothing is counted here,
and no clock is read: whoever asks for stats pays for it, and nobody else.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Self

from reroll.buffer.stats import Limits, Stats, StatsWarning, TaskStats
from reroll.rollout import Status

log: Final = logging.getLogger("reroll")

WINDOW_S: Final = 300.0
"""How far back "lately" reaches at most."""
STEP_S: Final = 5.0
"""How far two remembered moments are apart at least."""
LEAST_S: Final = 30.0
"""Waits within a shorter time say nothing."""
ENOUGH: Final = 20
"""Fewer puts or rollouts say nothing about a share."""

WAITING_SHARE: Final = 0.5
FAILED_SHARE: Final = 0.1
EXPIRED_SHARE: Final = 0.3
LENGTH_RATIO: Final = 0.5
REPLAYED: Final = (10, 5.0)
"""Uses of one group: at least so many, and so many times the mean."""


class Totals(NamedTuple):
    """What passed of one task since the start, or between two moments."""

    puts: float
    failed: float
    tokens: float
    expired: float
    """Tokens that were never trained."""
    produced: float
    """Rollouts."""
    produced_tokens: float
    trained: float
    trained_tokens: float
    put_wait_s: float
    """Seconds in which some producer waited."""
    take_wait_s: float
    retaken: float
    """EXPIRED groups that producers took."""

    @classmethod
    def of(cls, stats: TaskStats) -> Self:
        """Return what passed since the start."""
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

    def since(self, earlier: "Totals | None") -> "Totals":
        """Return what passed since an earlier moment."""
        return (
            self
            if earlier is None
            else Totals(*(now - then for now, then in zip(self, earlier, strict=True)))
        )


class Lately(NamedTuple):
    """What a rule looks at."""

    stats: TaskStats
    passed: Totals
    """Lately if that was enough to speak of shares, else since the start."""
    put_wait_s: float
    take_wait_s: float
    seconds: float | None
    """In which those waited; None: in a file no time passes."""


Found = tuple[str, str]
"""What looks wrong, and what to change."""


def _starving(lately: Lately) -> Found | None:
    share = _waiting_share(lately.take_wait_s, lately.seconds)
    if share is None:
        return None
    return (
        f"the trainer waited for groups in {share:.0%} of the last {lately.seconds:.0f} s",
        "add engines, let producers run further ahead (capacity, max_staleness, samples per insert), or take smaller batches",
    )


def _blocked(lately: Lately) -> Found | None:
    share = _waiting_share(lately.put_wait_s, lately.seconds)
    if share is None:
        return None
    return (
        f"producers waited in {share:.0%} of the last {lately.seconds:.0f} s",
        _way_out(lately.stats.limits) + ", or let the trainer take more",
    )


def _way_out(limits: Limits) -> str:
    if limits.starts_left == 0:
        return "its staleness window is used up: call advance() after each step, raise max_staleness"
    if limits.capacity is not None and limits.occupied >= limits.capacity:
        return f"it is full ({limits.occupied} of {limits.capacity}): raise its capacity, give it a remover"
    if limits.inserts_left == 0:
        return f"its limiter lets nobody put ({limits.limiter}): widen its error_buffer"
    return "look at its limiter, capacity and max_bytes"


def _waiting_share(waited: float, seconds: float | None) -> float | None:
    """Return the share of the time in which somebody waited, None where it is nothing to speak of."""
    if seconds is None or seconds < LEAST_S or waited < WAITING_SHARE * seconds:
        return None
    return min(1.0, waited / seconds)


def _failing(lately: Lately) -> Found | None:
    passed = lately.passed
    if passed.puts < ENOUGH or passed.failed <= FAILED_SHARE * passed.puts:
        return None
    return (
        f"{passed.failed / passed.puts:.0%} of its puts failed",
        "read the error_msg of its FAILED groups, and keep the rest of such groups with on_failed='drop_member'",
    )


def _expiring(lately: Lately) -> Found | None:
    passed = lately.passed
    if passed.puts < ENOUGH or passed.expired <= EXPIRED_SHARE * passed.tokens:
        return None
    share = (
        "more tokens than were put"
        if passed.expired > passed.tokens
        else f"{passed.expired / passed.tokens:.0%} of its tokens"
    )
    return (
        f"{share} expired untrained",
        "raise its stale threshold, generate less ahead of the trainer, or take the stalest first",
    )


def _unclaimed(lately: Lately) -> Found | None:
    expired = lately.stats.statuses[Status.EXPIRED.value]
    if expired < ENOUGH or lately.passed.retaken:
        return None
    return (
        f"{expired} EXPIRED groups wait to be rolled again, and no producer takes them",
        "let producers take them with get(n, task, 'expired') and put them again, or drop them with on_stale='drop'",
    )


def _length_bias(lately: Lately) -> Found | None:
    passed = lately.passed
    if min(passed.puts, passed.trained, passed.produced) < ENOUGH:
        return None
    mean, usual = passed.trained_tokens / passed.trained, passed.produced_tokens / passed.produced
    if mean >= LENGTH_RATIO * usual:
        return None
    return (
        f"trained responses have {mean:.0f} tokens on average, produced ones {usual:.0f}: long ones do not reach the trainer",
        "raise its stale threshold, or let aborted groups be continued",
    )


def _replayed(lately: Lately) -> Found | None:
    stats, (least, times) = lately.stats, REPLAYED
    most, first = stats.uses.max or 0, stats.trained_uses.histogram.get(1, 0)
    if not first or most < least or most < times * stats.trained_uses.count / first:
        return None
    return (
        f"one group was trained {most} times, where {stats.trained_uses.count / first:.1f} is the mean",
        "set max_times_sampled, or give Prioritized a smaller alpha or a reuse_decay",
    )


RULES: Final[Mapping[str, Callable[[Lately], Found | None]]] = {
    "starving": _starving,
    "blocked": _blocked,
    "failing": _failing,
    "expiring": _expiring,
    "unclaimed": _unclaimed,
    "length_bias": _length_bias,
    "replayed": _replayed,
}
"""What is warned of, by its kind."""


class _Moment(NamedTuple):
    at_s: float
    tasks: dict[str, Totals]


_START: Final = _Moment(0.0, {})


class Watch:
    """What is remembered of earlier stats, and what is warned of now."""

    def __init__(self, *, logs: bool = True) -> None:
        self._moments = deque([_START])
        self._warned: dict[tuple[str, str], StatsWarning] = {}
        self._logs = logs

    def look(self, stats: Stats) -> list[StatsWarning]:
        """Return what looks wrong; what is new goes to the log, once."""
        moment = _Moment(stats.uptime_s or 0.0, {name: Totals.of(task) for name, task in stats.tasks.items()})
        if moment.at_s < self._moments[-1].at_s:  # it was made anew
            self._moments = deque([_START])
        while len(self._moments) > 1 and self._moments[1].at_s <= moment.at_s - WINDOW_S:
            self._moments.popleft()
        found = list(self._judge(stats, moment))
        if moment.at_s - self._moments[-1].at_s >= STEP_S:
            self._moments.append(moment)
        self._tell({(warning.kind, warning.task): warning for warning in found})
        return found

    def _judge(self, stats: Stats, now: _Moment) -> Iterator[StatsWarning]:
        then = self._moments[0]
        seconds = None if stats.uptime_s is None else now.at_s - then.at_s
        for name, task in stats.tasks.items():
            passed = now.tasks[name].since(then.tasks.get(name))
            waited = passed.put_wait_s, passed.take_wait_s
            lately = Lately(task, passed if passed.puts >= ENOUGH else now.tasks[name], *waited, seconds)
            for kind, rule in RULES.items():
                wrong = rule(lately)
                if wrong is not None:
                    yield StatsWarning(kind=kind, task=name, found=wrong[0], change=wrong[1])

    def _tell(self, warned: dict[tuple[str, str], StatsWarning]) -> None:
        before, self._warned = self._warned, warned
        if not self._logs:
            return
        for key in warned.keys() - before.keys():
            log.warning("%s", warned[key], extra={"kind": key[0]})
        for kind, task in before.keys() - warned.keys():
            log.info("task %r: no longer %s", task, kind, extra={"kind": kind})
