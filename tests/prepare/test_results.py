"""A result becomes a group: checked, completed, and with all that later steps need."""

import numpy as np
import pytest

from reroll import InvalidArgument, ReplayBufferConfig, Status
from reroll.codec import decode, encode
from reroll.prepare import GenerationResult, sequences_of, to_group
from reroll.rollout import group_status


def result(responses=((1, 2), (3,)), **fields):
    given = {
        "prompt_id": "algebra-7",
        "index": 7,
        "prompt_ids": [10, 11],
        "responses": [list(response) for response in responses],
        "finish_reasons": ["stop"] * len(responses),
        "rewards": [float(place % 2) for place in range(len(responses))],
    }
    return GenerationResult(**(given | fields))


def test_a_member_for_each_response():
    group = to_group(
        result(
            logprobs=[[-1.0, -2.0], [-3.0]],
            masks=[[1, 0], None],
            model_step=4,
            finish_reasons=["stop", "length"],
        )
    )
    first, second = group
    assert [member.response_ids.tolist() for member in group] == [[1, 2], [3]]
    assert [member.prompt_ids.tolist() for member in group] == [[10, 11]] * 2
    assert first.logprobs.tolist() == [-1.0, -2.0]
    assert first.response_mask.tolist() == [1, 0]
    assert second.response_mask is None
    assert first.response_model_steps == [4, 4]
    assert [member.reward for member in group] == [0.0, 1.0]
    assert [member.finish_reason for member in group] == ["stop", "length"]
    assert [(member.group_id, member.rollout_id) for member in group] == [("algebra-7", 0), ("algebra-7", 1)]
    assert group_status(group) == Status.COMPLETED


def test_no_response_is_an_empty_one():
    group = to_group(result(responses=((1, 2), ()), finish_reasons=["stop", "error"]))
    failed = to_group(
        GenerationResult(prompt_id=1, prompt_ids=[1], responses=[[2], None], finish_reasons=["stop", "error"])
    )
    assert [len(member.response_ids) for member in failed] == [1, 0]
    assert [member.status for member in failed] == [member.status for member in group]


def test_versions_token_by_token():
    group = to_group(result(versions=[[1, 2], None], model_step=3))
    assert [member.response_model_steps.tolist() for member in group] == [[1, 2], [3]]


def test_what_is_passed_through_survives_a_file():
    group = to_group(
        result(
            ground_truth={"answer": "42"},
            dataset="math",
            raw_query="What is it?",
            reward_metrics={"format": 0.5},
            extra={"difficulty": 3},
        )
    )
    for member in decode(encode(group)):
        assert member.extra_fields == {
            "index": 7,
            "ground_truth": {"answer": "42"},
            "dataset": "math",
            "raw_query": "What is it?",
            "reward_metrics": {"format": 0.5},
            "difficulty": 3,
        }


def test_members_do_not_share_what_one_may_change():
    first, second = to_group(result(reward_metrics={"format": 0.5}))
    first.extra_fields["reward_metrics"]["format"] = 1.0
    assert second.extra_fields["reward_metrics"]["format"] == 0.5


@pytest.mark.parametrize(("train_empty", "mask"), [(False, [0]), (True, [1])])
def test_an_empty_response_that_stopped_gets_the_end(train_empty, mask):
    group = to_group(
        result([[], [3]], logprobs=[[], [-1.0]], model_step=2), eos_token_id=99, train_empty=train_empty
    )
    empty = group[0]
    assert empty.response_ids.tolist() == [99]
    assert empty.response_mask.tolist() == mask
    assert empty.logprobs is None if train_empty else np.isnan(empty.logprobs).all()
    assert empty.response_model_steps == [2]
    assert sequences_of([group]).trainable.tolist() == [sum(mask), 1]


@pytest.mark.parametrize("reason", ["length", "abort"])
def test_an_empty_response_that_was_cut_stays_empty(reason):
    group = to_group(result([[]], finish_reasons=[reason]), eos_token_id=99)
    assert len(group[0].response_ids) == 0


def test_an_empty_response_stays_empty_without_an_end():
    assert len(to_group(result([[]]))[0].response_ids) == 0


def test_the_group_size_is_checked():
    assert len(to_group(result(), group_size=2)) == 2
    with pytest.raises(InvalidArgument, match=r"algebra-7.*2 responses instead of 4"):
        to_group(result(), group_size=4)
    with pytest.raises(InvalidArgument, match=r"algebra-7.*more than the group size 1"):
        to_group(result(), group_size=1)
    assert len(to_group(result(), group_size=4, min_group_size=2)) == 2
    with pytest.raises(InvalidArgument, match=r"algebra-7"):
        to_group(result(), group_size=4, min_group_size=3)
    with pytest.raises(InvalidArgument, match="no responses"):
        to_group(result([]))


def test_failed_members_make_the_group_fail():
    group = to_group(result(finish_reasons=["stop", "error"]))
    assert group_status(group) == Status.FAILED


def test_or_are_left_out():
    given = result(
        [[1], [2], [3]],
        finish_reasons=["stop", "error", "stop"],
        reward_metrics={"each": [1.0, 2.0, 3.0], "all": 5.0},
    )
    group = to_group(given, group_size=3, min_group_size=2, on_failed="drop_member")
    assert [member.rollout_id for member in group] == [0, 2]
    assert group_status(group) == Status.COMPLETED
    assert group[1].extra_fields["reward_metrics"] == {"each": [1.0, 3.0], "all": 5.0}
    assert given.reward_metrics["each"] == [1.0, 2.0, 3.0], "what the caller holds stays as it is"


def test_too_few_that_are_left_make_the_group_fail():
    group = to_group(
        result(finish_reasons=["stop", None]), group_size=2, min_group_size=2, on_failed="drop_member"
    )
    assert len(group) == 2
    assert group_status(group) == Status.FAILED
    assert (
        group_status(to_group(result(finish_reasons=["error"] * 2), on_failed="drop_member")) == Status.FAILED
    )


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), {"score": float("nan")}, np.float32("nan")])
def test_a_reward_that_is_no_number_is_refused_with_its_prompt(reward):
    with pytest.raises(InvalidArgument, match=r"algebra-7.*reward is (nan|inf)"):
        to_group(result(rewards=[1.0, reward]))


def test_the_reward_of_a_failed_member_does_not_matter():
    group = to_group(result(rewards=[1.0, float("nan")], finish_reasons=["stop", "error"]))
    assert group[1].reward is None


@pytest.mark.parametrize("field", ["finish_reasons", "logprobs", "masks", "rewards", "versions"])
def test_as_many_entries_as_responses(field):
    with pytest.raises(InvalidArgument, match=rf"algebra-7.*{field} has 1 entries for 2"):
        to_group(result(**{field: [None]}))


def test_wrong_lengths_name_the_prompt():
    with pytest.raises(InvalidArgument, match=r"algebra-7.*logprobs has 1 entries"):
        to_group(result(logprobs=[[-1.0], [-1.0]]))


async def test_groups_go_through_a_buffer():
    buffer = ReplayBufferConfig().build()
    await buffer.put(to_group(result(model_step=1)), "math")
    (sample,) = await buffer.sample(1, "math", train_step=3)
    table = sequences_of([sample], train_step=3)
    assert table.staleness.tolist() == [1, 1]
    assert table.uids == [1, 1]
    assert table.prompt_ids == ["algebra-7"] * 2
