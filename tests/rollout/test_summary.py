"""A group of Rollouts that is looked at all at once gives the summary that its members give one by one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import InvalidArgument, Rollout, RolloutGroup
from reroll.rollout import Status, combine, summarize
from reroll.rollout.summary import find_group_id, inspect_any
from rollout.test_members import rollout_fields


def _one_by_one(rollouts, model_step):
    return combine([inspect_any(rollout, model_step) for rollout in rollouts], find_group_id(rollouts))


def _outcome(find, rollouts, model_step):
    try:
        summary = find(rollouts, model_step)
    except InvalidArgument:
        return InvalidArgument
    return dataclasses.replace(summary, prompt_tokens=None)


BESIDE = st.fixed_dictionaries(
    {},
    optional={
        "group_id": st.integers(0, 3),
        "message": st.just([{"role": "user", "content": "text"}]),
        "response": st.text(max_size=4),
        "tokens": st.sampled_from([[1, 2], [7]]),
        "routed_experts": st.builds(np.zeros, st.tuples(st.integers(1, 3), st.just(2))),
        "extra_fields": st.just({"a": [1, 2]}),
    },
)
GROUPS = st.lists(
    st.builds(lambda fields, more: Rollout(**fields | more), rollout_fields(), BESIDE), max_size=4
)
STEPS = st.none() | st.integers(0, 4)


@given(GROUPS, STEPS)
def test_a_group_is_as_its_members(rollouts, model_step):
    def find(group, step):
        return summarize(group, model_step=step)

    assert _outcome(find, rollouts, model_step) == _outcome(_one_by_one, rollouts, model_step)


@given(
    GROUPS.filter(bool),
    STEPS,
    st.sampled_from(["logprobs", "response_mask", "response_model_steps", "response_ids", "prompt_ids"]),
    st.integers(0, 7),
)
def test_a_field_that_was_replaced_is_seen(rollouts, model_step, field, length):
    setattr(rollouts[-1], field, [1] * length)

    def find(group, step):
        return summarize(group, model_step=step)

    assert _outcome(find, rollouts, model_step) == _outcome(_one_by_one, rollouts, model_step)


def _rollout(**fields):
    usual = {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5],
        "logprobs": [0.5] * 3,
        "response_mask": [1, 1, 1],
    }
    return Rollout(**usual | {"status": "completed", "reward": 1.0} | fields)


@pytest.mark.parametrize(
    ("members", "oldest", "trainable"),
    [
        ([{}, {}], (6, 6), (6, 6)),
        ([{"response_mask": [1, 0, 0]}, {"response_mask": [0, 0, 0]}], (6, 6), (6, None)),
        ([{"response_mask": None, "logprobs": None}, {}], (6, 6), (6, 6)),
        ([{"response_model_steps": [4, 4, 4]}, {"response_model_steps": [4, 5, 5]}], (4, 4), (4, 5)),
        ([{"response_model_steps": [4]}, {}], (4, 6), (6, 6)),
        ([{"response_model_steps": [5, 4, 4], "response_mask": [1, 1, 0]}], (4,), (5,)),
    ],
)
def test_versions_of_members(members, oldest, trainable):
    group = [_rollout(**member) for member in members]
    for summary in (summarize(group, model_step=6), RolloutGroup.of(group, model_step=6).summary()):
        assert summary.member_versions == oldest
        assert summary.member_newest_trainable == trainable
        assert summary.status is Status.COMPLETED


def test_a_wrong_reward_is_refused_by_name():
    wrong = _rollout()
    wrong.reward = "good"
    with pytest.raises(InvalidArgument, match="rollout 1: reward"):
        summarize([_rollout(), wrong])


def test_the_version_is_checked_for_an_own_group_too():
    with pytest.raises(InvalidArgument, match="model_step"):
        summarize([_rollout()], model_step="new")
