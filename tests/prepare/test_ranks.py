"""Every rank computes the same number of micro-batches; together they are the batch, once."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepare.batches import (
    assert_same_tokens,
    expected_tokens,
    found_tokens,
    group_of,
    rollout,
    sampled,
    samples,
)
from reroll import InvalidArgument
from reroll.prepare import pack, sequences_of, split
from reroll.prepare.ranks import deal


def narrowest(sizes, num_ranks):
    """Return the smallest difference between ranks that equally many rows allow, by trying everything."""
    per_rank = len(sizes) // num_ranks
    sums = (
        [sum(order[rank * per_rank : (rank + 1) * per_rank]) for rank in range(num_ranks)]
        for order in set(permutations(sizes))
    )
    return min(max(found) - min(found) for found in sums)


@given(samples(), st.integers(1, 5), st.integers(14, 40), st.integers(1, 3), st.integers(0, 2))
def test_nothing_is_lost_and_nobody_waits(drawn, num_ranks, pack_length, rows, filler):
    table = sequences_of(drawn, mask_truncated=True, use_importance_weights=True)
    parts = split(table, num_ranks, pack_length=pack_length, rows_per_micro_batch=rows, filler_length=filler)
    assert [part.rank for part in parts] == list(range(num_ranks))
    assert len({len(part) for part in parts}) == 1
    batches = [micro for part in parts for micro in part]
    expected = expected_tokens(drawn, table.advantage, mask_truncated=True, use_weights=True)
    largest = max((sample.info.weight for sample in drawn), default=1.0)
    assert_same_tokens(found_tokens(batches), expected, weight_scale=1 / largest)
    for micro in batches:
        assert 1 <= micro.num_rows <= rows
        assert all(row.num_tokens <= max(pack_length, filler) for row in micro)
        assert all((np.diff(row.sequence) > 0).all() for row in micro), "members stay in order in a row"
        assert not filler or all(row.num_tokens for row in micro)
    assert sum(part.num_tokens for part in parts) == len(expected)


@given(samples(), st.integers(1, 5), st.integers(14, 40))
def test_counts_are_those_of_the_whole_batch(drawn, num_ranks, pack_length):
    table = sequences_of(drawn, mask_truncated=True, use_importance_weights=True)
    parts = split(table, num_ranks, pack_length=pack_length, weight_norm="none")
    assert all(part.counts == parts[0].counts for part in parts)
    counts = parts[0].counts
    batches = [micro for part in parts for micro in part]
    assert counts.tokens == sum(part.num_tokens for part in parts)
    assert counts.trainable_tokens == sum(micro.num_trainable_tokens for micro in batches)
    assert counts.sequences == sum(micro.num_sequences for micro in batches) == len(table)
    assert counts.groups == len(drawn)
    assert counts.rows == sum(not row.is_empty for micro in batches for row in micro)
    weighted = sum(float(micro.weights[micro.response_mask].sum()) for micro in batches)
    assert counts.weighted_tokens == pytest.approx(weighted, rel=1e-5)
    trained = {
        (micro.document_ids[place], id(micro))
        for micro in batches
        for place in np.flatnonzero(micro.response_mask)
    }
    assert counts.trainable_sequences == len(trained)
    groups = {
        int(g) for micro in batches for g in micro.group[np.unique(micro.document_ids[micro.response_mask])]
    }
    assert counts.trainable_groups == len(groups)
    assert counts.dropped == counts.truncated == 0


@given(samples(max_groups=8), st.integers(1, 4), st.integers(14, 40))
def test_no_more_micro_batches_than_needed(drawn, num_ranks, pack_length):
    table = sequences_of(drawn)
    rows = pack(table, pack_length).num_rows
    assert len(split(table, num_ranks, pack_length=pack_length)[0]) == -(-rows // num_ranks)


@given(st.integers(1, 3), st.integers(2, 3), st.data())
def test_deals_are_near_the_best(per_rank, num_ranks, data):
    count = min(per_rank * num_ranks, 6)
    count -= count % num_ranks
    sizes = data.draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    ranks = deal(sizes, num_ranks)
    assert sorted(row for rows in ranks for row in rows) == list(range(count))
    assert {len(rows) for rows in ranks} == {count // num_ranks}
    sums = [sum(sizes[row] for row in rows) for rows in ranks]
    difference = max(sums) - min(sums)
    # Largest differencing with equal numbers is within the widest block of what is best.
    order = sorted(sizes, reverse=True)
    widest = max(order[i] - order[i + num_ranks - 1] for i in range(0, count, num_ranks))
    assert narrowest(sizes, num_ranks) <= difference <= widest


@given(st.lists(st.integers(1, 1000), min_size=64, max_size=64))
def test_many_rows_balance_nearly_perfectly(sizes):
    sums = [sum(sizes[row] for row in rows) for rows in deal(sizes, 4)]
    order = sorted(sizes, reverse=True)
    assert max(sums) - min(sums) <= max(order[i] - order[i + 3] for i in range(0, 64, 4))


def test_tokens_of_usual_batches_are_balanced():
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(5, 0.8, 256).astype(int) + 1, 900)
    table = sequences_of([[rollout(0, int(length)) for length in lengths]])
    parts = split(table, 4, pack_length=1024)
    tokens = [part.num_tokens for part in parts]
    assert max(tokens) - min(tokens) <= 0.01 * max(tokens)
    # At each moment all ranks compute nearly as much: nobody waits for the longest row.
    for micros in zip(*parts, strict=True):
        sizes = [micro.num_tokens for micro in micros]
        assert min(sizes) >= 0.9 * max(sizes)


def test_ranks_without_sequences_get_fillers_of_weight_zero():
    parts = split(sequences_of([[rollout(2, 3, 1.0)]]), 3, pack_length=16, pad_token_id=9)
    assert [len(part) for part in parts] == [1, 1, 1]
    assert sorted(part.num_tokens for part in parts) == [0, 0, 5]
    empty = [micro for part in parts for micro in part if micro.is_empty]
    assert len(empty) == 2
    for micro in empty:
        assert micro.input_ids.tolist() == [9]
        assert micro.weights.tolist() == micro.advantages.tolist() == [0]
        assert micro.response_mask.tolist() == micro.logprob_mask.tolist() == [False]
        assert micro.sequence.tolist() == micro.group.tolist() == [-1]
        assert micro.cu_seqlens.tolist() == [0, 1]


def test_fillers_without_tokens():
    parts = split(sequences_of([[rollout(2, 3, 1.0)]]), 2, pack_length=16, filler_length=0)
    assert sorted(micro.num_tokens for part in parts for micro in part) == [0, 5]


def test_no_sequences():
    parts = split(sequences_of([]), 3, pack_length=16)
    assert [len(part) for part in parts] == [0, 0, 0]
    assert parts[0].counts.trainable_tokens == parts[0].counts.groups == 0


def test_rows_too_full_to_be_spread_stay_as_best_fit_made_them():
    lengths = [6, 4, 4, 3, 3]  # longest to the shortest row would be 6 + 3, 4 + 4 + 3
    table = sequences_of([[rollout(0, length) for length in lengths]])
    parts = split(table, 2, pack_length=10)
    assert sorted(part.num_tokens for part in parts) == [10, 10]


@pytest.mark.parametrize(("norm", "scale"), [("max", 2.0), ("mean", 8 / 3), ("none", 1.0)])
def test_weights_are_normalised_over_all_ranks(norm, scale):
    drawn = [sampled(group_of([0.0, 1.0]), 1, weight=0.5), sampled(group_of([0.0, 1.0]), 2, weight=0.25)]
    table = sequences_of(drawn, use_importance_weights=True)
    parts = split(table, 4, pack_length=7, weight_norm=norm)
    found = sorted(float(micro.weights[0]) for part in parts for micro in part)
    assert np.allclose(found, [0.25 * scale] * 2 + [0.5 * scale] * 2)
    assert parts[0].counts.weight == pytest.approx(1.5 * scale)
    assert parts[0].counts.weighted_tokens == pytest.approx(6 * scale)


def test_what_is_dropped_or_cut_is_counted():
    table = sequences_of([group_of([0.0, 1.0, 1.0], [4, 20, 30])])
    dropped = split(table, 2, pack_length=8, overlong="drop")[0].counts
    assert (dropped.dropped, dropped.truncated, dropped.sequences) == (2, 0, 1)
    cut = split(table, 2, pack_length=8, overlong="truncate")[0].counts
    assert (cut.dropped, cut.truncated, cut.sequences, cut.trainable_tokens) == (0, 2, 3, 4 + 5 + 5)
    with pytest.raises(InvalidArgument, match="does not fit"):
        split(table, 2, pack_length=8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_ranks": 0},
        {"rows_per_micro_batch": 0},
        {"filler_length": -1},
        {"weight_norm": "sum"},
        {"pack_length": 0},
    ],
)
def test_settings_that_cannot_be(wrong):
    settings = {"num_ranks": 2, "pack_length": 8} | wrong
    with pytest.raises(InvalidArgument):
        split(sequences_of([group_of([1.0])]), **settings)


def test_a_row_of_sequences_without_tokens_can_be_computed():
    """Neither prompt nor response has a token; a forward pass over nothing would fail on this rank alone."""
    parts = split(sequences_of([[rollout(0, 0)], [rollout(0, 3)]]), 2, pack_length=4)
    assert [[micro.num_tokens for micro in part] for part in parts] in ([[3], [1]], [[1], [3]])
    assert sum(part.num_tokens for part in parts) == 3
