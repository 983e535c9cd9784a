"""Groups of Rollouts, and of what stands in for them."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.exactness import assert_kept, back, exact
from codec.strategies import dict_rollouts, rollouts, values
from reroll import DictRollout, NotStorable, Rollout, Status, register
from reroll.codec import decode, encode
from reroll.rollout import VersionRuns
from reroll.rollout.rollout import CHECKED_FIELDS, PLAIN_FIELDS, STATE_SLOTS


def a_rollout(**fields):
    return Rollout(
        **{
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 5],
            "tokens": [1, 2, 3, 4, 5],
            "logprobs": [-0.5, -1.0, 0.0],
            "response_mask": [1, 0, 1],
            "response_model_steps": [7, 7, 8],
            "status": "completed",
            "reward": 0.5,
            **fields,
        }
    )


@given(st.lists(rollouts(), min_size=1, max_size=3))
def test_any_group(group):
    assert_kept(group)


@given(rollouts(), values)
def test_a_rollout_anywhere(rollout, value):
    assert_kept({"best": rollout, "others": (rollout, value), 3: [value, rollout]})


@given(st.lists(dict_rollouts, max_size=3))
def test_any_dict_rollout(group):
    assert_kept(group)


def test_the_state_is_all_that_a_rollout_holds():
    assert sorted(STATE_SLOTS) == sorted(
        [*(f"_{name}" for name in CHECKED_FIELDS), *PLAIN_FIELDS, "checkout"]
    )
    rollout = a_rollout(extra_fields={"a": 1})
    assert exact(Rollout.from_state(rollout.state()), rollout)


def test_what_is_derived_stays_derived():
    (restored,) = back([a_rollout()])
    assert restored.tokens.tolist() == [1, 2, 3, 4, 5]
    assert restored.state()[1] is True
    assert restored.num_tokens == 5
    restored.response_ids = [9]
    assert restored.tokens.tolist() == [1, 2, 3, 4, 5]
    assert restored.num_tokens == 3


def test_a_restored_rollout_works_as_any_other():
    (restored,) = back([a_rollout()])
    restored.status = "failed"
    restored.response_model_steps = restored.response_model_steps.extended(9, 1)
    restored.clear_response()
    assert restored.status is Status.FAILED
    assert restored.prompt_ids.tolist() == [1, 2]
    assert copy.copy(restored) == restored


def test_versions_stay_runs():
    (restored,) = back([a_rollout(response_model_steps=VersionRuns(((5, 2), (6, 1))))])
    assert type(restored.response_model_steps) is VersionRuns
    assert list(restored.response_model_steps.runs()) == [(5, 2), (6, 1)]
    long = Rollout(response_ids=np.zeros(100_000, np.int32), response_model_steps=[3] * 100_000)
    assert len(encode([long])) < 100_000 * 4 + 300


def test_versions_of_numpy_integers():
    rollout = a_rollout(response_model_steps=VersionRuns(((np.int64(5), np.int64(3)),)))
    (restored,) = back([rollout])
    assert restored.response_model_steps == [5, 5, 5]
    assert {type(part) for part in restored.response_model_steps.parts[0]} == {int}


def test_a_prompt_that_members_share_is_stored_once():
    prompt = np.arange(5000, dtype=np.int32)
    group = [Rollout(prompt_ids=prompt, response_ids=[i]) for i in range(8)]
    blob = encode(group)
    restored = decode(blob)
    assert len(blob) < 2 * prompt.nbytes
    assert all(member.prompt_ids is restored[0].prompt_ids for member in restored)


def test_an_empty_group_and_a_mixed_one():
    assert_kept([])
    assert_kept([a_rollout(), DictRollout({"status": "init"}), None, [a_rollout()]])


def test_large_numbers_and_broken_text_in_a_group():
    assert_kept([a_rollout(response="\ud800", extra_fields={"seed": 2**100}, group_id=-(2**70))])


class Scored(Rollout):
    """With slots of its own, and no dict."""

    __slots__ = ("__hidden", "score")

    def hide(self, value):
        self.__hidden = value

    @property
    def found(self):
        return self.__hidden


class Free(Rollout):
    """Whatever is assigned."""


def test_a_subclass_must_be_registered():
    with pytest.raises(
        NotStorable, match=r"rollouts\[1\]: Free is not registered; call reroll.register\(Free\)"
    ):
        encode([a_rollout(), Free()], root="rollouts")


def test_a_registered_subclass():
    register(Scored)
    register(Free)
    scored, free = Scored(response_ids=[1]), Free(response_ids=[1], extra_fields=(1,))
    scored.score = 3
    scored.hide([1])
    free.anything = {"a": (1, 2)}
    restored = back([scored, free, a_rollout()])
    assert [type(member) for member in restored] == [Scored, Free, Rollout]
    assert restored == [scored, free, a_rollout()]
    assert (restored[0].score, restored[0].found) == (3, [1])
    assert restored[1].anything == {"a": (1, 2)}
    assert not hasattr(back(Scored()), "score")


def test_a_rollout_that_is_not_complete_is_refused():
    with pytest.raises(NotStorable, match=r"rollouts\[0\]: .*_prompt_ids"):
        encode([Rollout.__new__(Rollout)], root="rollouts")
