"""metrics(): a flat dict of numbers.

METRICS names every metric with its meaning: `gen/` is what was put, `train/` what was handed to a trainer, `buffer/` what is
there; the three are never mixed. Each exists over all tasks (`gen/groups`) and for each task (`gen/math/groups`); what is not
known yet is left out.
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
    "gen/superseded": Metric("superseded", "puts refused: another producer had put the group"),
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


def metrics_from(stats: Stats) -> dict[str, float]:
    """Return stats as a flat dict of numbers."""
    numbers: dict[str, float] = {}
    for name, metric in METRICS.items():
        prefix, _, rest = name.partition("/")
        values = {name: metric.value(stats.total)}
        values |= {f"{prefix}/{task}/{rest}": metric.value(part) for task, part in stats.tasks.items()}
        numbers |= {key: value for key, value in values.items() if value is not None}
    return numbers
