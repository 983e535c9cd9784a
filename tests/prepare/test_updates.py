"""Several updates of one step: mini-batches and micro-batches of whole groups, and the same step again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reroll.prepare.service  # noqa: F401  (registers what is sent)
from prepare.batches import expected_tokens, found_tokens, group_of, rollout, samples
from reroll import InvalidArgument, Rollout
from reroll.codec import decode, encode
from reroll.prepare import StepData, pack, pad, sequences_of, split


def groups_in(batch):
    return {int(group) for micro in batch for group in micro.group if group >= 0}


@given(samples(max_groups=8), st.integers(1, 3), st.integers(1, 4), st.integers(14, 40), st.booleans())
def test_mini_batches_are_whole_groups_and_together_the_step(drawn, num_ranks, size, pack_length, by_group):
    table = sequences_of(drawn, mask_truncated=True)
    by = {"groups_per_micro_batch": 2} if by_group else {}
    parts = split(table, num_ranks, pack_length=pack_length, mini_batch_size=size, **by)
    minis = list(zip(*(part.mini_batches for part in parts), strict=True))
    assert len(minis) == max(1, -(-len(drawn) // size))
    sizes = []
    seen: set[int] = set()
    for ranks in minis:
        assert len({len(rank) for rank in ranks}) == 1, "every rank has as many micro-batches"
        chosen = set().union(*map(groups_in, ranks))
        assert not chosen & seen, "a group is in one mini-batch"
        seen |= chosen
        sizes.append(len(chosen))
        counts = ranks[0].counts
        assert all(rank.counts == counts for rank in ranks)
        assert counts.groups == len(chosen)
        assert counts.tokens == sum(rank.num_tokens for rank in ranks)
        assert counts.trainable_tokens == sum(m.num_trainable_tokens for rank in ranks for m in rank)
        assert counts.rows == sum(not row.is_empty for rank in ranks for m in rank for row in m)
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= size
    whole = parts[0].counts
    for name in ("tokens", "trainable_tokens", "sequences", "groups", "rows"):
        assert getattr(whole, name) == sum(getattr(ranks[0].counts, name) for ranks in minis)
    tokens = found_tokens([micro for part in parts for micro in part])
    assert tokens.keys() == expected_tokens(drawn, table.advantage).keys()


@given(samples(max_groups=8), st.integers(1, 3), st.integers(1, 3), st.integers(14, 40))
def test_micro_batches_of_whole_groups(drawn, num_ranks, size, pack_length):
    table = sequences_of(drawn)
    parts = split(table, num_ranks, pack_length=pack_length, groups_per_micro_batch=size)
    assert len({len(part) for part in parts}) == 1
    assert len(parts[0]) == -(-len(drawn) // (size * num_ranks))
    found = [set(micro.group.tolist()) - {-1} for part in parts for micro in part]
    assert all(len(groups) <= size for groups in found)
    assert sum(map(len, found)) == len(drawn), "no group is in two micro-batches"
    assert all(micro.num_tokens for part in parts for micro in part)
    tokens = found_tokens([micro for part in parts for micro in part])
    assert tokens.keys() == expected_tokens(drawn, table.advantage).keys()


def test_tasks_are_mixed_in_every_mini_batch():
    table = sequences_of([group_of([0.0, 1.0]) for _ in range(6)])  # say 0 to 2 are math, 3 to 5 code
    (part,) = split(table, 1, pack_length=64, mini_batch_size=2)
    assert [groups_in(mini) for mini in part.mini_batches] == [{0, 3}, {1, 4}, {2, 5}]


def test_a_step_without_groups_has_one_mini_batch_without_micro_batches():
    parts = split(sequences_of([]), 2, pack_length=8, mini_batch_size=3, groups_per_micro_batch=1)
    assert [[len(mini) for mini in part.mini_batches] for part in parts] == [[0], [0]]


@pytest.mark.parametrize("wrong", [{"mini_batch_size": 0}, {"groups_per_micro_batch": 0}])
def test_sizes_that_cannot_be(wrong):
    with pytest.raises(InvalidArgument, match="must be at least 1, not 0"):
        split(sequences_of([group_of([1.0])]), 1, pack_length=8, **wrong)


def step_of(part, iterations):
    return StepData(step=3, batch=part, uids=[1, 2], metrics={}, num_iterations=iterations)


def test_updates_repeat_the_same_micro_batches_with_their_old_logprobs():
    table = sequences_of([group_of([0.0, 1.0]), group_of([0.0, 1.0])])
    (part,) = split(table, 1, pack_length=8, mini_batch_size=1)
    data = step_of(part, 3)
    seen = []
    for update in data.updates():
        seen.append((update.iteration, sorted(groups_in(update))))
        assert update.batch.counts.groups == 1
        for micro in update:
            if update.iteration == 0:
                micro.set_column("old_logprobs", np.full(micro.num_tokens, -float(len(seen)), np.float32))
            assert set(micro.columns["old_logprobs"]) == {-1.0 - min(groups_in(update))}
    assert seen == [(iteration, [group]) for iteration in range(3) for group in (0, 1)]


def test_a_step_that_was_sent_has_the_same_updates():
    table = sequences_of([group_of([0.0, 1.0]), group_of([0.0, 1.0])])
    (part,) = split(table, 1, pack_length=8, mini_batch_size=1)
    read = decode(encode(step_of(part, 2)))
    assert [(u.iteration, groups_in(u)) for u in read.updates()] == [(0, {0}), (0, {1}), (1, {0}), (1, {1})]
    assert repr(read) == "StepData(step=3, rank=0, 4 micro-batches, 2 groups)"


@pytest.mark.parametrize(("name", "count"), [("old", 3), ("advantages", 7), ("input_ids", 7)])
def test_columns_that_cannot_be_set(name, count):
    micro = pack(sequences_of([[rollout(3, 4)]]), 8)
    with pytest.raises(InvalidArgument, match=f"column '{name}'"):
        micro.set_column(name, np.zeros(count))


def test_a_tensor_can_be_set():
    torch = pytest.importorskip("torch")
    micro = pack(sequences_of([[rollout(3, 4)]]), 8)
    micro.set_column("old_logprobs", torch.ones(7, requires_grad=True))
    assert micro.to_torch()["old_logprobs"].tolist() == [1.0] * 7
    assert micro.rows(0, 1).columns["old_logprobs"].tolist() == [1.0] * 7


def with_columns(prompt, response, **columns):
    return Rollout(
        prompt_ids=list(range(prompt)),
        response_ids=list(range(100, 100 + response)),
        reward=0.0,
        status="completed",
        columns=columns,
    )


def test_columns_of_rollouts_are_packed_split_and_padded():
    experts = np.arange(2 * 5 * 2, dtype=np.uint8).reshape(5, 2, 2)  # of prompt and response
    group = [
        with_columns(2, 3, ref=np.array([-1, -2, -3], np.float32), experts=experts),
        with_columns(2, 0),
        with_columns(2, 1, ref=np.array([-4], np.float32), experts=experts[:3]),
    ]
    table = sequences_of([group])
    packed = pack(table, 16)
    assert packed.columns["ref"].tolist() == [0, 0, -1, -2, -3, 0, 0, 0, 0, -4]
    assert packed.columns["experts"].dtype == np.uint8
    expected = np.concatenate([experts, np.zeros((2, 2, 2), np.uint8), experts[:3]])
    assert np.array_equal(packed.columns["experts"], expected)
    assert packed.arrays()["ref"] is packed.columns["ref"]
    padded = pad(table)
    assert padded.columns["ref"].tolist() == [[0, 0, -1, -2, -3], [0] * 5, [0, 0, -4, 0, 0]]
    for part in split(table, 2, pack_length=5):
        for micro in part:
            for place, number in enumerate(micro.sequence.tolist()):
                begin, end = micro.cu_seqlens[place : place + 2]
                member = group[number].columns or {}
                if number >= 0 and "experts" in member:
                    assert np.array_equal(micro.columns["experts"][begin:end], member["experts"])
    cut = pack(table, 4, overlong="truncate")
    first = cut.sequence.tolist().index(0)
    begin, end = cut.cu_seqlens[first : first + 2]
    assert cut.columns["ref"][begin:end].tolist() == [0, 0, -1, -2]
    assert np.array_equal(cut.columns["experts"][begin:end], experts[:4])
    assert len(table.where(np.array([False, True, True])).columns) == 2


def test_a_column_of_a_rollout_does_not_hide_a_field_of_the_batch():
    table = sequences_of([[with_columns(1, 2, advantages=np.zeros(2))]])
    with pytest.raises(InvalidArgument, match="column 'advantages' cannot be set"):
        pack(table, 8)


def test_routed_experts_are_packed_where_every_rollout_has_them():
    experts = np.arange(6, dtype=np.uint8).reshape(3, 2)
    group = [with_columns(1, 2, routed_experts=experts), with_columns(1, 2, routed_experts=experts[1:])]
    assert pack(sequences_of([group]), 8).columns["routed_experts"].tolist() == [
        *experts.tolist(),
        [0, 0],
        *experts[1:].tolist(),
    ]
    assert "routed_experts" not in pack(sequences_of([[group[0], with_columns(1, 2)]]), 8).columns


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({}, "column 'ref' is missing"),
        ({"ref": np.zeros(2, np.int8)}, "use one dtype"),
        ({"ref": np.zeros((2, 3), np.float32)}, "use one dtype"),
        ({"ref": np.zeros(4, np.float32)}, "has 4 entries"),
    ],
)
def test_columns_that_disagree_are_refused(other, why):
    group = [with_columns(1, 2, ref=np.zeros(2, np.float32)), with_columns(1, 2)]
    group[1].columns = other
    with pytest.raises(InvalidArgument, match=why):
        sequences_of([group])
