"""The quick look at a usual rollout says what the general one says."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reroll import InvalidArgument, Rollout, Status
from reroll.rollout import reset
from reroll.rollout.summary import inspect_any, inspect_lists, inspect_member
from reroll.rollout.versions import count_versions


@st.composite
def rollout_fields(draw):
    length = draw(st.integers(0, 5))
    versions = draw(st.lists(st.integers(0, 3), max_size=length))
    fields = {
        "prompt_ids": draw(st.none() | st.just([1, 2])),
        "response_ids": list(range(length)),
        "response_model_steps": versions,
        "response_mask": draw(st.none() | st.lists(st.integers(0, 1), min_size=length, max_size=length)),
        "logprobs": draw(st.none() | st.just([0.5] * length)),
        "input_ids": draw(st.none() | st.just([1])),
        "status": draw(st.sampled_from(Status)),
        "reward": draw(st.none() | st.floats(-1, 1) | st.just({"score": 2.0})),
        "seq_staleness": draw(st.integers(-1, 5)),
        "num_tokens": draw(st.none() | st.integers(0, 9)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _outcome(look, rollout, model_step):
    try:
        return look(rollout, model_step)
    except InvalidArgument as error:
        return str(error)


def _own(fields):
    return Rollout(**fields)


def _foreign(fields):
    required = {"status": "init", "seq_staleness": 0, "response_ids": None, "response_model_steps": None}
    return SimpleNamespace(**required | fields)


def _whole(fields):
    absent = dict.fromkeys(("prompt_ids", "response_mask", "logprobs", "input_ids", "num_tokens", "reward"))
    return _foreign(absent | fields)


def _with_tuples(fields):
    return _whole({name: tuple(value) if type(value) is list else value for name, value in fields.items()})


KINDS = pytest.mark.parametrize("kind", [_own, _foreign, _whole, _with_tuples])


@KINDS
@given(rollout_fields(), st.none() | st.integers(0, 4))
def test_the_quick_look_agrees_with_the_general_one(kind, fields, model_step):
    rollout = kind(fields)
    assert _outcome(inspect_member, rollout, model_step) == _outcome(inspect_any, rollout, model_step)


WRONG = st.sampled_from(
    [
        ("status", "no status"),
        ("status", None),
        ("seq_staleness", "old"),
        ("seq_staleness", None),
        ("reward", "good"),
        ("num_tokens", -1),
        ("num_tokens", 1.5),
        ("response_ids", 7),
        ("response_mask", [[1]]),
        ("response_mask", np.ones((2, 2))),
        ("logprobs", 0.5),
        ("response_model_steps", [1.5]),
        ("response_model_steps", [None]),
        ("response_model_steps", [1, "2"]),
        ("response_model_steps", [True]),
        ("response_model_steps", [1 << 62]),
        ("response_model_steps", [[1]]),
        ("labels", [1]),
        ("message", [{"content": "text"}]),
    ]
)


@given(rollout_fields(), WRONG, st.none() | st.integers(0, 4))
def test_what_is_wrong_is_found_either_way(fields, wrong, model_step):
    rollout = _whole(fields | dict([wrong]))
    assert _outcome(inspect_member, rollout, model_step) == _outcome(inspect_any, rollout, model_step)


@pytest.mark.parametrize("kind", [_foreign, _whole])
@pytest.mark.parametrize("versions", [[], [3] * 4, [3, 3, 4, 4], [3, 4]])
def test_what_nearly_all_hold_is_looked_at_quickly(kind, versions):
    fields = {
        "prompt_ids": [1],
        "response_ids": [1, 2, 3, 4],
        "response_model_steps": versions,
        "reward": 1.0,
    }
    fields |= {"response_mask": [0, 1, 1, 1], "logprobs": [0.0] * 4}
    assert inspect_lists(kind(fields), 4) == inspect_any(kind(fields), 4)


@given(rollout_fields())
def test_a_field_that_no_longer_fits_is_found_either_way(fields):
    rollout = Rollout(**fields)
    rollout.logprobs = [0.0] * (len(rollout.response_ids) + 2)
    for look in (inspect_member, inspect_any):
        with pytest.raises(InvalidArgument, match="logprobs"):
            look(rollout, 1)


@given(st.lists(st.integers(0, 3), max_size=700).map(sorted) | st.lists(st.integers(0, 3) | st.booleans()))
def test_versions_in_a_list_are_counted_as_one_by_one(versions):
    if versions and any(type(version) is bool for version in dict.fromkeys(versions)):
        with pytest.raises(InvalidArgument, match="integer"):
            count_versions(versions)
    else:
        assert count_versions(versions) == Counter(versions)


@given(rollout_fields(), st.none() | st.just([1, 2, 3]))
def test_a_rollout_is_reset_as_any_object_is(fields, tokens):
    class Other(Rollout):
        __slots__ = ()

    quick, general = Rollout(**fields, tokens=tokens), Other(**fields, tokens=tokens)
    for rollout in (quick, general):
        rollout.routed_experts, rollout.tool_calls, rollout.extra_fields = [1], [2], {"kept": 3}
        rollout.labels, rollout.message, rollout.response = [4], "kept", "gone"
        rollout.finish_reason, rollout.error_msg = "stop", "gone"
        reset(rollout)
    assert quick == general
    for rollout in (quick, general):
        rollout.response_ids = [5, 6]  # tokens do not follow
    assert quick == general
