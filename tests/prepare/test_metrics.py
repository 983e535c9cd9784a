"""Metrics computed by hand: of what was generated, of what is trained, of how it was packed."""

import pytest

from prepare.batches import group_of, rollout, sampled
from reroll import InvalidArgument, ReplayBufferConfig
from reroll.prepare import (
    GenerationResult,
    Verdict,
    generation_metrics,
    packing_metrics,
    screen,
    sequences_of,
    split,
    to_group,
    training_metrics,
)

APPROX = pytest.approx


def generated():
    """Return four groups: one to learn from, one solved, one not, one in between; 9 rollouts."""
    return [
        [
            rollout(2, 10, 1.0),
            rollout(2, 20, 0.0, finish_reason="length"),
            rollout(2, 30, 0.0, finish_reason="length"),
        ],
        group_of([1.0, 1.0], [4, 6]),
        group_of([0.0, 0.0], [8, 8]),
        group_of([0.5, 0.5], [2, 2]),
    ]


def test_generation_by_hand():
    groups = generated()
    metrics = generation_metrics(groups, screen(groups).verdicts)
    assert metrics["gen/groups"] == 4
    assert metrics["gen/rollouts"] == 9
    assert metrics["gen/response_tokens"] == 90
    assert metrics["gen/tokens"] == 90 + 3 * 2 + 6 * 3
    assert metrics["gen/score_mean"] == APPROX((1 + 2 + 0 + 1) / 9)
    assert (metrics["gen/score_min"], metrics["gen/score_max"]) == (0, 1)
    assert metrics["gen/response_length_mean"] == 10
    assert (metrics["gen/response_length_min"], metrics["gen/response_length_max"]) == (2, 30)
    assert metrics["gen/prompt_length_mean"] == APPROX(24 / 9)
    assert metrics["gen/solved_length"] == APPROX((10 + 4 + 6) / 3)
    assert metrics["gen/unsolved_length"] == APPROX((20 + 30 + 8 + 8 + 2 + 2) / 6)
    assert metrics["gen/stop_rate"] == APPROX(7 / 9)
    assert metrics["gen/truncated_rate"] == APPROX(2 / 9)
    assert metrics["gen/filtered/none_solved"] == 1
    assert metrics["gen/filtered/all_solved"] == 1
    assert metrics["gen/filtered/same_score"] == 1
    assert metrics["gen/filtered/custom"] == 0
    assert metrics["gen/filtered/groups"] == 3
    assert metrics["gen/real_batch_size_ratio"] == APPROX(3 / 9)
    assert metrics["gen/unsolved_batch_size_ratio"] == APPROX(2 / 3)
    assert metrics["gen/solve_rate"] == APPROX((1 / 3 + 1 + 0 + 0) / 4)
    histogram = {name.split("/")[-1]: n for name, n in metrics.items() if "histogram" in name and n}
    assert histogram == {"0.0_0.1": 2, "0.3_0.4": 1, "0.9_1.0": 1}


def test_what_is_kept_although_it_teaches_nothing_is_not_filtered():
    groups = generated()
    metrics = generation_metrics(
        groups, screen(groups, filter_zero_std=False).verdicts, filter_zero_std=False
    )
    assert metrics["gen/filtered/groups"] == 0
    assert metrics["gen/filtered/all_solved"] == 1
    assert metrics["gen/real_batch_size_ratio"] == 1
    assert metrics["gen/unsolved_batch_size_ratio"] == APPROX(6 / 9)


def test_the_bucket_of_a_solve_rate_does_not_depend_on_rounding():
    for solved in range(11):
        group = group_of([1.0] * solved + [0.0] * (10 - solved))
        metrics = generation_metrics([group], [Verdict.KEPT])
        low = min(solved, 9)
        assert metrics[f"gen/solve_rate_histogram/{low / 10:.1f}_{(low + 1) / 10:.1f}"] == 1


def test_solved_against_the_largest_possible_score():
    metrics = generation_metrics([group_of([10.0, 9.0], [3, 5])], [Verdict.KEPT], max_possible_score=10.0)
    assert (metrics["gen/solved_length"], metrics["gen/unsolved_length"]) == (3, 5)


def test_means_of_nothing_are_left_out():
    assert "gen/solved_length" not in generation_metrics([group_of([0.0])], [Verdict.KEPT])
    assert "gen/score_mean" not in generation_metrics([group_of([None])], [Verdict.KEPT])
    metrics = generation_metrics([], [])
    assert metrics["gen/groups"] == 0
    assert "gen/stop_rate" not in metrics
    filtered = generation_metrics([group_of([1.0, 1.0])], [Verdict.ALL_SOLVED])
    assert filtered["gen/real_batch_size_ratio"] == 0
    assert "gen/unsolved_batch_size_ratio" not in filtered


def test_reward_metrics_are_merged():
    def group(**metrics):
        return to_group(
            GenerationResult(
                prompt_id=1,
                prompt_ids=[1],
                responses=[[2], [3]],
                finish_reasons=["stop"] * 2,
                reward_metrics=metrics,
            )
        )

    groups = [group(format=1.0, each=[1.0, 0.0]), group(format=0.0, each=[1.0, 1.0]), group(rare=4)]
    groups.append(group(kind="text", unknown=None, both={"a": 1}))  # no numbers: nothing to tell
    metrics = generation_metrics(groups, [Verdict.KEPT] * 4)
    assert len([name for name in metrics if "/reward/" in name]) == 3
    assert metrics["gen/reward/format"] == 0.5
    assert metrics["gen/reward/each"] == 0.75
    assert metrics["gen/reward/rare"] == 4


def test_a_verdict_for_each_group():
    with pytest.raises(InvalidArgument, match="0 verdicts do not match 1 groups"):
        generation_metrics([group_of([1.0])], [])


def test_training_by_hand():
    table = sequences_of(
        [
            sampled(group_of([0.0, 1.0], [2, 4]), 1, weight=1.0, times_sampled=1, staleness=0),
            sampled(group_of([0.0, 0.0, 1.0], [6, 6, 6]), 2, weight=0.5, times_sampled=3, staleness=2),
        ],
        advantage="centered",
        use_importance_weights=True,
    )
    metrics = training_metrics(table)
    assert metrics["train/groups"] == 2
    assert metrics["train/rollouts"] == 5
    assert metrics["train/tokens"] == 24 + 15
    assert metrics["train/trainable_tokens"] == 24
    assert metrics["train/score_mean"] == APPROX(2 / 5)
    assert metrics["train/advantage_mean"] == APPROX(0)
    assert (metrics["train/advantage_min"], metrics["train/advantage_max"]) == (-0.5, APPROX(2 / 3))
    assert metrics["train/response_length_mean"] == APPROX(24 / 5)
    assert metrics["train/staleness_mean"] == APPROX(6 / 5)
    assert metrics["train/staleness_max"] == 2
    assert metrics["train/times_used_mean"] == 2
    assert metrics["train/replayed_share"] == 0.5
    assert metrics["train/effective_sample_size"] == APPROX(1.5**2 / 1.25)
    assert metrics["train/effective_sample_ratio"] == APPROX(1.5**2 / 1.25 / 2)
    assert metrics["train/masked_share"] == 0


def test_masked_completions_count_in_every_mean():
    group = [rollout(1, 10, 1.0), rollout(1, 30, 0.0, finish_reason="length")]
    metrics = training_metrics(sequences_of([group], mask_truncated=True))
    assert metrics["train/masked_share"] == metrics["train/truncated_rate"] == 0.5
    assert metrics["train/trainable_tokens"] == 10
    assert metrics["train/score_mean"] == 0.5
    assert metrics["train/response_length_mean"] == 20


def test_training_on_nothing():
    metrics = training_metrics(sequences_of([]))
    assert metrics["train/groups"] == 0
    assert "train/score_mean" not in metrics


def test_packing_by_hand():
    table = sequences_of([[rollout(0, length) for length in (8, 7, 3, 2)]])
    metrics = packing_metrics(split(table, 1, pack_length=10))
    assert metrics["pack/rows"] == 2
    assert metrics["pack/samples"] == 4
    assert metrics["pack/packed_ratio"] == 0.5
    assert metrics["pack/fill_rate"] == 1.0
    assert metrics["pack/micro_batches_per_rank"] == 2
    assert metrics["pack/tokens_per_rank_min"] == metrics["pack/tokens_per_rank_max"] == 20


def test_packing_on_several_ranks_by_hand():
    table = sequences_of([[rollout(0, length) for length in (8, 7)]])
    metrics = packing_metrics(split(table, 3, pack_length=10))
    assert metrics["pack/rows"] == 2, "a filler is no row of samples"
    assert metrics["pack/packed_ratio"] == 1.0
    assert metrics["pack/fill_rate"] == 0.75
    assert metrics["pack/empty_micro_batches"] == 1
    assert (metrics["pack/tokens_per_rank_min"], metrics["pack/tokens_per_rank_max"]) == (0, 8)


def test_packing_counts_what_did_not_fit():
    table = sequences_of([[rollout(0, length) for length in (8, 12)]])
    assert packing_metrics(split(table, 1, pack_length=10, overlong="drop"))["pack/dropped"] == 1
    assert packing_metrics(split(table, 1, pack_length=10, overlong="truncate"))["pack/truncated"] == 1


def test_packing_nothing():
    assert packing_metrics([]) == {}
    metrics = packing_metrics(split(sequences_of([]), 2, pack_length=10))
    assert metrics["pack/rows"] == 0
    assert "pack/packed_ratio" not in metrics


SHARED = (
    "groups",
    "rollouts",
    "tokens",
    "score_mean",
    "score_std",
    "response_length_mean",
    "prompt_length_max",
)


async def test_without_replay_both_agree():
    buffer = ReplayBufferConfig(sampler="fifo").build()
    groups = [group_of([0.0, 1.0], [place + 1, place + 2]) for place in range(4)]
    gen = generation_metrics(groups, screen(groups).verdicts)
    for group in groups:
        await buffer.put(group, "math", model_step=1)
    drawn = await buffer.sample(4, "math", train_step=2)
    train = training_metrics(sequences_of(drawn, train_step=2))
    assert [train[f"train/{name}"] for name in SHARED] == [gen[f"gen/{name}"] for name in SHARED]
    assert train["train/replayed_share"] == train["train/staleness_max"] == 0
    assert len(buffer) == 0


async def test_with_replay_each_is_right():
    buffer = ReplayBufferConfig(
        sampler="least_used", max_times_sampled=2, capacity=10, remover="fifo"
    ).build()
    old, new = group_of([0.0, 1.0], [10, 10]), group_of([0.0, 0.0, 1.0], [40, 40, 40])
    await buffer.put(old, "math", model_step=1)
    await buffer.sample(1, "math", train_step=2)
    await buffer.put(new, "math", model_step=2)
    drawn = await buffer.sample(2, "math", train_step=3)
    gen = generation_metrics([new], [Verdict.KEPT])
    train = training_metrics(sequences_of(drawn, train_step=3))
    assert gen["gen/score_mean"] == APPROX(1 / 3)
    assert gen["gen/response_length_mean"] == 40
    assert train["train/score_mean"] == APPROX(2 / 5)
    assert train["train/response_length_mean"] == APPROX((20 + 120) / 5)
    assert train["train/replayed_share"] == 0.5
    assert train["train/staleness_mean"] == APPROX(2 / 5)
    assert train["train/times_used_mean"] == 1.5
