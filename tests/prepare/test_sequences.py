"""The one table: every column in step, whatever is masked, filtered or foreign."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepare.batches import group_of, rollout, sampled, samples
from reroll import DictRollout, InvalidArgument, Rollout, RolloutGroup
from reroll.prepare import advantages_of, pack, sequences_of


def test_columns():
    groups = [
        sampled(group_of([0.0, 1.0], [4, 6], group_id="a"), 5, weight=0.5, times_sampled=2, staleness=3),
        sampled([rollout(2, 1, 1.0, group_id="b", finish_reason="length")], 9),
    ]
    table = sequences_of(groups)
    assert len(table) == 3
    assert table.num_groups == 2
    assert table.group.tolist() == [0, 0, 1]
    assert table.member.tolist() == [0, 1, 0]
    assert table.uids == [5, 5, 9]
    assert table.prompt_ids == ["a", "a", "b"]
    assert table.prompt_length.tolist() == [3, 3, 2]
    assert table.response_length.tolist() == [4, 6, 1]
    assert table.length.tolist() == [7, 9, 3]
    assert table.reward.tolist() == [0.0, 1.0, 1.0]
    assert np.allclose(table.advantage, [-1, 1, 0])
    assert table.weight.tolist() == [1.0] * 3
    assert table.staleness.tolist() == [3, 3, 0]
    assert table.times_used.tolist() == [2, 2, 1]
    assert table.is_replayed.tolist() == [True, True, False]
    assert table.is_truncated.tolist() == [False, False, True]
    assert not table.is_masked.any()
    assert sequences_of(groups, use_importance_weights=True).weight.tolist() == [0.5, 0.5, 1.0]
    assert table.priorities() == {5: pytest.approx(1.0), 9: 0.0}


@given(samples(), st.booleans())
def test_advantages_are_those_of_each_group(drawn, mask_truncated):
    table = sequences_of(drawn, mask_truncated=mask_truncated, advantage="leave_one_out")
    each = [advantages_of([m.reward for m in sample.group], "leave_one_out") for sample in drawn]
    assert np.allclose(table.advantage, np.concatenate([np.empty(0), *each]))


@pytest.mark.parametrize("cut", range(4))
def test_truncated_completions_are_masked_wherever_they_stand(cut):
    reasons = ["length" if place == cut else "stop" for place in range(4)]
    group = [rollout(2, 3, float(place), finish_reason=reason) for place, reason in enumerate(reasons)]
    table = sequences_of([group, group_of([0.0, 1.0])], mask_truncated=True)
    assert len(table) == 6
    assert table.trainable.tolist() == [0 if place == cut else 3 for place in range(4)] + [4, 4]
    assert table.is_masked.tolist() == [place == cut for place in range(6)]
    assert np.allclose(table.advantage[:4], advantages_of([0.0, 1.0, 2.0, 3.0]))
    packed = pack(table, 8)
    for row in packed:
        for place, number in enumerate(row.sequence.tolist()):
            begin, end = row.cu_seqlens[place : place + 2]
            assert row.response_mask[begin:end].sum() == table.trainable[number]
            assert np.allclose(row.advantages[begin:end], table.advantage[number])
    left = table.where(~table.is_masked)
    assert left.reward.tolist() == [r for place, r in enumerate([0.0, 1.0, 2.0, 3.0]) if place != cut] + [
        0.0,
        1.0,
    ]


def test_all_truncated():
    group = group_of([0.0, 1.0], finish_reason="length")
    table = sequences_of([group], mask_truncated=True)
    assert table.trainable.tolist() == [0, 0]
    assert pack(table, 16).num_trainable_tokens == 0
    assert len(table.where(~table.is_masked)) == 0


def test_the_mask_of_the_rollout_is_left_as_it_is():
    member = rollout(2, 3, response_mask=[1, 1, 0], finish_reason="length")
    sequences_of([[member]], mask_truncated=True)
    assert member.response_mask.tolist() == [1, 1, 0]


@given(samples(), st.data())
def test_rows_leave_with_all_their_columns(drawn, data):
    table = sequences_of(drawn)
    kept = data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table)))
    left = table.where(np.array(kept, bool))
    rows = [row for row, is_kept in enumerate(kept) if is_kept]
    for column in fields(table):
        before, after = getattr(table, column.name), getattr(left, column.name)
        assert type(before) is type(after)
        assert len(after) == len(rows)
        for new, old in enumerate(rows):
            same = np.array_equal(after[new], before[old]) if after[new] is not before[old] else True
            assert same, column.name


@pytest.mark.parametrize("wrong", [[True], [0, 1], [[True, False]]])
def test_a_mask_that_does_not_fit(wrong):
    with pytest.raises(InvalidArgument, match="a boolean for each of 2"):
        sequences_of([group_of([0.0, 1.0])]).where(wrong)


def test_staleness_is_that_of_the_step():
    old = rollout(1, 2, response_model_steps=[3, 5])
    table = sequences_of([sampled([old, rollout(1, 2)], staleness=9)], train_step=6)
    assert table.staleness.tolist() == [2, 9]


def test_stale_tokens_can_be_masked():
    member = rollout(1, 4, response_model_steps=[1, 1, 4, 5], response_mask=[1, 1, 1, 0])
    table = sequences_of([[member]], train_step=6, token_stale_threshold=2)
    assert table.masks[0].tolist() == [0, 0, 1, 0]
    assert table.trainable.tolist() == [1]
    with pytest.raises(InvalidArgument, match="needs train_step"):
        sequences_of([[member]], token_stale_threshold=2)


def test_rewards_are_needed_for_advantages():
    group = [rollout(1, 1, 1.0, group_id="algebra-7"), rollout(1, 1, None, group_id="algebra-7")]
    with pytest.raises(InvalidArgument, match=r"algebra-7.*rollout 1 has no reward"):
        sequences_of([group_of([0.0]), group])
    table = sequences_of([group], advantage=None)
    assert table.advantage.tolist() == [0.0, 0.0]
    assert np.isnan(table.reward).tolist() == [False, True]


@pytest.mark.parametrize("advantage", ["grpo", None])
def test_rewards_that_are_no_numbers_are_refused_with_their_prompt(advantage):
    bad = [rollout(1, 1, float("nan"), group_id="algebra-7")]
    with pytest.raises(InvalidArgument, match=r"algebra-7.*rollout 0 is nan"):
        sequences_of([group_of([0.0]), bad], advantage=advantage)


def test_rewards_with_a_score():
    assert sequences_of([[rollout(1, 1, {"score": 0.5, "format": 1})]]).reward.tolist() == [0.5]


def test_nothing():
    table = sequences_of([])
    assert len(table) == table.num_groups == 0
    assert len(table.where(np.empty(0, bool))) == 0
    assert table.priorities() == {}
    assert len(sequences_of([[]])) == 0


@dataclass
class Foreign:
    """A rollout of somebody else."""

    prompt_ids: Any
    response_ids: Any
    response_model_steps: Any = field(default_factory=list)
    reward: float = 1.0
    status: str = "completed"
    seq_staleness: int = 2
    logprobs: Any = None
    response_mask: Any = None
    tokens: Any = None


def test_rollouts_of_others():
    listed = Foreign([1, 2], [3, 4, 5], [7, 7, 8], logprobs=[-1.0, -2.0, -3.0], response_mask=[1, 0, 1])
    as_dict = DictRollout(
        {
            "status": "completed",
            "seq_staleness": 0,
            "response_ids": [6],
            "response_model_steps": [],
            "tokens": [5, 6],
        }
    )
    table = sequences_of([[listed, as_dict]], advantage=None)
    packed = pack(table, 8)
    assert packed.input_ids.tolist() == [1, 2, 3, 4, 5, 5, 6]
    assert packed.response_mask.tolist() == [False, False, True, False, True, False, True]
    assert packed.versions.tolist() == [-1, -1, 7, 7, 8, -1, -1]
    assert table.staleness.tolist() == [2, 2]


def test_log_probabilities_of_the_whole_sequence():
    whole = Foreign([1, 2], [3, 4], logprobs=[0.0, -9.0, -1.0, -2.0], response_mask=[])
    packed = pack(sequences_of([[whole]]), 8)
    assert packed.logprobs.tolist() == [0.0, 0.0, -1.0, -2.0]
    assert packed.response_mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    "wrong", [{"logprobs": [-1.0]}, {"response_mask": [1]}, {"response_model_steps": [1]}]
)
def test_fields_that_disagree_name_the_prompt(wrong):
    group = [Foreign([1, 2], [3, 4, 5], **wrong)]
    group[0].group_id = "algebra-7"
    with pytest.raises(InvalidArgument, match=r"algebra-7.*has 1 entries, but response_ids has 3"):
        sequences_of([group])


def test_a_response_that_is_missing():
    table = sequences_of([[Foreign(None, None), Foreign([1], None)]])
    assert table.length.tolist() == [0, 1]
    assert pack(table, 4).num_sequences == 2


def test_groups_of_columns_give_the_table_of_their_rollouts():
    groups = [
        [
            Rollout(
                prompt_ids=[1, 2][: 2 - place % 2],
                response_ids=list(range(3, 3 + size)),
                logprobs=None if number == 2 and place else [-0.5] * size,
                response_mask=[1, 0, 1, 1][:size] if number == 1 else None,
                response_model_steps=[4] * size if number else [3, 4, 4, 4][:size],
                reward=float(place),
                finish_reason="length" if size > 3 else "stop",
                group_id=f"prompt {number}",
                columns={"values": np.arange(size, dtype=np.float32)} if size else None,
            )
            for place, size in enumerate([2, 4, 0, 3])
        ]
        for number in range(3)
    ]
    packed = [RolloutGroup.of(group) for group in groups]
    options = {"mask_truncated": True, "train_step": 6, "token_stale_threshold": 2}
    ours, theirs = (pack(sequences_of(given, **options), 8) for given in (packed, groups))
    assert ours.arrays().keys() == theirs.arrays().keys()
    for name, array in theirs.arrays().items():
        np.testing.assert_array_equal(ours.arrays()[name], array, err_msg=name)
    tables = [sequences_of(given) for given in (packed, groups, [packed[0], *groups[1:]])]
    for table in tables:
        assert table.prompt_ids == tables[1].prompt_ids
        assert table.finish_reasons == tables[1].finish_reasons
        assert list(map(list, table.versions)) == list(map(list, tables[1].versions))
        assert table.reward.tolist() == tables[1].reward.tolist()
