"""Metrics of a step: `gen/*` of the newly generated groups, `train/*` of the trained sequences, `pack/*` of the batches.

Replayed groups do not count for `gen/*`. A metric without a value (the mean of an empty list) is omitted.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reroll.errors import InvalidArgument
from reroll.prepare.filters import Group, Verdict
from reroll.prepare.generation import Outcome
from reroll.prepare.ranks import RankBatch
from reroll.prepare.sequences import TRUNCATED, Sequences

BUCKETS = 10
"""Number of buckets in the histogram of solve rates."""


def generation_metrics(
    groups: Sequence[Group],
    verdicts: Sequence[Verdict],
    *,
    max_possible_score: float = 1.0,
    filter_zero_std: bool = True,
) -> dict[str, float]:
    """Return `gen/*` of generated groups, filtered ones included.

    Args:
        groups: Rollouts of each group.
        verdicts: The verdict on each group.
        max_possible_score: The reward of a response that solves its prompt.
        filter_zero_std: Whether groups with equal rewards count as filtered.

    Raises:
        InvalidArgument: There is not one verdict for each group.

    """
    if len(groups) != len(verdicts):
        raise InvalidArgument(
            f"{len(verdicts)} verdicts do not match {len(groups)} groups; give one for each group"
        )
    outcomes = list(map(Outcome.of, groups, verdicts))
    return outcome_metrics(outcomes, max_possible_score=max_possible_score, filter_zero_std=filter_zero_std)


def outcome_metrics(
    outcomes: Sequence[Outcome], *, max_possible_score: float, filter_zero_std: bool
) -> dict[str, float]:
    """Return `gen/*` of logged outcomes; see `generation_metrics`."""
    verdicts = [outcome.verdict for outcome in outcomes]
    group = np.repeat(np.arange(len(outcomes)), [len(outcome.responses) for outcome in outcomes])
    table = [response for outcome in outcomes for response in outcome.responses]
    prompt_length = np.array([response.prompt_length for response in table], np.int64)
    length = np.array([response.length for response in table], np.int64)
    score = np.array([response.score for response in table], np.float64)  # None becomes NaN
    reasons = [response.finish_reason for response in table]
    is_kept = np.array(
        [v == Verdict.KEPT or (v.is_zero_std and not filter_zero_std) for v in verdicts], np.bool_
    )
    kept = is_kept[group]
    scored, solved = ~np.isnan(score), score >= max_possible_score
    metrics = {
        "groups": float(len(outcomes)),
        "rollouts": float(len(table)),
        "tokens": float(prompt_length.sum() + length.sum()),
        "response_tokens": float(length.sum()),
        **{f"filtered/{v.value}": float(verdicts.count(v)) for v in Verdict if v != Verdict.KEPT},
        "filtered/groups": float(np.count_nonzero(~is_kept)),
        **_statistics("score", score[scored]),
        **_statistics("prompt_length", prompt_length),
        **_statistics("response_length", length),
        **_mean("solved_length", length[scored & solved]),
        **_mean("unsolved_length", length[scored & ~solved]),
        **_mean("stop_rate", np.array([reason == "stop" for reason in reasons])),
        **_mean("truncated_rate", np.array([reason == TRUNCATED for reason in reasons])),
        **_mean("real_batch_size_ratio", kept),
        **_mean("unsolved_batch_size_ratio", ~solved[kept & scored]),
        **_solve_rates(group, solved),
        **_reward_metrics(outcomes),
    }
    return {f"gen/{name}": value for name, value in metrics.items()}


def training_metrics(sequences: Sequences) -> dict[str, float]:
    """Return `train/*` metrics of trained sequences.

    Args:
        sequences: of one step.

    """
    _, first = np.unique(sequences.group, return_index=True)
    weight = sequences.weight[first]
    metrics = {
        "groups": float(len(first)),
        "rollouts": float(len(sequences)),
        "tokens": float(sequences.length.sum()),
        "trainable_tokens": float(sequences.trainable.sum()),
        **_statistics("score", sequences.reward[~np.isnan(sequences.reward)]),
        **_statistics("advantage", sequences.advantage),
        **_statistics("prompt_length", sequences.prompt_length),
        **_statistics("response_length", sequences.response_length),
        **_statistics("staleness", sequences.staleness),
        **_statistics("times_used", sequences.times_used[first]),
        **_mean("replayed_share", sequences.is_replayed[first]),
        **_mean("truncated_rate", sequences.is_truncated),
        **_mean("masked_share", sequences.trainable == 0),
    }
    if weight.any():
        effective = float(weight.sum() ** 2 / (weight**2).sum())
        metrics |= {"effective_sample_size": effective, "effective_sample_ratio": effective / len(weight)}
    return {f"train/{name}": value for name, value in metrics.items()}


def packing_metrics(parts: Sequence[RankBatch]) -> dict[str, float]:
    """Return `pack/*` metrics of the batches of all ranks.

    Args:
        parts: batch of each rank.

    """
    if not parts:
        return {}
    counts = parts[0].counts
    tokens = [part.num_tokens for part in parts]
    room = counts.rows * next((micro.pack_length for part in parts for micro in part), 0)
    metrics = {
        "rows": float(counts.rows),
        "samples": float(counts.sequences),
        "tokens": float(counts.tokens),
        "micro_batches_per_rank": float(len(parts[0])),
        "empty_micro_batches": float(sum(micro.is_empty for part in parts for micro in part)),
        "tokens_per_rank_min": float(min(tokens)),
        "tokens_per_rank_max": float(max(tokens)),
        "truncated": float(counts.truncated),
        "dropped": float(counts.dropped),
    }
    if counts.sequences:
        metrics |= {"packed_ratio": counts.rows / counts.sequences, "fill_rate": counts.tokens / room}
    return {f"pack/{name}": value for name, value in metrics.items()}


def _statistics(name: str, values: npt.NDArray[Any]) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_std": float(values.std()),
        f"{name}_min": float(values.min()),
        f"{name}_max": float(values.max()),
    }


def _mean(name: str, values: npt.NDArray[Any]) -> dict[str, float]:
    return {name: float(values.mean())} if len(values) else {}


def _solve_rates(group: npt.NDArray[np.int64], solved: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return the mean solve rate, and the number of groups in each tenth; a rate of 1 is in the last tenth."""
    sizes = np.bincount(group)
    solved_members = np.bincount(group[solved], minlength=len(sizes))[sizes > 0]
    sizes = sizes[sizes > 0]
    # In integers: 3 of 10 belong to the bucket that begins at 0.3, whatever the rounding of floats.
    buckets = np.minimum(BUCKETS * solved_members // np.maximum(sizes, 1), BUCKETS - 1)
    counts = np.bincount(buckets, minlength=BUCKETS).tolist()
    histogram = {
        f"solve_rate_histogram/{place / BUCKETS:.1f}_{(place + 1) / BUCKETS:.1f}": float(count)
        for place, count in enumerate(counts)
    }
    return {**_mean("solve_rate", solved_members / sizes), **histogram}


def _reward_metrics(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Return the mean of each metric of the reward function over results; lists count with all their entries."""
    merged: dict[str, list[npt.NDArray[np.float64]]] = {}
    for outcome in outcomes:
        for name, value in outcome.reward_metrics.items():
            merged.setdefault(name, []).append(np.atleast_1d(np.asarray(value, np.float64)))
    return {
        f"reward/{name}": float(joined.mean())
        for name, values in merged.items()
        if len(joined := np.concatenate([array.ravel() for array in values]))
    }
