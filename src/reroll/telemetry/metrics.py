"""The table of metrics; the dict of `metrics()` and the text for Prometheus are made from it.

In the dict, `gen/` counts puts, `train/` counts deliveries to a trainer, `buffer/` describes the resident groups. Each number exists
over all tasks (`gen/groups`) and for each task (`gen/math/groups`); counts also since the beginning, under `total/`. Unknown
numbers are left out. Prometheus has labels instead, and cumulative counters.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from reroll.engine.ledger import Amount
from reroll.engine.task import STATUSES
from reroll.telemetry.stats import LOSSES, VERBS, Distribution, Lengths, Stats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_NAMED: Final = 64
"""Named readers with an interval of their own; the least recent one is dropped for a new one."""
MAX_CONNECTIONS: Final = 1024
"""Connections with an interval of their own."""

Source = Literal["task", "buffer", "ledger"]


class Metric(NamedTuple):
    """One row of the table."""

    name: str | None
    """Name in `metrics()`, with `{}` for the key of a labelled metric; None: only Prometheus has it."""
    family: str | None
    """Name in Prometheus; None: only `metrics()` has it."""
    kind: Literal["counter", "gauge", "histogram"]
    path: str
    """Attributes and keys that lead to the value, with `{}` for the key of a labelled metric."""
    help: str
    label: str = ""
    keys: Sequence[str] = ()
    """Values of the label."""
    source: Source = "task"
    """Whether the path starts at TaskStats, Stats, or an Amount of the ledger."""
    bounds: Sequence[int] = ()
    """Upper bounds of a histogram's buckets."""

    def read(self, source: Any, key: str = "") -> Any:
        """Return the value; None if it is unknown."""
        found = source
        for part in self.path.split("."):
            if found is None:
                return None
            name = key if part == "{}" else part
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        return found


def _responses(prefix: str, side: str, groups: str) -> tuple[Metric, ...]:
    def metric(
        kind: Literal["counter", "gauge"],
        name: str,
        path: str,
        help: str,  # noqa: A002  (the word of Prometheus)
    ) -> Metric:
        return Metric(f"{prefix}/{name}", None, kind, f"{side}.{path}", help)

    return (
        metric("counter", "rollouts", "rollouts", f"rollouts of {groups}"),
        metric("counter", "response_tokens", "lengths.total", f"response tokens of {groups}"),
        metric("gauge", "length_mean", "lengths.mean", f"mean response tokens per rollout of {groups}"),
        metric("gauge", "length_p50", "lengths.p50", f"median response tokens per rollout of {groups}, estimated"),
        metric("gauge", "length_p90", "lengths.p90", f"90th percentile of response tokens per rollout of {groups}, estimated"),
        metric("gauge", "reward_mean", "reward_mean", f"mean reward of rollouts of {groups}"),
        metric("gauge", "solved_share", "solved_share", f"share of rewards above 0 of {groups}"),
        metric("gauge", "zero_variance_share", "zero_variance_share", f"share of {groups} whose rewards are all equal"),
        metric("gauge", "groups_per_s", "groups_per_s", f"{groups} per second"),
        metric("gauge", "response_tokens_per_s", "tokens_per_s", f"response tokens per second of {groups}"),
    )  # fmt: skip


_STATUS_KEYS: Final = tuple(status.value for status in STATUSES)
_STEPS: Final = (0, 1, 2, 4, 8, 16, 32)
_USES: Final = (1, 2, 4, 8, 16, 32, 64)
_TOKENS: Final = tuple((1 << bits) - 1 for bits in range(4, 18))  # upper ends of powers of two

METRICS: Final[tuple[Metric, ...]] = (
    # what was put
    Metric("gen/groups", "reroll_put_groups_total", "counter", "put.groups", "groups put; a group that returns counts once"),
    Metric("gen/tokens", "reroll_put_tokens_total", "counter", "put.tokens", "tokens put, prompts included"),
    Metric("gen/puts", None, "counter", "num_puts", "puts; a group that returns counts again"),
    Metric("gen/puts/{}", "reroll_puts_total", "counter", "puts.{}", "puts, by resulting status", "status", _STATUS_KEYS),
    Metric("gen/superseded", None, "counter", "superseded", "puts refused: another producer had put the group"),
    Metric("gen/finished", None, "counter", "produced.groups", "puts of groups with whole responses"),
    *_responses("gen", "produced", "groups put with whole responses"),
    # what was trained
    Metric("train/groups", "reroll_trained_groups_total", "counter", "trained.groups", "groups delivered to a trainer; each use counts"),
    Metric("train/tokens", None, "counter", "put.trained_tokens", "tokens trained at least once, prompts included"),
    *_responses("train", "trained", "groups delivered to a trainer"),
    Metric("train/staleness_oldest_mean", None, "gauge", "trained_staleness.oldest.mean", "mean staleness of trained groups, by oldest token"),
    Metric("train/staleness_oldest_max", None, "gauge", "trained_staleness.oldest.max", "largest staleness of trained groups, by oldest token"),
    Metric("train/staleness_newest_mean", None, "gauge", "trained_staleness.newest.mean", "mean staleness of trained groups, by newest token"),
    Metric("train/staleness_newest_max", None, "gauge", "trained_staleness.newest.max", "largest staleness of trained groups, by newest token"),
    Metric("train/staleness_tokens_mean", None, "gauge", "trained_staleness.tokens.mean", "mean staleness of trained tokens"),
    Metric("train/staleness_tokens_max", None, "gauge", "trained_staleness.tokens.max", "largest staleness of trained tokens"),
    Metric("train/uses_mean", None, "gauge", "trained_uses.mean", "mean number of the use of trained groups, from 1"),
    # what is resident
    Metric("buffer/groups", None, "gauge", "num_groups", "resident groups"),
    Metric("buffer/groups/{}", "reroll_groups", "gauge", "statuses.{}", "resident groups, by status", "status", _STATUS_KEYS),
    Metric("buffer/out", None, "gauge", "out", "groups that producers have checked out"),
    Metric("buffer/leased", None, "gauge", "leased", "groups in leases that are not acknowledged"),
    Metric("buffer/tokens", "reroll_tokens", "gauge", "num_tokens", "resident tokens, prompts included"),
    Metric("buffer/bytes", "reroll_bytes", "gauge", "num_bytes", "bytes of resident groups, except FAILED and FILTERED ones"),
    Metric("buffer/staleness_mean", "reroll_staleness_mean", "gauge", "staleness.mean", "mean staleness of resident COMPLETED groups"),
    Metric("buffer/staleness_max", "reroll_staleness_max", "gauge", "staleness.max", "largest staleness of resident COMPLETED groups"),
    Metric("buffer/age_mean", None, "gauge", "age.mean", "mean age in versions of resident COMPLETED groups, by newest token"),
    Metric("buffer/age_max", None, "gauge", "age.max", "largest age in versions of resident COMPLETED groups, by newest token"),
    Metric("buffer/uses_mean", "reroll_uses_mean", "gauge", "uses.mean", "mean uses of resident COMPLETED groups"),
    Metric("buffer/lost_tokens/{}", "reroll_lost_tokens_total", "counter", "lost_tokens.{}", "tokens that left untrained", "reason", LOSSES),
    Metric("buffer/lost_share", None, "gauge", "lost_share", "tokens that left untrained, as a share of the tokens put"),
    Metric("buffer/waits/{}", "reroll_waits_total", "counter", "waits.{}.count", "calls that waited", "verb", VERBS),
    Metric("buffer/wait_s/{}", "reroll_wait_seconds_total", "counter", "waits.{}.total_s", "seconds that calls waited", "verb", VERBS),
    Metric("buffer/wait_max_s/{}", None, "gauge", "waits.{}.max_s", "longest wait since the start", "verb", VERBS),
    # for Prometheus only
    Metric(None, "reroll_ledger_groups", "gauge", "groups", "groups, by ledger bucket", "bucket", source="ledger"),
    Metric(None, "reroll_ledger_tokens", "gauge", "tokens", "tokens, by ledger bucket", "bucket", source="ledger"),
    Metric(None, "reroll_step", "gauge", "step", "training step"),
    Metric(None, "reroll_uses_max", "gauge", "uses.max", "most uses of a resident COMPLETED group"),
    Metric(None, "reroll_priority_mean", "gauge", "priorities.mean", "mean priority of resident COMPLETED groups"),
    Metric(None, "reroll_capacity_groups", "gauge", "limits.capacity", "COMPLETED groups that fit, if bounded"),
    Metric(None, "reroll_occupied_groups", "gauge", "limits.occupied", "COMPLETED groups that are resident or leased"),
    Metric(None, "reroll_inserts_left", "gauge", "limits.inserts_left", "COMPLETED groups that can be put before a put waits"),
    Metric(None, "reroll_samples_left", "gauge", "limits.samples_left", "COMPLETED groups that can be delivered now"),
    Metric(None, "reroll_starts_left", "gauge", "limits.starts_left", "groups that can be started under a staleness window"),
    Metric(None, "reroll_waiting", "gauge", "waiting.{}.count", "calls that wait now", "verb", VERBS),
    Metric(None, "reroll_waiting_longest_seconds", "gauge", "waiting.{}.longest_s", "longest wait of a call that waits now", "verb", VERBS),
    Metric(None, "reroll_warning", "gauge", "warnings", "1 for each warning", "kind", source="buffer"),
    Metric(None, "reroll_leases", "gauge", "leases", "open leases", source="buffer"),
    Metric(None, "reroll_reservations", "gauge", "reservations", "reservations with groups left", source="buffer"),
    Metric(None, "reroll_max_bytes", "gauge", "max_bytes", "bytes that fit, if bounded", source="buffer"),
    Metric(None, "reroll_memory_bytes", "gauge", "memory_bytes", "bytes of rollouts in memory", source="buffer"),
    Metric(None, "reroll_store_file_bytes", "gauge", "disk.file_bytes", "size of the store's file", source="buffer"),
    Metric(None, "reroll_store_log_bytes", "gauge", "disk.log_bytes", "size of the store's log", source="buffer"),
    Metric(None, "reroll_uptime_seconds", "gauge", "uptime_s", "seconds since the buffer was made or resumed", source="buffer"),
    Metric(None, "reroll_trained_staleness", "histogram", "trained_staleness.oldest", "trained groups, by staleness of the oldest token", bounds=_STEPS),
    Metric(None, "reroll_trained_token_staleness", "histogram", "trained_staleness.tokens", "trained tokens, by staleness", bounds=_STEPS),
    Metric(None, "reroll_trained_uses", "histogram", "trained_uses", "trained groups, by number of the use", bounds=_USES),
    Metric(None, "reroll_produced_response_tokens", "histogram", "produced.lengths", "rollouts of groups put with whole responses, by response tokens", bounds=_TOKENS),
    Metric(None, "reroll_trained_response_tokens", "histogram", "trained.lengths", "trained rollouts, by response tokens", bounds=_TOKENS),
)  # fmt: skip

DEFAULT: Final = (
    *("gen/groups", "gen/tokens", "gen/groups_per_s", "gen/response_tokens_per_s"),
    *("gen/length_mean", "gen/reward_mean"),
    *("train/groups", "train/tokens", "train/groups_per_s", "train/response_tokens_per_s"),
    *("train/length_mean", "train/reward_mean", "train/zero_variance_share"),
    *("train/staleness_oldest_mean", "train/staleness_oldest_max", "train/uses_mean"),
    *("buffer/groups", "buffer/groups/completed", "buffer/out", "buffer/leased", "buffer/bytes"),
    *("buffer/staleness_mean", "buffer/staleness_max", "buffer/lost_share"),
    *("buffer/wait_s/put", "buffer/wait_s/take"),
)
"""Names of `metrics()` without `detail`."""
TOTALS: Final = ("gen/groups", "gen/tokens", "train/groups", "train/tokens")
"""Names that have a `total/` without `detail`."""


def _by_name() -> Iterator[tuple[str, tuple[Metric, str]]]:
    for metric in METRICS:
        if metric.name is not None:
            for key in metric.keys or ("",):
                yield metric.name.format(key), (metric, key)


NUMBERS: Final[Mapping[str, tuple[Metric, str]]] = dict(_by_name())
"""Every name of `metrics()`, with its row of the table and its key."""


# --- the dict of metrics()


def metrics_dict(total: Stats, interval: Stats, *, detail: bool) -> dict[str, float]:
    """Return a flat dict of numbers: those of an interval, and counts since the beginning under `total/`."""
    numbers: dict[str, float] = {}
    by_task = detail or len(interval.tasks) > 1
    for name in NUMBERS if detail else DEFAULT:
        metric, key = NUMBERS[name]
        values = {name: metric.read(interval.total, key)}
        if by_task:
            values |= _by_task(name, interval)
        if metric.kind == "counter" and (detail or name in TOTALS):
            values[f"total/{name}"] = metric.read(total.total, key)
            if detail:
                values |= {f"total/{each}": value for each, value in _by_task(name, total).items()}
        numbers |= {each: value for each, value in values.items() if value is not None}
    return numbers


def _by_task(name: str, stats: Stats) -> dict[str, Any]:
    (metric, key), (prefix, _, rest) = NUMBERS[name], name.partition("/")
    return {f"{prefix}/{task}/{rest}": metric.read(part, key) for task, part in stats.tasks.items()}


_CONNECTION: Final = "\0"
_NOTHING: Final = Stats.of(
    {}, leases=0, open_leases=[], reservations=0, max_bytes=None, memory_bytes=0, disk=None, uptime_s=0.0
)


class Readers:
    """The start of the current interval of each reader of `metrics()`."""

    def __init__(self, start: Stats = _NOTHING) -> None:
        self._start = start
        self._unnamed: Stats | None = None
        self._named: OrderedDict[str, Stats] = OrderedDict()
        self._connections: OrderedDict[str, Stats] = OrderedDict()

    def interval(self, stats: Stats, reader: str | None) -> Stats:
        """Return the stats since the reader's previous call, and start its next interval."""
        if stats.uptime_s is None:  # of a file, in which no time passes
            return stats
        if reader is None:
            before, self._unnamed = self._unnamed, stats
        else:
            is_connection = reader.startswith(_CONNECTION)
            known = self._connections if is_connection else self._named
            before = known.pop(reader, None)
            known[reader] = stats
            if len(known) > (MAX_CONNECTIONS if is_connection else MAX_NAMED):
                known.popitem(last=False)
        return stats.since(before or self._start)


def connection_reader(connection: str) -> str:
    """Return the name of the reader that belongs to a connection."""
    return _CONNECTION + connection


# --- the text for Prometheus


def prometheus_text(stats: Stats, ledger: Mapping[str, Mapping[str, Amount]]) -> str:
    """Return all known values in the text format of Prometheus."""
    return "".join(f"{line}\n" for line in _lines(stats, ledger))


def _lines(stats: Stats, ledger: Mapping[str, Mapping[str, Amount]]) -> Iterator[str]:
    for metric in METRICS:
        if metric.family is None:
            continue
        yield f"# HELP {metric.family} {metric.help}"
        yield f"# TYPE {metric.family} {metric.kind}"
        if metric.kind == "histogram":
            for task, found in stats.tasks.items():
                yield from _histogram(metric.family, task, metric.read(found), metric.bounds)
            continue
        for labels, value in _points(metric, stats, ledger):
            if value is not None:
                yield _line(metric.family, labels, value)


def _points(
    metric: Metric, stats: Stats, ledger: Mapping[str, Mapping[str, Amount]]
) -> Iterator[tuple[dict[str, str], float | None]]:
    if metric.path == "warnings":
        for warning in stats.warnings:
            yield {"task": warning.task, "kind": warning.kind}, 1
    elif metric.source == "buffer":
        yield {}, metric.read(stats)
    elif metric.source == "ledger":
        for task in stats.tasks:
            for bucket, amount in ledger.get(task, {}).items():
                yield {"task": task, metric.label: bucket}, metric.read(amount)
    else:
        for task, found in stats.tasks.items():
            for key in metric.keys or ("",):
                yield {"task": task, **({metric.label: key} if key else {})}, metric.read(found, key)


def _histogram(name: str, task: str, found: Distribution, bounds: Sequence[int]) -> Iterator[str]:
    # The key of a power of two is its lower end.
    ends = {key: max(2 * key - 1, key) if isinstance(found, Lengths) else key for key in found.histogram}
    for bound in bounds:
        below = sum(count for key, count in found.histogram.items() if ends[key] <= bound)
        yield _line(f"{name}_bucket", {"task": task, "le": str(bound)}, below)
    yield _line(f"{name}_bucket", {"task": task, "le": "+Inf"}, found.count)
    yield _line(f"{name}_sum", {"task": task}, found.total)
    yield _line(f"{name}_count", {"task": task}, found.count)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    text = ",".join(f'{label}="{_escaped(one)}"' for label, one in labels.items())
    return f"{name}{{{text}}} {value}" if text else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
