"""metrics(): a flat dict of numbers.

METRICS names every metric with its meaning: `gen/` is what was put, `train/` what was handed to a trainer, `buffer/` what is
there; the three are never mixed. Counts, means and rates are those of an interval, gauges are as of now, and `total/` holds the
counts since the beginning. Each exists over all tasks (`gen/groups`) and for each task (`gen/math/groups`); what is not known
yet is left out.
"""

from typing import Any, Final, NamedTuple

from reroll.buffer.report import LOSSES, VERBS
from reroll.buffer.stats import Stats, TaskStats
from reroll.engine.task import STATUSES


class Metric(NamedTuple):
    """One number of `metrics()`."""

    path: str
    """Where it is in TaskStats."""
    meaning: str
    is_count: bool = False
    """Whether it is counted, and has a total."""

    def value(self, stats: TaskStats) -> float | None:
        """Return the number, None if it is not known yet."""
        found: Any = stats
        for key in self.path.split("."):
            found = found[key] if isinstance(found, dict) else getattr(found, key)
        number: float | None = found
        return number


def _response_metrics(prefix: str, side: str, what: str) -> dict[str, Metric]:
    return {
        f"{prefix}/rollouts": Metric(f"{side}.rollouts", f"rollouts {what}", is_count=True),
        f"{prefix}/response_tokens": Metric(
            f"{side}.lengths.total", f"response tokens {what}", is_count=True
        ),
        f"{prefix}/length_mean": Metric(f"{side}.lengths.mean", f"response tokens a rollout {what}, mean"),
        f"{prefix}/length_p50": Metric(f"{side}.lengths.p50", "the same, median, estimated"),
        f"{prefix}/length_p90": Metric(f"{side}.lengths.p90", "the same, 90th percentile, estimated"),
        f"{prefix}/reward_mean": Metric(f"{side}.reward_mean", f"mean reward of rollouts {what}"),
        f"{prefix}/solved_share": Metric(f"{side}.solved_share", "share of these rewards above 0"),
        f"{prefix}/zero_variance_share": Metric(
            f"{side}.zero_variance_share", f"share of groups {what} whose rewards are all the same"
        ),
        f"{prefix}/groups_per_s": Metric(f"{side}.groups_per_s", f"groups {what} a second"),
        f"{prefix}/response_tokens_per_s": Metric(f"{side}.tokens_per_s", f"response tokens {what} a second"),
    }


METRICS: Final[dict[str, Metric]] = {
    "gen/groups": Metric("put.groups", "groups put; one that comes back counts once", is_count=True),
    "gen/tokens": Metric("put.tokens", "tokens put, prompts included", is_count=True),
    "gen/puts": Metric("num_puts", "puts; a group that comes back counts again", is_count=True),
    **{
        f"gen/puts/{s.value}": Metric(f"puts.{s.value}", f"puts that came to {s.name}", is_count=True)
        for s in STATUSES
    },
    "gen/superseded": Metric("superseded", "puts refused: another producer had put the group", is_count=True),
    "gen/finished": Metric("produced.groups", "puts of groups with whole responses", is_count=True),
    **_response_metrics("gen", "produced", "put with whole responses"),
    "train/groups": Metric("trained.groups", "groups handed to a trainer; each use counts", is_count=True),
    "train/tokens": Metric(
        "put.trained_tokens", "tokens trained at least once, prompts included", is_count=True
    ),
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
    **{
        f"buffer/lost_tokens/{x}": Metric(f"lost_tokens.{x}", f"never trained tokens: {x}", is_count=True)
        for x in LOSSES
    },
    "buffer/lost_share": Metric("lost_share", "all of these, as a share of the tokens put"),
    **{
        f"buffer/waits/{v}": Metric(f"waits.{v}.count", f"calls of {v} that had to wait", is_count=True)
        for v in VERBS
    },
    **{
        f"buffer/wait_s/{v}": Metric(f"waits.{v}.total_s", f"seconds that {v} waited", is_count=True)
        for v in VERBS
    },
    **{
        f"buffer/wait_max_s/{v}": Metric(f"waits.{v}.max_s", f"longest wait of {v} since the start")
        for v in VERBS
    },
}


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
"""What is given without `detail`."""
TOTALS: Final = ("gen/groups", "gen/tokens", "train/groups", "train/tokens")
"""Those of them that have a total."""


def metrics_from(total: Stats, interval: Stats, *, detail: bool) -> dict[str, float]:
    """Return stats as a flat dict: those of an interval, and counts of all the time under `total/`."""
    numbers: dict[str, float] = {}
    by_task = detail or len(interval.tasks) > 1
    for name in METRICS if detail else DEFAULT:
        metric = METRICS[name]
        values = {name: metric.value(interval.total)}
        if by_task:
            values |= _by_task(name, metric, interval)
        if metric.is_count and (detail or name in TOTALS):
            values[f"total/{name}"] = metric.value(total.total)
            if detail:
                values |= {f"total/{key}": value for key, value in _by_task(name, metric, total).items()}
        numbers |= {key: value for key, value in values.items() if value is not None}
    return numbers


def _by_task(name: str, metric: Metric, stats: Stats) -> dict[str, float | None]:
    prefix, _, rest = name.partition("/")
    return {f"{prefix}/{task}/{rest}": metric.value(part) for task, part in stats.tasks.items()}
