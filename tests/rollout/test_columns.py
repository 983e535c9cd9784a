"""Further columns of a `Rollout`, and tokens appended to its response."""

import copy
import pickle

import numpy as np
import pytest

from reroll import InvalidArgument, Rollout, Status
from reroll.codec import decode, encode
from reroll.rollout import check, count_bytes, reset, summarize

EXPERTS = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)


def a_rollout(**fields):
    return Rollout(**({"prompt_ids": [1, 2], "response_ids": [7, 8, 9], "status": "completed"} | fields))


def test_columns_cover_the_response_or_prompt_and_response():
    rollout = a_rollout(columns={"ref_logprobs": [-0.5, -0.25, 0.0], "entropy": np.zeros((5, 2), np.float16)})
    assert rollout.columns["ref_logprobs"].tolist() == [-0.5, -0.25, 0.0]
    assert rollout.columns["entropy"].dtype == np.float16
    check([rollout])
    for length in (2, 4, 6):
        with pytest.raises(
            InvalidArgument, match=rf"column 'x' has {length} entries, but response_ids has 3"
        ):
            a_rollout(columns={"x": np.zeros(length)})
    rollout.columns = {"x": np.zeros(4)}
    with pytest.raises(InvalidArgument, match="rollout 0: column 'x' has 4 entries"):
        check([rollout])


@pytest.mark.parametrize(
    "columns",
    [
        [1],
        {"": [1, 2, 3]},
        {3: [1, 2, 3]},
        {"logprobs": [1, 2, 3]},
        {"columns": [1, 2, 3]},
        {"x": 3},
        {"x": [None, 1, {}]},
        {"x": np.empty(3, np.dtype([]))},
    ],
)
def test_columns_that_cannot_be_are_refused(columns):
    with pytest.raises(InvalidArgument, match="column"):
        a_rollout(columns=columns)


def test_a_column_wins_over_the_field_of_its_name():
    rollout = a_rollout(routed_experts=[[1]], columns={"routed_experts": EXPERTS})
    assert rollout.routed_experts is EXPERTS
    assert rollout.columns is None


def test_columns_are_compared_copied_stored_counted_and_reset():
    rollout = a_rollout(columns={"a": EXPERTS, "b": np.array([np.nan, 1, 2], "<f4")})
    assert count_bytes(rollout) > count_bytes(a_rollout()) + EXPERTS.nbytes
    assert summarize([rollout]).num_bytes == count_bytes(rollout)
    for same in (copy.copy(rollout), pickle.loads(pickle.dumps(rollout)), decode(encode([rollout]))[0]):  # noqa: S301
        assert same == rollout
        assert {name: column.dtype for name, column in same.columns.items()} == {"a": np.uint8, "b": "<f4"}
    assert Rollout.from_dict(rollout.to_dict()) == rollout
    assert rollout != a_rollout(columns={"a": EXPERTS})
    rollout.freeze()
    assert not rollout.columns["b"].flags.writeable
    reset(rollout)
    assert rollout.columns is None


def test_append_builds_a_response():
    rollout = Rollout(prompt_ids=[1, 2], tokens=[1, 2])
    rollout.append([7, 8], logprobs=[-0.5, -0.25], version=3)
    rollout.append([9], logprobs=[0.0], version=4, mask=0)
    rollout.append([10, 11], logprobs=[-1.0, -2.0], version=4)
    rollout.append([], logprobs=[], version=4)
    assert rollout == Rollout(
        prompt_ids=[1, 2],
        tokens=[1, 2, 7, 8, 9, 10, 11],
        response_ids=[7, 8, 9, 10, 11],
        logprobs=[-0.5, -0.25, 0.0, -1.0, -2.0],
        response_mask=[1, 1, 0, 1, 1],
        response_model_steps=[3, 3, 4, 4, 4],
    )


def test_append_without_the_optional_parts():
    rollout = a_rollout(response_ids=None)
    rollout.append(np.array([5, 6]))
    rollout.append([7])
    assert rollout.response_ids.tolist() == [5, 6, 7]
    assert rollout.logprobs is None
    assert rollout.response_mask is None
    assert not rollout.response_model_steps


def test_append_after_a_reset():
    rollout = a_rollout(logprobs=[0, 0, 0], response_mask=[1, 0, 1], response_model_steps=[1, 1, 1])
    reset(rollout)
    rollout.append([4], logprobs=[-1.0], version=2)
    assert rollout.to_dict() == {
        "prompt_ids": [1, 2],
        "response_ids": [4],
        "logprobs": [-1.0],
        "response_model_steps": [2],
        "tokens": [1, 2, 4],
        "response": "",
        "seq_staleness": 0,
        "status": Status.COMPLETED,
    }


@pytest.mark.parametrize(
    ("held", "appended", "problem"),
    [
        ({}, {"token_ids": None}, "token_ids is required"),
        ({}, {"token_ids": [1.5]}, "token_ids must be integers"),
        ({}, {"token_ids": [1], "logprobs": [0.0]}, "the response has none"),
        ({"logprobs": [0, 0, 0]}, {"token_ids": [1]}, "the response has them"),
        ({"logprobs": [0, 0, 0]}, {"token_ids": [1], "logprobs": [0, 0]}, "logprobs has 2 entries for 1 new"),
        ({}, {"token_ids": [1], "mask": [1, 0]}, "mask has 2 entries for 1 new"),
        ({}, {"token_ids": [1], "mask": 300}, "mask must be zeros and ones"),
        ({}, {"token_ids": [1], "version": 2}, "3 earlier tokens have no version"),
        ({"input_ids": [1, 2, 7, 8, 9]}, {"token_ids": [1]}, "would leave input_ids with the shorter"),
        ({"tokens": [5], "num_tokens": 7}, {"token_ids": [1]}, "tokens, num_tokens"),
        ({"columns": {"x": [1, 2, 3]}}, {"token_ids": [1]}, "would leave columns"),
    ],
)
def test_append_refuses_what_does_not_fit_and_changes_nothing(held, appended, problem):
    rollout = a_rollout(**held)
    with pytest.raises(InvalidArgument, match=problem):
        rollout.append(**appended)
    assert rollout == a_rollout(**held)
