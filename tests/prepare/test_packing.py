"""Rows lose, double and reorder nothing, and are as few as best fit promises."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepare.batches import assert_same_tokens, expected_tokens, found_tokens, group_of, rollout, samples
from reroll import InvalidArgument
from reroll.prepare import micro_batches, pack, pad, sequences_of, split
from reroll.prepare.packing import best_fit


def fewest_rows(lengths, most):
    """Return the smallest number of rows, by trying everything."""
    best = len(lengths)

    def place(rest, rows):
        nonlocal best
        if len(rows) >= best:
            return
        if not rest:
            best = len(rows)
            return
        for row in range(len(rows)):
            if rows[row] + rest[0] <= most:
                place(rest[1:], [*rows[:row], rows[row] + rest[0], *rows[row + 1 :]])
        place(rest[1:], [*rows, rest[0]])

    place(sorted(lengths, reverse=True), [])
    return best


@given(samples(), st.booleans(), st.booleans(), st.integers(14, 40))
def test_every_token_is_found_again(drawn, mask_truncated, use_weights, pack_length):
    table = sequences_of(drawn, mask_truncated=mask_truncated, use_importance_weights=use_weights)
    packed = pack(table, pack_length)
    expected = expected_tokens(drawn, table.advantage, mask_truncated=mask_truncated, use_weights=use_weights)
    assert_same_tokens(found_tokens([packed]), expected)
    assert sorted(packed.sequence.tolist()) == list(range(len(table)))
    assert packed.num_trainable_tokens == table.trainable.sum()


@given(samples(), st.integers(14, 40))
def test_sequences_are_whole_and_in_order(drawn, pack_length):
    table = sequences_of(drawn)
    packed = pack(table, pack_length)
    for row in packed:
        assert row.num_tokens <= pack_length
        assert all(earlier < later for earlier, later in pairwise(row.sequence.tolist()))
        for place, number in enumerate(row.sequence.tolist()):
            begin, end = row.cu_seqlens[place : place + 2].tolist()
            tokens = [*table.prompts[number].tolist(), *table.responses[number].tolist()]
            assert row.input_ids[begin:end].tolist() == tokens
            assert row.position_ids[begin:end].tolist() == list(range(end - begin))


@given(samples(), st.integers(14, 30), st.integers(0, 40))
def test_micro_batches_are_the_same_rows(drawn, pack_length, more):
    packed = pack(sequences_of(drawn), pack_length)
    parts = micro_batches(packed, pack_length + more)
    assert all(part.num_rows > 0 and part.num_tokens <= pack_length + more for part in parts)
    assert sum(part.num_rows for part in parts) == packed.num_rows
    assert found_tokens(parts) == found_tokens([packed])
    assert all(np.shares_memory(part.input_ids, packed.input_ids) for part in parts if part.num_tokens)
    # Two neighbours would not have fitted into one.
    assert all(a.num_tokens + b.rows(0, 1).num_tokens > pack_length + more for a, b in pairwise(parts))


@given(st.lists(st.integers(0, 10), max_size=8), st.integers(10, 16))
def test_best_fit_is_near_the_fewest_rows(lengths, most):
    rows = best_fit(lengths, range(len(lengths)), most)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= most for row in rows)
    fewest = fewest_rows(lengths, most)
    assert fewest <= len(rows) <= math.floor(11 / 9 * fewest + 6 / 9)


def test_each_sequence_goes_where_it_leaves_the_least_room():
    assert best_fit([6, 5, 4, 3, 1], range(5), 10) == [[0, 2], [1, 3, 4]]
    assert best_fit([7, 6, 3, 4], range(4), 10) == [[0, 2], [1, 3]]


def test_a_sequence_that_is_too_long_is_refused_with_its_prompt():
    table = sequences_of([group_of([0.0, 1.0], [4, 9], group_id="algebra-7")])
    with pytest.raises(InvalidArgument, match=r"algebra-7.*12 tokens.*rows of 8"):
        pack(table, 8)


def test_or_cut_at_its_end():
    member = rollout(
        3, 9, 1.0, logprobs=[-1.0] * 9, response_mask=[1, 0] * 4 + [1], response_model_steps=[1] * 6 + [2] * 3
    )
    packed = pack(sequences_of([[member, rollout(2, 2)]]), 8, overlong="truncate")
    first = packed.rows(0, 1)
    assert first.input_ids.tolist() == [100, 101, 102, 200, 201, 202, 203, 204]
    assert first.response_mask.tolist() == [False] * 3 + [True, False, True, False, True]
    assert first.versions.tolist() == [-1] * 3 + [1] * 5
    assert packed.num_sequences == 2


def test_or_left_out():
    packed = pack(sequences_of([group_of([0.0, 1.0, 1.0], [4, 9, 2])]), 8, overlong="drop")
    assert packed.sequence.tolist() == [0, 2]


@given(samples(), st.integers(1, 13))
def test_cutting_keeps_all_that_fits(drawn, pack_length):
    table = sequences_of(drawn, mask_truncated=True)
    packed = pack(table, pack_length, overlong="truncate")
    expected = expected_tokens(drawn, table.advantage, mask_truncated=True, keep=pack_length)
    assert_same_tokens(found_tokens([packed]), expected)
    counts = split(table, 2, pack_length=pack_length, overlong="truncate")[0].counts
    assert counts.trainable_tokens == packed.num_trainable_tokens
    assert counts.tokens == packed.num_tokens


def test_a_prompt_as_long_as_a_row_leaves_nothing_to_train():
    packed = pack(sequences_of([[rollout(9, 4)]]), 8, overlong="truncate")
    assert packed.num_tokens == 8
    assert packed.num_trainable_tokens == 0


@pytest.mark.parametrize("wrong", [{"pack_length": 0}, {"pack_length": 8, "overlong": "cut"}])
def test_settings_that_cannot_be(wrong):
    with pytest.raises(InvalidArgument):
        pack(sequences_of([]), **wrong)


def test_a_row_above_the_budget_is_refused():
    with pytest.raises(InvalidArgument, match="12 tokens is above the budget of 10"):
        micro_batches(pack(sequences_of([[rollout(3, 9)]]), 16), 10)


def test_no_sequences():
    packed = pack(sequences_of([]), 8)
    assert packed.num_rows == packed.num_tokens == packed.num_sequences == packed.max_seqlen == 0
    assert packed.is_empty
    assert packed.document_ids.tolist() == []
    assert micro_batches(packed, 8) == []
    assert pad(packed).input_ids.shape == (0, 0)


@given(samples(), st.integers(14, 20), st.data())
def test_rows_of_rows(drawn, pack_length, data):
    packed = pack(sequences_of(drawn), pack_length)
    start = data.draw(st.integers(0, packed.num_rows))
    part = packed.rows(start, packed.num_rows)
    assert found_tokens(list(part)) == found_tokens([part])
    first = data.draw(st.integers(0, part.num_rows))
    twice, once = part.rows(first, part.num_rows), packed.rows(start + first, packed.num_rows)
    assert found_tokens(list(twice)) == found_tokens([once])


def test_rows_that_do_not_exist():
    with pytest.raises(InvalidArgument, match="there are 1 rows"):
        pack(sequences_of([[rollout()]]), 8).rows(0, 2)


def test_log_probabilities_are_never_nan():
    nan = float("nan")
    member = rollout(1, 3, logprobs=[nan, -0.5, nan])
    packed = pack(sequences_of([[member, rollout(1, 2)]]), 8)
    assert packed.logprobs.tolist() == [0, 0, -0.5, 0, 0, 0, 0]
    assert packed.logprob_mask.tolist() == [False, False, True, False, False, False, False]


def test_a_version_that_has_no_place():
    with pytest.raises(InvalidArgument, match="int32"):
        pack(sequences_of([[rollout(1, 2, response_model_steps=[1 << 40] * 2)]]), 8)


@given(samples(), st.integers(14, 40), st.sampled_from((1, 8)))
def test_padding_adds_only_padding(drawn, pack_length, multiple_of):
    table = sequences_of(drawn)
    for batch, rows in ((pack(table, pack_length), None), (table, len(table))):
        padded = pad(batch, multiple_of=multiple_of, pad_token_id=7)
        exists = padded.attention_mask
        assert exists.shape[1] % multiple_of == 0
        assert rows is None or len(exists) == rows
        assert (np.diff(exists.astype(int), axis=1) <= 0).all(), "padding stands on the right"
        assert (padded.input_ids[~exists] == 7).all()
        assert (padded.versions[~exists] == -1).all()
        assert (padded.document_ids[~exists] == -1).all()
        assert not padded.response_mask[~exists].any()
        ids = padded.input_ids[exists].tolist()
        expected = expected_tokens(drawn, table.advantage)
        assert sorted(ids) == sorted(expected)
        found = zip(
            padded.response_mask[exists], padded.advantages[exists], padded.versions[exists], strict=True
        )
        for token, (mask, advantage, version) in zip(ids, found, strict=True):
            want = expected[token]
            assert (mask, advantage, version) == (want[1], want[4], want[6])


def test_padding_to_a_length():
    table = sequences_of([group_of([0.0, 1.0], [2, 4])])
    assert pad(table, length=10).input_ids.shape == (2, 10)
    assert pad(table).attention_mask.sum(axis=1).tolist() == [5, 7]
    with pytest.raises(InvalidArgument, match="7 tokens"):
        pad(table, length=6)


def test_large_batches_are_written_out_as_small_ones():
    """More tokens than are repeated, or looked at, at once: columns lie in one block, written piece by piece."""
    kept = np.arange(30_000) % 3 > 0
    holes = np.where(np.arange(30_000) % 7_000 == 1, np.nan, -1.0)
    members = [
        rollout(
            5, 30_000, 1.0, logprobs=holes, response_mask=kept, response_model_steps=[1] * 9 + [2] * 29_991
        ),
        rollout(4, 40_000, 0.0, finish_reason="length"),
        *(rollout(3, length, 0.0, logprobs=[-2.0] * length) for length in (20_000, 1, 0)),
    ]
    batch = pack(sequences_of([members], mask_truncated=True), 40_004)
    written = batch.arrays()
    assert batch.num_tokens > 1 << 16
    for name, column in written.items():
        alone = np.concatenate([getattr(row, name) for row in batch])
        if len(column) == batch.num_tokens and name != "document_ids":
            assert np.array_equal(column, alone), name
    assert np.array_equal(written["document_ids"], np.repeat(np.arange(5), np.diff(batch.cu_seqlens)))
    assert written["response_mask"].sum() == kept.sum() + 20_001
    assert written["logprob_mask"].sum() == 30_000 - 5 + 20_001
    assert np.isfinite(written["logprobs"]).all()
    assert written["logprobs"].sum() == -(30_000 - 5) - 2 * 20_001
