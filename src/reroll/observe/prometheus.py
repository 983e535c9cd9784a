"""Stats and ledger in the text format of Prometheus: counters, gauges and histograms with a label for the task.

FAMILIES names everything that is told, with its meaning; there is nothing over all tasks, which `sum` gives.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from reroll.buffer.report import VERBS
from reroll.buffer.stats import Distribution, Lengths, Stats, TaskStats
from reroll.engine.ledger import Amount

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_STEPS: Final = (0, 1, 2, 4, 8, 16, 32)
_USES: Final = (1, 2, 4, 8, 16, 32, 64)
_TOKENS: Final = tuple((1 << bits) - 1 for bits in range(4, 18))
"""Upper ends of the powers of two by which lengths are counted."""

Labels = dict[str, str]
Point = tuple[Labels, float | None]
"""Labels beside the task, and a value; None: not known, and left out."""


class Family(NamedTuple):
    """One name, what it means, and how it is read."""

    kind: Literal["counter", "gauge"]
    meaning: str
    of_task: Callable[[TaskStats, Mapping[str, Amount]], Iterable[Point]] | None = None
    of_all: Callable[[Stats], Iterable[Point]] | None = None


class Histogram(NamedTuple):
    """A distribution of what passed since the start."""

    meaning: str
    bounds: Sequence[int]
    of_task: Callable[[TaskStats], Distribution]


def _one(
    read: Callable[[TaskStats], float | None],
) -> Callable[[TaskStats, Mapping[str, Amount]], list[Point]]:
    return lambda stats, _: [({}, read(stats))]


def _all(read: Callable[[Stats], float | None]) -> Callable[[Stats], list[Point]]:
    return lambda stats: [({}, read(stats))]


def _by(
    label: str, read: Callable[[TaskStats], Mapping[str, float]]
) -> Callable[[TaskStats, Mapping[str, Amount]], list[Point]]:
    return lambda stats, _: [({label: key}, value) for key, value in read(stats).items()]


def _ledger(
    read: Callable[[Amount], float],
) -> Callable[[TaskStats, Mapping[str, Amount]], list[Point]]:
    return lambda _, books: [({"bucket": bucket}, read(amount)) for bucket, amount in books.items()]


FAMILIES: Final[Mapping[str, Family]] = {
    "reroll_puts_total": Family(
        "counter", "puts, by the status that each came to", _by("status", lambda s: s.puts)
    ),
    "reroll_put_groups_total": Family(
        "counter", "groups put; one that comes back counts once", _one(lambda s: s.put.groups)
    ),
    "reroll_put_tokens_total": Family(
        "counter", "tokens put, prompts included", _one(lambda s: s.put.tokens)
    ),
    "reroll_trained_groups_total": Family(
        "counter", "groups handed to a trainer; each use counts", _one(lambda s: s.trained.groups)
    ),
    "reroll_lost_tokens_total": Family(
        "counter", "tokens that left and were never trained", _by("reason", lambda s: s.lost_tokens)
    ),
    "reroll_waits_total": Family(
        "counter",
        "calls that had to wait",
        _by("verb", lambda s: {verb: s.waits[verb].count for verb in VERBS}),
    ),
    "reroll_wait_seconds_total": Family(
        "counter",
        "how long they waited",
        _by("verb", lambda s: {verb: s.waits[verb].total_s for verb in VERBS}),
    ),
    "reroll_ledger_groups": Family(
        "gauge", "groups by where they are, or how they left", _ledger(lambda amount: amount.groups)
    ),
    "reroll_ledger_tokens": Family(
        "gauge", "tokens by where they are, or how they left", _ledger(lambda amount: amount.tokens)
    ),
    "reroll_groups": Family("gauge", "resident groups", _by("status", lambda s: s.statuses)),
    "reroll_tokens": Family("gauge", "resident tokens, prompts included", _one(lambda s: s.num_tokens)),
    "reroll_bytes": Family(
        "gauge", "bytes of resident groups but FAILED and FILTERED ones", _one(lambda s: s.num_bytes)
    ),
    "reroll_step": Family("gauge", "the training step", _one(lambda s: s.step)),
    "reroll_staleness_mean": Family(
        "gauge", "mean staleness of resident COMPLETED groups", _one(lambda s: s.staleness.mean)
    ),
    "reroll_staleness_max": Family("gauge", "the same, largest", _one(lambda s: s.staleness.max)),
    "reroll_uses_mean": Family(
        "gauge", "how often resident COMPLETED groups were sampled, mean", _one(lambda s: s.uses.mean)
    ),
    "reroll_uses_max": Family("gauge", "the same, largest", _one(lambda s: s.uses.max)),
    "reroll_priority_mean": Family("gauge", "mean priority of them", _one(lambda s: s.priorities.mean)),
    "reroll_capacity_groups": Family(
        "gauge", "COMPLETED groups that fit, where that is bounded", _one(lambda s: s.limits.capacity)
    ),
    "reroll_occupied_groups": Family(
        "gauge", "COMPLETED groups that are here or leased", _one(lambda s: s.limits.occupied)
    ),
    "reroll_inserts_left": Family(
        "gauge", "COMPLETED groups that may be put before a put waits", _one(lambda s: s.limits.inserts_left)
    ),
    "reroll_samples_left": Family(
        "gauge", "COMPLETED groups that may be handed out now", _one(lambda s: s.limits.samples_left)
    ),
    "reroll_starts_left": Family(
        "gauge", "groups that may be started under a staleness window", _one(lambda s: s.limits.starts_left)
    ),
    "reroll_waiting": Family(
        "gauge", "calls that wait now", _by("verb", lambda s: {v: s.waiting[v].count for v in VERBS})
    ),
    "reroll_waiting_longest_seconds": Family(
        "gauge",
        "how long the longest of them waits",
        _by("verb", lambda s: {v: s.waiting[v].longest_s for v in VERBS}),
    ),
    "reroll_warning": Family(
        "gauge",
        "1 for each warning",
        of_all=lambda stats: [({"task": w.task, "kind": w.kind}, 1) for w in stats.warnings],
    ),
    "reroll_leases": Family("gauge", "leases that are open", of_all=_all(lambda s: s.leases)),
    "reroll_reservations": Family(
        "gauge", "reservations that have groups left", of_all=_all(lambda s: s.reservations)
    ),
    "reroll_max_bytes": Family(
        "gauge", "bytes that fit, where that is bounded", of_all=_all(lambda s: s.max_bytes)
    ),
    "reroll_memory_bytes": Family(
        "gauge", "bytes of rollouts in memory", of_all=_all(lambda s: s.memory_bytes)
    ),
    "reroll_store_file_bytes": Family(
        "gauge", "the file of the store", of_all=_all(lambda s: None if s.disk is None else s.disk.file_bytes)
    ),
    "reroll_store_log_bytes": Family(
        "gauge", "the log of the store", of_all=_all(lambda s: None if s.disk is None else s.disk.log_bytes)
    ),
    "reroll_uptime_seconds": Family(
        "gauge", "since the buffer was made or resumed", of_all=_all(lambda s: s.uptime_s)
    ),
}

HISTOGRAMS: Final[Mapping[str, Histogram]] = {
    "reroll_trained_staleness": Histogram(
        "groups handed to a trainer, by the staleness of their oldest token",
        _STEPS,
        lambda s: s.trained_staleness["oldest"],
    ),
    "reroll_trained_token_staleness": Histogram(
        "tokens handed to a trainer, by their own staleness", _STEPS, lambda s: s.trained_staleness["tokens"]
    ),
    "reroll_trained_uses": Histogram(
        "groups handed to a trainer, by which use of the group it was", _USES, lambda s: s.trained_uses
    ),
    "reroll_produced_response_tokens": Histogram(
        "rollouts put with whole responses, by response tokens", _TOKENS, lambda s: s.produced.lengths
    ),
    "reroll_trained_response_tokens": Histogram(
        "rollouts handed to a trainer, by response tokens", _TOKENS, lambda s: s.trained.lengths
    ),
}


def render(stats: Stats, ledger: Mapping[str, Mapping[str, Amount]]) -> str:
    """Return everything that is known, as Prometheus reads it."""
    return "".join(f"{line}\n" for line in _lines(stats, ledger))


def _lines(stats: Stats, ledger: Mapping[str, Mapping[str, Amount]]) -> Iterator[str]:
    for name, family in FAMILIES.items():
        points = list(family.of_all(stats)) if family.of_all else []
        if family.of_task:
            for task, told in stats.tasks.items():
                found = family.of_task(told, ledger.get(task, {}))
                points += [({"task": task, **labels}, value) for labels, value in found]
        known = [(labels, value) for labels, value in points if value is not None]
        yield from _head(name, family.kind, family.meaning)
        for labels, value in known:
            yield _line(name, labels, value)
    for name, histogram in HISTOGRAMS.items():
        yield from _head(name, "histogram", histogram.meaning)
        for task, told in stats.tasks.items():
            yield from _histogram(name, task, histogram.of_task(told), histogram.bounds)


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, task: str, found: Distribution, bounds: Sequence[int]) -> Iterator[str]:
    # Lengths are counted by powers of two, of which the key is the lower end.
    ends = {key: max(2 * key - 1, key) if isinstance(found, Lengths) else key for key in found.histogram}
    for bound in bounds:
        below = sum(count for key, count in found.histogram.items() if ends[key] <= bound)
        yield _line(f"{name}_bucket", {"task": task, "le": str(bound)}, below)
    yield _line(f"{name}_bucket", {"task": task, "le": "+Inf"}, found.count)
    yield _line(f"{name}_sum", {"task": task}, found.total)
    yield _line(f"{name}_count", {"task": task}, found.count)


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value}" if told else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
